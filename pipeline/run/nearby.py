"""The run that a person may have meant."""

import os
from pathlib import Path

from pipeline.errors import meant
from pipeline.run.layout import Layout


def near_run(folder: Path) -> str:
    """`did you mean FOLDER? ` for a run around or below `folder`, or beside it under a name that is spelt like it."""
    around = [above for above in folder.absolute().parents[:3] if _is_run(above)]
    below = [one for kind in ("*", "results/*") for one in sorted(folder.glob(kind)) if _is_run(one)]
    if found := [*around, *below]:
        return f"did you mean {found[0] if folder.is_absolute() else os.path.relpath(found[0])}? "
    return meant(str(folder), [str(one) for one in folder.parent.glob("*") if _is_run(one)])


def _is_run(folder: Path) -> bool:
    """Other programs have a file of the configuration's name, too."""
    layout = Layout(folder)
    return layout.config.is_file() and (layout.manifest.path.is_dir() or (folder / "index").is_dir())
