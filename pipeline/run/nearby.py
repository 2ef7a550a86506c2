"""The run that a person may have meant."""

import os
from pathlib import Path

from pipeline.errors import meant
from pipeline.run.layout import Layout


def near_run(folder: Path) -> str:
    """`did you mean FOLDER? ` for a run around or below `folder`, or beside it under a name that is spelt like it."""
    around = [above for above in folder.absolute().parents[:3] if Layout(above).config.is_file()]
    below = [one.parent for kind in ("*", "results/*") for one in sorted(folder.glob(f"{kind}/config.yaml"))]
    if found := [*around, *below]:
        return f"did you mean {found[0] if folder.is_absolute() else os.path.relpath(found[0])}? "
    return meant(str(folder), [str(one.parent) for one in folder.parent.glob("*/config.yaml")])
