"""`verify`: checks every file of a run against its commit record. `explain`: traces one image through a run."""

import logging
import os
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.errors import InputError, IntegrityError, JointspaceError, UsageError
from pipeline.foreign.image_names import ID
from pipeline.printable import counted, printable, printable_json
from pipeline.run import Layout, Run, Shards
from pipeline.run.run import is_run, not_a_run
from stages.commands import PATH, RUN, Command, json_option, require_order

if TYPE_CHECKING:
    from pipeline.storage.verify import Examination, ImageTrace

AUDIT = "audit"
"""Name of the folder in a run that `jointspace audit` writes. No Snakemake rule writes this folder."""


@click.command("verify")
@click.argument("run", type=RUN)
@click.option("--sweep", is_flag=True, help="Also remove the temporary files and locks of processes that have ended.")
@click.option("--quick", is_flag=True, help="Compare file sizes only, without hashing the files.")
@json_option
def verify(run: Path, sweep: bool, quick: bool, as_json: bool) -> None:
    """Check every file of a run or an index against its hash.

    RUN is the folder of a run or of an index. The command prints the damaged files and the commands that repair them.
    Without --quick, it also opens each index as `search` does. The exit code is 0 if every artefact is intact and was
    made from the other artefacts of this run, and 1 otherwise.
    """
    from tqdm import tqdm

    from pipeline.storage.locks import is_free
    from pipeline.storage.verify import NoCommitsError, examine

    shown = partial(tqdm, desc="verify", unit=" commits", disable=None)
    opened = Run(run)
    try:
        found = examine(run, not quick, shown)
    except NoCommitsError as error:
        raise not_a_run(run) from error
    if not quick:
        _add_unsearchable(run, found)
    try:
        _set_former_apart(opened, found)
    except JointspaceError:  # The run has no configuration that can be read.
        opened = None

    for path, orphan in found.temporaries.items():
        if orphan and sweep:
            is_free(path, remove=True) if path.suffix == ".lock" else path.unlink(missing_ok=True)
    if as_json:
        click.echo(printable_json(asdict(found), str))
    else:
        fates = {
            True: "removed" if sweep else "the process that wrote this file has ended; --sweep removes the file",
            False: "being written",
        }
        former = "made with an earlier configuration; nothing uses it, so you can delete it"
        lines = [f"{path}: temporary, {fates[orphan]}" for path, orphan in found.temporaries.items()]
        lines += [f"{fault.path}: {fault.reason}" for fault in found.faults]
        lines += [f"{path}: {former}" for path in found.former]
        for line in lines:
            click.echo(printable(line))
    log = logging.getLogger(__name__)
    log.info("%d files were checked, and %d files cannot be used", found.checked, len(found.faults))
    if found.unvouched:
        log.info(
            "%d files, such as %s, were not checked, because no commit record has the checksums of these files",
            len(found.unvouched),
            found.unvouched[0],
        )
    if found.unfinished:
        log.info(
            "%d files of unfinished stages, such as %s, were not checked. They are checked when the stage resumes",
            len(found.unfinished),
            found.unfinished[0],
        )
    if found.faults:
        targets = list(dict.fromkeys(fault.target.relative_to(run) for fault in found.faults if fault.target))
        raise IntegrityError(
            f"{counted(len(found.faults), 'file')} of {run} cannot be used, for the reasons above."
            f" {_remedy(opened, run, targets)}"
        )


def _add_unsearchable(run: Path, found: "Examination") -> None:
    """Add each index shard of the run that `search` refuses, although its files match its index card, to the faults in
    `found`."""
    from pipeline.index.search import Searcher
    from pipeline.storage.card import CARD
    from pipeline.storage.index_folder import ADDED
    from pipeline.storage.index_shard import IndexShard
    from pipeline.storage.stored_index import StoredIndex
    from pipeline.storage.verify import FaultyFile

    for card in sorted(run.rglob(CARD)):
        if any(card.parent in (fault.path, *fault.path.parents) for fault in found.faults):
            continue
        try:
            Searcher(StoredIndex([IndexShard(card.parent)])).check()
        except IntegrityError as error:
            remade = Layout(run).manifest.commit.exists() and ADDED not in card.relative_to(run).parts
            found.faults.append(FaultyFile(card, f"refused by search: {error}", card if remade else None))
        except (UsageError, InputError):  # The index is intact, but needs something that this machine lacks.
            continue


