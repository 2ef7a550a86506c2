"""The suspicious captions of an audit, as `serve --review` shows them."""

import os
import shlex
from contextlib import suppress
from pathlib import Path

from pipeline.errors import InputError, UsageError
from pipeline.foreign.image_names import listed_name
from pipeline.report.tables import is_probable
from pipeline.run.layout import Layout
from pipeline.serve.gallery import ServedGallery
from pipeline.serve.review import Review, ReviewedPair
from pipeline.storage.decisions import pair_of
from pipeline.storage.files import require_no_links
from pipeline.storage.index_folder import home_of, shards_in
from pipeline.storage.tables import read_table


def open_review(folder: Path, gallery: ServedGallery) -> Review:
    """Open the audit of the run that built the index in `folder`. `gallery` is this index, as the search page shows it.

    Captions that are probably wrong come first. The review has no near-duplicates and no photos that are missing from
    the index or were removed from it. Raises UsageError if the index is not in a run, if the run has no audit, or if
    the index was built from another version of the collection. Raises IntegrityError if the folder of the audit is a
    link or contains a link.
    """
    home = Path(os.path.abspath(home_of(shards_in(folder))))
    layout = Layout(Path(os.path.relpath(home.parents[1])))
    command = shlex.join(["jointspace", "audit", str(layout.root)])
    if home.parent.name != "index":
        raise UsageError(
            f"--review needs an index in the folder of its run, such as RUN/index/sae, but {folder} is not in the"
            " folder of a run. Name the index in the folder of the run."
        )
    if not layout.audit.commit.exists():
        raise UsageError(f"--review needs the audit of the run that built {folder}. Make the audit with `{command}`.")
    require_no_links(layout.root, layout.audit.path.parent)
    findings = read_table(layout.audit.path, "audit")[0].to_pylist()
    pairs = []
    probable = 0
    for finding in sorted(findings, key=lambda finding: (not is_probable(finding), not finding["reliable"])):
        if pair := pair_of(finding):
            with suppress(InputError):  # `gallery.row` raises this error for a photo that the index does not have.
                row = gallery.row(finding["image_id"])
                texts = gallery.sentences_of(finding["image_id"])
                if listed_name(row) != pair[0] or not {*finding["captions"]} <= {*texts}:
                    raise UsageError(f"The collection has changed since the audit of {layout.root}. Run `{command}`.")
                others = [text for text in texts if text not in finding["captions"]]
                pairs.append(ReviewedPair(pair, finding["image_id"], finding["captions"], others))
                probable += is_probable(finding)
    return Review(gallery, pairs, probable, layout.decisions, shlex.join(["jointspace", "run", str(layout.config)]))
