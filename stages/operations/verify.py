"""Every artefact of a run against its commit, and what became of one image."""

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
from pipeline.printable import printable, printable_json
from pipeline.run import Run
from pipeline.run.layout import Layout, Shards
from stages.commands import FOLDER, json_option

if TYPE_CHECKING:
    from pipeline.storage.verify import Examination, ImageTrace

AUDIT = "audit"
"""Folder of a run that `jointspace audit` writes, and no rule."""


@click.command("verify")
@click.argument("run", type=FOLDER)
@click.option("--sweep", is_flag=True, help="Also remove temporary files and locks that dead processes left.")
@click.option("--quick", is_flag=True, help="Compare file sizes only.")
@json_option
def verify(run: Path, sweep: bool, quick: bool, as_json: bool) -> None:
    """Check every file of RUN (a run or an index) against its hash and say how to repair what is wrong.

    An index is also opened as `search` opens it. Exit code 0 if every artefact is intact and fits the others of this
    run, 1 otherwise.
    """
    from tqdm import tqdm

    from pipeline.storage.locks import is_free
    from pipeline.storage.verify import examine

    shown = partial(tqdm, desc="verify", unit=" commits", disable=None)
    found, opened = examine(run, not quick, shown), Run(run)
    if not quick:
        _add_unsearchable(run, found)
    try:
        _set_former_apart(opened, found)
    except JointspaceError:  # the run has no configuration that can be read
        opened = None

    for path, orphan in found.temporaries.items():
        if orphan and sweep:
            is_free(path, remove=True) if path.suffix == ".lock" else path.unlink(missing_ok=True)
    if as_json:
        click.echo(printable_json(asdict(found), str))
    else:
        fates = {True: "removed" if sweep else "left by a dead writer, --sweep removes it", False: "being written"}
        former = "left from an earlier configuration; nothing uses it, so you can delete it"
        lines = [f"{path}: temporary, {fates[orphan]}" for path, orphan in found.temporaries.items()]
        lines += [f"{fault.path}: {fault.reason}" for fault in found.faults]
        lines += [f"{path}: {former}" for path in found.former]
        for line in lines:
            click.echo(printable(line))
    log = logging.getLogger(__name__)
    log.info("%d files checked, %d wrong", found.checked, len(found.faults))
    if found.unvouched:
        log.info("without a checksum: %d, such as %s", len(found.unvouched), found.unvouched[0])
    if found.unfinished:
        log.info("unfinished, to be checked by its stage: %d, such as %s", len(found.unfinished), found.unfinished[0])
    if found.faults:
        targets = list(dict.fromkeys(fault.target.relative_to(run) for fault in found.faults if fault.target))
        raise IntegrityError(
            f"{len(found.faults)} files of {run} are damaged or do not fit; {_remedy(opened, run, targets)}"
        )


def _add_unsearchable(run: Path, found: "Examination") -> None:
    """Add to the faults each index of the run whose files fit its card, but which a search refuses."""
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
        except (UsageError, InputError):  # something is not installed on this machine
            continue


def _set_former_apart(run: Run, found: "Examination") -> None:
    """Move what was made from other artefacts than are there now from the faults to what is `former`, where the run's
    configuration has nothing of that name any more; an index stays of use. Raises JointspaceError where that cannot be
    read."""
    from pipeline.run.reading.application import RECORD
    from pipeline.storage.card import CARD
    from pipeline.storage.verify import whole
    from stages.catalogue import declared

    applied = (run.root / RECORD).exists()  # which makes again what it needs
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
    """What makes the `targets`, paths under the `folder` of the run, and what depends on them, again."""
    from pipeline.run.reading.application import RECORD

    if not targets or (folder / RECORD).exists():
        return "copy them again, repeat the `apply` or `add` that made them, or mend links and permissions"
    remade = [path for path in targets if path.parts[0] != AUDIT]
    commands = [shlex.join(["jointspace", "audit", str(folder)])] if len(remade) < len(targets) else []
    if remade:
        # The names by which the Snakefile knows them, and the folder in which it does.
        place = Path(run.config.results_root) / run.config.name if run else folder
        start, here = Path.cwd(), Path(os.path.abspath(folder))
        if os.path.realpath(place) != os.path.realpath(folder):
            if place.is_absolute() or here.parts[-len(place.parts) :] != place.parts:
                return f"it was made as {place}: move it back there and verify it again, or copy them again"
            start = here.parents[len(place.parts) - 1]
        config = str(place / "config.yaml") if run else "CONFIG"
        words = ["jointspace", "run", config, "--", "--forcerun", *(str(place / target) for target in remade)]
        moved = "" if start == Path.cwd() else f"cd {shlex.quote(str(start))} && "
        commands.insert(0, moved + shlex.join(words))
    return f"remake them: {'; '.join(commands)}"