def _set_former_apart(run: Run, found: "Examination") -> None:
    """Move the artefacts of an earlier configuration from `found.faults` to `found.former`.

    An artefact belongs to an earlier configuration if it is missing or its inputs have changed, and the configuration
    of the run does not name it. In a run of `apply`, it does not matter whether the configuration names the artefact,
    because `apply` makes missing artefacts again. Missing artefacts are only removed from `found.faults`, and so are
    indexes, because they can still be searched. The findings of `audit` stay in `found.faults`. Raises JointspaceError
    if the configuration cannot be read.
    """
    from pipeline.run.reading.application import RECORD
    from pipeline.storage.card import CARD
    from pipeline.storage.verify import whole
    from stages.catalogue import declared

    applied = (run.root / RECORD).exists()  # whether this is a run of `apply`, which rebuilds missing artefacts
    stages = [(stage, names) for stage in declared().values() for names in stage.choices(run.config)]
    outputs = [output for stage, names in stages for output in stage.outputs(run.layout, *names)]
    present = {output.folder if isinstance(output, Shards) else output.commit for output in outputs}
    apart = {
        fault: fault.target
        for fault in found.faults
        if fault.target and (fault.reason.startswith("mixed") or not fault.target.exists())
        if fault.target.relative_to(run.root).parts[0] != AUDIT
        if applied or present.isdisjoint((fault.target, fault.target.parent))
    }
    former = {target for target in apart.values() if target.exists() and target.name != CARD}
    found.former = sorted({*found.former, *(path for target in former for path in whole(target))})
    found.faults = [fault for fault in found.faults if fault not in apart and fault.target not in former]


def _remedy(run: Run | None, folder: Path, targets: list[Path]) -> str:
    """Return a sentence with the commands that rebuild the `targets` and the artefacts made from them.

    `targets` are paths relative to `folder`, the folder of the run. If the run cannot be opened, `run` is None, and the
    command has CONFIG in place of the path of the configuration. Without targets, and for a run of `apply`, the
    sentence says to copy the files again. If the run was made in another folder, the sentence may say to move the run
    back to this folder.
    """
    from pipeline.run.reading.application import RECORD

    if not targets or (folder / RECORD).exists():
        return "Copy them again, repeat the `apply` or `add` that made them, or repair links and permissions."
    remade = [path for path in targets if path.parts[0] != AUDIT]
    commands = [shlex.join(["jointspace", "audit", str(folder)])] if len(remade) < len(targets) else []
    if remade:
        # Snakemake knows the targets by their paths below results_root, relative to the folder where the run started.
        made_as = Path(run.config.results_root) / run.config.name if run else folder
        start = Path.cwd()
        here = Path(os.path.abspath(folder))
        if os.path.realpath(made_as) != os.path.realpath(folder):
            if made_as.is_absolute() or here.parts[-len(made_as.parts) :] != made_as.parts:
                return (
                    f"The run was made in {made_as}. Move it back there and verify it again, or copy the files again."
                )
            start = here.parents[len(made_as.parts) - 1]
        config = str(made_as / "config.yaml") if run else "CONFIG"
        words = ["jointspace", "run", config, "--", "--forcerun", *(str(made_as / target) for target in remade)]
        moved = "" if start == Path.cwd() else f"cd {shlex.quote(str(start))} && "
        commands.insert(0, moved + shlex.join(words))
    return f"To rebuild them, run: {' && '.join(commands)}"


