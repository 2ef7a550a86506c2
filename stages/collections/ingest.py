"""`ingest`: photographs and texts of any known format into the manifest."""

import logging
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

import click

from pipeline.run import Inputs, Job, Outside, Run, Stage

if TYPE_CHECKING:
    from pipeline.remote.scratch import Scratch
    from pipeline.storage.manifest_writer import Block

PARTS = "manifest.parts"
"""Folder beside the manifest: the results of inspection so far."""
TABLES = "tables"
"""Folder in PARTS: records that do not fit into memory."""
logger = logging.getLogger(__name__)


def ingest(run: Run, job: Job, processes: int | None = None) -> None:
    """Read a collection, check every photo and write the manifest of those that can be used. Resumable."""
    from tqdm import tqdm

    from pipeline import runtime
    from pipeline.collections import formats
    from pipeline.collections.assembly import Assembly
    from pipeline.collections.formats.vectors import FORMAT
    from pipeline.collections.intake import Intake
    from pipeline.collections.inventory import count_files
    from pipeline.collections.records import Options
    from pipeline.collections.remote_files import open_collection
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
        run.scratch if _scratch(run.config) else None,
        settings.exclude,
    )
    records = tqdm(formats.read(settings.format, root, options), "read", unit=" records", disable=None)
    lists = _takedown_lists(run.config, run.layout)
    takedown = [line for path in lists.values() for line in read_lines(path)]
    parts = job.path.with_name(PARTS)
    folder = open_collection(root, options)
    inspected = InspectedImages(parts, folder.state, _limits(run))
    inspector = BlockInspector(run.root.absolute(), uuid4().hex)
    if processes is None:
        processes = runtime.threads()

    def here(locations: Iterator[Any]) -> Iterator[Any]:
        return isolated_map(inspector.of_image(run), locations, processes)

    def elsewhere(blocks: "Iterator[Block]") -> Iterator[int]:
        items = ((block, _tars(run, (path for path, _, _ in block.locations))) for block in blocks)
        numbers = on_cluster(inspector, items, run.config.scheduler, run.config.cluster.model_dump())
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
            raise InputError(f"{where} takes down every photograph of {root}, so that no run is left; take lines out")
        for line in unmet:
            logger.warning("%s names %s, which no photograph of %s is called", where, line, root)
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
            root.resolve() if isinstance(root, Path) else root,
            collection.parts(),
            rejects,
            {**collection.counts, "files": options.tally.counts()},
            run.config.shard_size,
            _tars(run, collection.tars),
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

    def key(self, item: "tuple[Block, Any]") -> str:
        return f"ingest-{self.call}-{item[0].number}"

    def __call__(self, item: "tuple[Block, dict[str, tuple[int, str]]]") -> int:
        """Inspect a block, whose remote tar shards have these sizes and sha256; returns its number."""
        from pipeline.storage.manifest_writer import InspectedImages
        from pipeline.workers import isolated_map

        (number, digest, locations), objects = item
        run = _opened(self)
        known = InspectedImages(run.layout.manifest.path.with_name(PARTS), str, _limits(run))
        known.write(number, digest, isolated_map(self.of_image(run, objects), locations, 1))
        return number

    def of_image(
        self, run: Run, objects: "Mapping[str, tuple[int, str]]" = MappingProxyType({})
    ) -> "Callable[..., Any]":
        """The function that inspects one image, given its location."""
        from functools import partial

        from pipeline.images.decode import ImageLimits, inspect
        from pipeline.storage.sources import ImageSource

        root, settings = run.layout.data_root, run.config.collection
        source = ImageSource(root, settings.follow_links, None if isinstance(root, Path) else run.scratch, objects)
        return partial(inspect, source.read, ImageLimits.from_settings(settings))


@lru_cache(maxsize=1)
def _opened(inspector: BlockInspector) -> Run:
    """What a worker keeps open, and its scratch."""
    multiprocessing.current_process().daemon = False  # so that it may start a process that decodes
    return Run(inspector.root)


def _limits(run: Run) -> str:
    from pipeline.images.decode import ImageLimits

    return f"ingest {STAGE.version}: {ImageLimits.from_settings(run.config.collection)}"


def _tars(run: Run, paths: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Size and sha256 of those of the `paths` that are remote and were fetched as a whole."""
    root = run.layout.data_root
    if isinstance(root, Path):
        return {}
    fetched = run.scratch.fetched
    return {path: fetched[str(root / path)] for path in set(paths) if str(root / path) in fetched}


def _scratch(config) -> "Scratch | None":
    """For a collection of which something is remote."""
    from pipeline.remote.paths import is_url
    from pipeline.remote.scratch import Scratch

    return (
        Scratch.of(config.remote) if any(map(is_url, (config.data_root, *config.collection.files.values()))) else None
    )


def _keys(config) -> dict:
    """`state` changes with the collection, whose photographs are too many to be inputs; a demo has its commit."""
    from pipeline.collections.inventory import describe_state
    from pipeline.remote.paths import place

    chosen, state = config.collection, ""
    if not config.demo.generate:
        root, scratch = place(config.data_root), _scratch(config)
        state = describe_state(root, chosen.format, chosen.files, scratch, chosen.exclude)
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
    taken = {name: Outside(path) for name, path in _takedown_lists(config, layout).items()}
    if config.demo.generate:
        return {"demo": layout.demo, **taken}
    lists = list_files(layout.data_root, chosen.format, chosen.files, _scratch(config))
    return {**{str(path): Outside(path) for path in lists}, **taken}


STAGE = Stage(
    ingest,
    version=10,
    keys=_keys,
    reads=_reads,
    writes=lambda layout: layout.manifest,
    options=(
        click.Option(
            ["--processes"], type=click.IntRange(min=0), help="Processes that decode; 0 for none. [default: --threads]"
        ),
    ),
)