@click.command("explain")
@click.argument("image")
@click.option("--run", type=FOLDER, required=True, help="Folder of the run, such as results/demo.")
@json_option
def explain(image: str, run: Path, as_json: bool) -> None:
    """Trace IMAGE (a name as for `remove`) from the manifest to the indexes, or say why it was left out."""
    from pipeline.storage.manifest import Manifest, read_rejects
    from pipeline.storage.verify import find_image, find_rejects, trace

    found, left_out = [], run / "rejects.jsonl"  # of a collection that was refused as a whole
    if (manifest_file := Layout(run).manifest.commit).exists():
        manifest = Manifest(manifest_file.parent)
        rejects = find_rejects(list(manifest.rejects()), image)
        photo = find_image(manifest, image)
        found = [trace(run, manifest, photo.image_id)] if photo else []
    elif left_out.exists():
        rejects = find_rejects(list(read_rejects(left_out)), image)
    else:
        raise InputError(f"{run} is not the folder of a run: it has no manifest; name one such as results/demo")
    if not found and not rejects:
        raise InputError(f"{run} has no {image}; {_elsewhere(run, image)}")

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
    """What to do about an image that is not in the manifest: it was removed from an index, or added to one."""
    from pipeline.foreign.files import read_lines
    from pipeline.storage.files import is_regular
    from pipeline.storage.index_changes import parse_removed
    from pipeline.storage.index_folder import ADDED, REMOVED
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.verify import find_image, means

    removed = {path: parse_removed(read_lines(path)) for path in sorted(filter(is_regular, run.rglob(REMOVED)))}
    if lists := [path for path, names in removed.items() if any(means(image, name) for name in names)]:
        names = " and in ".join(map(str, lists))
        return f"it was removed: delete its line in {names} to have it back, and `run` or `add` again"
    for manifest in sorted(run.rglob(f"{ADDED}/*/manifest/manifest.json")):
        if not ID.fullmatch(image) and find_image(Manifest(manifest.parent), image):
            return f"it was added to an index: name {manifest.parents[1]} as --run"
    return "give a name as in the collection, or an image_id such as id:2"


def _lines_of_trace(found: "ImageTrace", run: Path) -> Iterator[str]:
    image = found.image
    name = "::".join(filter(None, (image["path"], image["member"])))
    yield f"image {image['image_id']}: {name}, {image['width']} x {image['height']}, split {image['split']}"
    yield f"  sha256 {image['sha256']}"
    yield f"  manifest row {image['image_id']}, shard {found.shard}, {found.boxes} boxes"
    for sentence in found.sentences:
        yield f"  sentence {sentence['sentence_id']}: {sentence['text']}"
    for document in found.documents:
        yield f"  document: {document['title']} | {document['tags']} | {document['description']}"
    for place in found.places:
        rows = _rows(place.rows)
        yield f"  {place.file.relative_to(run)}: {place.of} {rows or 'nowhere'}{place.note and ': '}{place.note}"


def _rows(rows: tuple[int, ...]) -> str:
    """`row 3`, or `rows 3 to 7` where they follow one another."""
    if len(rows) > 1 and rows[-1] - rows[0] == len(rows) - 1:
        return f"rows {rows[0]} to {rows[-1]}"
    return f"row{'s' * (len(rows) > 1)} {', '.join(map(str, rows))}" if rows else ""
