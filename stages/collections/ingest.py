"""`ingest`: photographs and texts of any known format into the manifest."""

import logging
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import click

from pipeline.run import Inputs, Job, Outside, Run, stage

if TYPE_CHECKING:
    from pipeline.storage.manifest_writer import Block

PARTS = "manifest.parts"
"""Folder beside the manifest: the results of inspection so far."""
TABLES = "tables"
"""Folder in PARTS: records that do not fit into memory."""
logger = logging.getLogger(__name__)


def _keys(config) -> dict:
    """`state` changes with the collection, whose photographs are too many to be inputs; a demo has its commit."""
    from pipeline.collections.inventory import describe_state

    chosen, state = config.collection, ""
    if not config.demo.generate:
        state = describe_state(Path(config.data_root), chosen.format, chosen.files, chosen.exclude)
    collection = chosen.model_dump(exclude={"memory_gb"})
    return {"data_root": config.data_root, "collection": collection, "shard_size": config.shard_size, "state": state}


def _takedown_lists(config, layout) -> dict[str, Path]:
    """The list of what is to be taken down, and those of what `remove` has taken out of an index."""
    given = {"takedown": Path(config.collection.takedown)} if config.collection.takedown else {}
    return given | {path.relative_to(layout.root).as_posix(): path for path in layout.removed}


def _reads(config, layout) -> Inputs:
    """The demo, or the lists of the collection; and the lists of what is to be taken down."""
    from pipeline.collections.inventory import list_files

    chosen = config.collection
    taken = [Outside(name, path) for name, path in _takedown_lists(config, layout).items()]
    if config.demo.generate:
        return [layout.demo, *taken]
    lists = list_files(layout.data_root, chosen.format, chosen.files)
    return [*(Outside(str(path), path) for path in lists), *taken]


@stage(
    version=11,
    keys=_keys,
    reads=_reads,
    writes=lambda layout: layout.manifest,
    options=(
        click.Option(
            ["--processes"], type=click.IntRange(min=0), help="Processes that decode; 0 for none. [default: --threads]"
        ),
    ),
)
def ingest(run: Run, job: Job, processes: int | None = None) -> None:
    """Read a collection, check every photo and write the manifest of those that can be used. Resumable."""
    from tqdm import tqdm

    from pipeline import runtime
    from pipeline.collections import formats
    from pipeline.collections.assembly import Assembly
    from pipeline.collections.files import CollectionFolder
    from pipeline.collections.formats.vectors import FORMAT
    from pipeline.collections.intake import Intake
    from pipeline.collections.inventory import count_files
    from pipeline.collections.records import Options
    from pipeline.errors import InputError, JointspaceError
    from pipeline.images.decode import Inspection
    from pipeline.plain_files import read_lines
    from pipeline.run.runner import on_cluster
    from pipeline.storage.manifest import remove_rejects, write_rejects
    from pipeline.storage.manifest_writer import InspectedImages, write_manifest
    from pipeline.workers import isolated_map
    from stages.given import inspect_vectors

    root = run.layout.data_root
    settings = run.config.collection
    options = Options(
        settings.files,
        settings.columns,
        settings.default_split,
        settings.follow_links,
        settings.kept_columns,
        settings.exclude,
    )
    records = tqdm(formats.read(settings.format, root, options), "read", unit=" records", disable=None)
    lists = _takedown_lists(run.config, run.layout)
    takedown = [line for path in lists.values() for line in read_lines(path)]
    parts = job.path.with_name(PARTS)
    folder = CollectionFolder(root, options)
    inspected = InspectedImages(parts, folder.state, _limits(run))
    inspector = BlockInspector(run.root.absolute(), uuid4().hex)
    if processes is None:
        processes = runtime.threads()

    def here(locations: Iterator[Any]) -> Iterator[Any]:
        return isolated_map(inspector.of_image(run), locations, processes)

    def elsewhere(blocks: "Iterator[Block]") -> Iterator[int]:
        numbers = on_cluster(inspector, blocks, run.config.scheduler, run.config.cluster.model_dump())
        return tqdm(numbers, "check", unit=" blocks", disable=None)

    more = (elsewhere,) if run.config.scheduler else ()
    longest, own = settings.max_sentence_chars, settings.kept_columns
    photographs = None if settings.format == FORMAT else folder
    with (
        _tables_in(parts / TABLES) as scratch,
        closing(Intake(longest, own, scratch, photographs, takedown, settings.memory_gb)) as intake,
    ):
        assembly = Assembly(intake.add(records))
        where, unmet = " and ".join(map(str, lists.values())), intake.takedown.unmet()
        if not len(assembly) and len(unmet) < len(intake.takedown.lines):
            raise InputError(f"{where} takes down every photo of {root}, so nothing is left; remove some lines")
        for line in unmet:
            logger.warning("%s names %s, but no photo of %s has that name", where, line, root)
        count_files(root, settings.format, options, intake.tables, bool(lists))
        if photographs is None:
            outcomes = inspect_vectors(root, options, (path for path, _, _ in assembly.locations()))
        else:
            outcomes = inspected.resume(assembly.locations, here, Inspection._make, *more)
        collection = assembly.collect(tqdm(outcomes, "check", len(assembly), unit=" images", disable=None))

        rejects = (reject._asdict() for reject in collection.rejects)
        report = job.path.with_name("rejects.jsonl")
        remove_rejects(report)
        try:
            collection.check(settings.reject_limit, str(report), learned_from=settings.default_split != "gallery")
        except JointspaceError:
            if collection.left_out.counts:
                write_rejects(report, rejects)  # outside of the manifest, which is not written
            raise
        write_manifest(
            job.path,
            root.resolve(),
            collection.parts(),
            rejects,
            {**collection.counts, "files": options.tally.counts()},
            run.config.shard_size,
            options.tally.left_out,
            job.provenance,
        )
    inspected.clear()
    for line in (*collection.describe(), *options.tally.describe()):
        logger.info(line)
    if not collection.counts["sentences"]["kept"] and settings.default_split != "gallery":
        logger.warning(
            "no photo has a caption, so there is nothing to train on; to search them with an index built from"
            " other photos: `jointspace apply BUNDLE %s --output DIR`", root,
        )  # fmt: skip