@click.command("explain", cls=Command, former={"--run": ""})
@click.argument("run", type=PATH)
@click.argument("image")
@json_option
def explain(run: Path, image: str, as_json: bool) -> None:
    """Trace one photo of a run from its file to the indexes.

    If the photo was rejected or removed, the command prints the reason. IMAGE is a name as `remove` accepts it.
    """
    from pipeline.storage.manifest import Manifest, read_rejects
    from pipeline.storage.verify import find_image, find_rejects, trace

    require_order(run, [image], is_run, "explain")
    RUN.convert(run, None, None)  # This call raises UsageError if `run` is a configuration file.
    found, left_out = [], run / "rejects.jsonl"  # `left_out` exists only if the whole collection was refused.
    if (manifest_file := Layout(run).manifest.commit).exists():
        manifest = Manifest(manifest_file.parent)
        rejects = find_rejects(list(manifest.rejects()), image)
        photo = find_image(manifest, image)
        found = [trace(run, manifest, photo.image_id)] if photo else []
    elif left_out.exists():
        rejects = find_rejects(list(read_rejects(left_out)), image)
    else:
        raise not_a_run(run)
    if not found and not rejects:
        raise InputError(f"{run} has no photo {image}. {_elsewhere(run, image)}")

    if as_json:
        value = {"images": [asdict(one) for one in found], "rejects": rejects}
        click.echo(printable_json(value, default=str))
        return
    lines = [line for one in found for line in _lines_of_trace(one, run)]
    for reject in rejects:
        row = "" if reject["row"] is None else f", row {reject['row']}"
        lines.append(f"left out ({reject['what']}): {reject['file']!r}{row}: {reject['reason']}")
    for line in lines:
        click.echo(printable(line))


def _elsewhere(run: Path, image: str) -> str:
    """Return a sentence about an image that is not in the manifest: how to find it, or how to get it back."""
    from pipeline.foreign.files import read_lines
    from pipeline.storage.files import is_regular
    from pipeline.storage.index_changes import parse_removed
    from pipeline.storage.index_folder import ADDED, REMOVED
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.verify import find_image, means

    removed = {path: parse_removed(read_lines(path)) for path in sorted(filter(is_regular, run.rglob(REMOVED)))}
    if lists := [path for path, names in removed.items() if any(means(image, name) for name in names)]:
        names = " and in ".join(map(str, lists))
        return f"It was removed from an index. To get it back, delete its line in {names}, and repeat `run` or `add`."
    for manifest in sorted(run.rglob(f"{ADDED}/*/manifest/manifest.json")):
        if not ID.fullmatch(image) and find_image(Manifest(manifest.parent), image):
            added = shlex.join(["jointspace", "explain", str(manifest.parents[1]), image])
            return f"It was added to an index. To trace it, run: {added}"
    return "Give its name in the collection, or its image_id, such as id:2."


def _lines_of_trace(found: "ImageTrace", run: Path) -> Iterator[str]:
    """Yield the lines that `explain` prints for an image of the manifest."""
    image = found.image
    name = "::".join(filter(None, (image["path"], image["member"])))
    yield f"photo {image['image_id']}: {name}, {image['width']} x {image['height']}, split {image['split']}"
    yield f"  sha256 {image['sha256']}"
    yield f"  manifest row {image['image_id']}, shard {found.shard}, {found.boxes} boxes"
    for sentence in found.sentences:
        yield f"  caption {sentence['sentence_id']}: {sentence['text']}"
    for document in found.documents:
        yield f"  weak text: {document['title']} | {document['tags']} | {document['description']}"
    for place in found.places:
        rows = _rows(place.rows)
        yield f"  {place.file.relative_to(run)}: {place.of} {rows or 'nowhere'}{place.note and ': '}{place.note}"


def _rows(rows: tuple[int, ...]) -> str:
    """Return `row 3`, `rows 3, 5`, or, for consecutive rows, `rows 3 to 7`. Without a row, return ""."""
    if len(rows) > 1 and rows[-1] - rows[0] == len(rows) - 1:
        return f"rows {rows[0]} to {rows[-1]}"
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows))}" if rows else ""