@contextmanager
def _tables_in(folder: Path) -> Iterator[Path]:
    """The folder of what does not fit into memory, emptied of what a killed ingest left. Raises JointspaceError where
    its disk is full."""
    from pipeline.collections.tables import TEMPORARY, FullDiskError
    from pipeline.storage.batch import cannot_write, remove_own

    remove_own(folder, TEMPORARY)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        yield folder
    except FullDiskError as error:
        raise cannot_write(folder, 0, error) from error
    finally:
        with suppress(OSError):  # blocks of inspected images are in it
            folder.parent.rmdir()


@dataclass(frozen=True)
class BlockInspector:
    """Inspects blocks of the images of the run in `root` on another machine that sees the same files; `call` as that of
    a ShardTask."""

    root: Path
    call: str
    what: ClassVar[str] = "block of images"

    def key(self, block: "Block") -> str:
        return f"ingest-{self.call}-{block.number}"

    def __call__(self, block: "Block") -> int:
        """Inspect a block; returns its number."""
        from pipeline.storage.manifest_writer import InspectedImages
        from pipeline.workers import isolated_map

        run = _opened(self)
        known = InspectedImages(run.layout.manifest.path.with_name(PARTS), str, _limits(run))
        known.write(block.number, block.digest, isolated_map(self.of_image(run), block.locations, 1))
        return block.number

    def of_image(self, run: Run) -> "Callable[..., Any]":
        """The function that inspects one image, given its location."""
        from functools import partial

        from pipeline.images.decode import ImageLimits, inspect
        from pipeline.storage.sources import ImageSource

        settings = run.config.collection
        source = ImageSource(run.layout.data_root, settings.follow_links)
        return partial(inspect, source.read, ImageLimits.from_settings(settings))


@lru_cache(maxsize=1)
def _opened(inspector: BlockInspector) -> Run:
    """What a worker keeps open."""
    multiprocessing.current_process().daemon = False  # so that it may start a process that decodes
    return Run(inspector.root)


def _limits(run: Run) -> str:
    from pipeline.images.decode import ImageLimits

    return f"ingest {ingest.version}: {ImageLimits.from_settings(run.config.collection)}"
