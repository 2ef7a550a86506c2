"""Every stage of a small run opens only declared files. The tests watch the functions that open files."""

import builtins
import io
import os
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from synthetic_run import make_run
from workflow import TINY

from pipeline.config.loading import merge, validate
from pipeline.run import StageRun
from pipeline.run.layout import Layout
from pipeline.run.run import Run
from pipeline.run.runner import run_stage
from pipeline.run.stage import Job, Names, Outside, Stage, UndeclaredInputError, list_inputs
from pipeline.storage import commit as commits
from pipeline.storage.manifest import Manifest
from stages.catalogue import declared

STAGES = declared()
NETWORK = {"architecture": "squeezenet1_1", "resize": 64, "crop": 64}
SMALL = {"epochs": 1, "dimensions": 8, "batch_size": 16, "precision": "float32"}
SETTINGS = {
    "models": ["ncca", "plain", "ncca-csls-refit", "sae", "words", "dvsa", "phrases", "sdtrnn", "both"],
    "variants": {
        "ncca-csls-refit": {"model": "ncca", "csls": True, "refit": True},
        "sae": {"model": "ncca", "training": "sae"},
        "plain": {"model": "ncca", "encoders": ["eyes"], "text_encoders": ["tfidf"]},
        "phrases": {"model": "hmlstm", "encoders": ["eyes"]},
        "words": {"model": "bow", "encoders": ["eyes"], "word_vectors": {"source": "corpus"}},
    },
    "ensembles": {"both": {"members": ["plain", "words"]}},
    "encoders": [
        {"name": "eyes", **NETWORK, "weights": "untrained"},
        {"name": "new", **NETWORK, "weights": "untrained"},
        {"name": "tuned", **NETWORK, "weights": "finetuned"},
        {"name": "pooled", "architecture": "pooled", "of": "eyes"},
    ],
    "text_encoders": [
        {"name": "tfidf", "kind": "tf-idf"},
        {"name": "means", "kind": "averaged"},
    ],
    "extract": {"decode_workers": 0, "precision": "float32", "mapped": {"new": "eyes"}, "mapping_images": 50},
    "finetune": {"iterations": 2, "images": 4, "side": 64, "precision": "float32"},
    "regions": {"encoders": ["eyes"], "count": 3},
    "demo": {"train": 40, "dev": 6, "test": 6, "weak": 12},
    "shard_size": 40,
    "tokens": {"min_count": 1},
    "word_vectors": {"dim": 8},
    "fit": {"dimensions": [4], "image_ridge": [1], "text_ridge": [1], "eigenvalue_power": [1]},
    "transfer": {"beta": [0.3], "auxiliary_dimensions": [4], "features": 40, "neighbours": 5},
    "train_defaults": SMALL,
    "generators": ["copies", "writes", "names", "ranks", "spells"],
    "generator_variants": {
        "copies": {"generator": "nearest", "encoders": ["eyes"]},
        "writes": {"generator": "mrnn", "encoders": ["eyes"]},
        "names": {"generator": "mrnn-regions", "encoders": ["eyes"], "snippets": "dvsa"},
        "ranks": {"generator": "ranked-snippets", "encoders": ["eyes"], "snippets": "dvsa"},
        "spells": {"generator": "lbl", "encoders": ["eyes"]},
    },
    "language_defaults": {"epochs": 1, "batch_size": 16, "precision": "float32"},
    "mrnn": {"dimensions": 8, "word_dim": 8},
    "describe": {"space": "plain", "boxes": True, "top": 1, "beam": 2, "candidates": 10, "meteor": False},
    "evaluate": {"bootstrap": 10, "protocols": ["all-sentences"], "generators": ["writes"]},
    "phrases": {"splits": ["test"]},
}  # fmt: skip
IMPORTED_SETTINGS = {
    "models": ["zero-shot"],
    "encoders": [{"name": "theirs", "kind": "imported", "path": "theirs.npy"}],
    "text_encoders": [{"name": "given", "kind": "imported", "imported": {"path": "given.npy"}}],
    "demo": {"train": 20, "dev": 4, "test": 4, "weak": 1},
    "evaluate": {"bootstrap": 10, "protocols": ["all-sentences"]},
}
"""Settings of a separate run with precomputed vectors. The run of SETTINGS cannot have such vectors, because
precomputed text vectors cannot be compared with the vectors of its text encoders."""
SIMULATED_TEXT_SETTINGS = {
    "models": ["joint"],
    "variants": {"joint": {"model": "ncca", "training": "joint"}},
    "encoders": [{"name": "eyes", **NETWORK, "weights": "untrained"}],
    "demo": {"train": 60, "dev": 8, "test": 8, "weak": 1},
    "auxiliary": {"splits": ["train"]},
    "documents": {"all": {"simulate": {"tag_words": 3, "true_words": 1, "wrong": 0.1, "missing": 0.1}}},
    "fit": {"dimensions": [4], "image_ridge": [1], "text_ridge": [1], "eigenvalue_power": [1]},
    "evaluate": {"bootstrap": 10, "protocols": ["all-sentences"]},
}
SPACY_STAGES = {"train_parser"}
"""Names of the stages that need spaCy, an extra that may not be installed."""


PAPER_STAGES = {name for name, stage in STAGES.items() if stage.function.__module__.startswith("stages.papers.")}
"""Names of the stages for the tables of papers. These stages need more images than SETTINGS has, and take minutes."""


def test_every_stage_opens_only_what_it_declares(tmp_path: Path) -> None:
    done = run_all(tmp_path / "all", SETTINGS, STAGES.keys() - PAPER_STAGES - SPACY_STAGES)
    done |= run_all(tmp_path / "imported", IMPORTED_SETTINGS, {"adopt", "build_index", "evaluate"})
    done |= run_all(tmp_path / "simulated", SIMULATED_TEXT_SETTINGS, {"fit"})
    assert STAGES.keys() - done == PAPER_STAGES | SPACY_STAGES


@pytest.mark.slow
def test_the_tables_of_the_papers_open_only_what_they_declare(tmp_path: Path) -> None:
    values = {**TINY, "reproduce": {"papers": ["gong"]}}
    assert run_all(tmp_path, values, PAPER_STAGES) >= PAPER_STAGES


SIMULATES = {"documents": {"all": {"simulate": {"tag_words": 3, "true_words": 1, "wrong": 0.1, "missing": 0.1}}}}
MAPS = {"encoders": [{"name": "new", **NETWORK, "weights": "untrained"}], "extract": {"mapped": {"new": "eyes"}}}


@pytest.mark.parametrize(
    ("stage", "names", "settings", "needed"),
    [
        # `fit` chooses parameters on dev, and a change of the dev images does not change the moments of train.
        ("fit", ("ncca",), {}, "manifest"),
        # The moments are summed by folds, and the fold of an image depends on the images of its split in all shards.
        ("accumulate", ("study/target",), {}, "manifest"),
        # Files of parses are matched by image names, on which the fingerprints of a shard do not depend.
        ("parse", (), {}, "manifest"),
        ("study", (), SIMULATES, "text/simulated/all"),
        ("build_index", ("ncca",), MAPS, "features/new"),
        ("report", (), {}, "embeddings/ncca"),
        # The stage reads the names of the labels in the manifest, even if the boxes have texts.
        ("rank_phrases", ("hmlstm", "test"), {"describe": {"region_texts": "texts.json"}}, "names"),
    ],
)
def test_every_input_that_a_result_depends_on_is_declared(
    stage: str, names: Names, settings: dict, needed: str, tmp_path: Path
) -> None:
    config = validate(merge({"data_root": str(tmp_path)}, settings))
    reads = STAGES[stage].reads(config, Layout(tmp_path), *names)
    assert needed in [source.name for source in list_inputs(reads)]


@pytest.mark.parametrize(
    ("stage", "names", "settings"),
    [
        ("extract_regions", "eyes", {"regions": {"proposals": "boxes", "boxes": "boxes.csv"}}),
        ("import_vectors", "text/given", {"text_encoders": IMPORTED_SETTINGS["text_encoders"]}),
    ],
)
def test_renaming_a_photo_reruns_stages_that_match_by_image_name(
    stage: str, names: str, settings: dict, tmp_path: Path
) -> None:
    folder = make_run(tmp_path / "run")
    run = Run(folder, validate(merge({"data_root": str(tmp_path)}, settings)))
    before = STAGES[stage].also(run, names)
    images = run.manifest.images
    run.manifest.images = images.set_column(1, "path", pa.array([f"new/{path}" for path in images["path"].to_pylist()]))
    del run.manifest.names_digest
    after = STAGES[stage].also(run, names)
    assert after.keys() == before.keys() and after != before


def test_an_undeclared_artefact_is_refused_by_name(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    undeclared = replace(STAGES["evaluate"], reads=lambda config, layout, *names: {"manifest": layout.manifest})
    with pytest.raises(UndeclaredInputError, match="evaluate opens embeddings/ncca, which the stage does not declare"):
        run_stage(Run(run), undeclared, ("ncca", "test", "all-sentences"))
    with pytest.raises(UndeclaredInputError, match="encode-sentences reads sentences of the manifest"):
        StageRun(Run(run), replace(STAGES["encode_sentences"], columns=("images",)), [("tfidf",)]).manifest.texts(0)


SHARD = "embeddings/ncca/shard-00000.h5"


@pytest.mark.parametrize(
    ("opens", "name", "declared"),
    [
        (lambda path: open(path, "rb").close(), SHARD, "model"),
        (Path.read_bytes, SHARD, "model"),
        (np.memmap, SHARD, "model"),
        (lambda path: h5py.File(path).close(), SHARD, "model"),
        (lambda path: Run(path.parents[2]).embeddings("ncca").read("images", np.arange(2)), SHARD, "model"),
        # The runner has read this commit record before, to check the embeddings, which were made from the model.
        (commits.read_commit, "models/ncca/model.json", "embeddings"),
        # The name of this undeclared folder begins with the name of the declared folder `models/ncca`.
        (Path.read_bytes, "models/ncca-csls/model.json", "model"),
    ],
)
def test_opening_an_undeclared_file_directly_is_noticed(
    opens: Callable[[Path], object], name: str, declared: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path)
    (run / "models/ncca-csls").mkdir()
    (run / "models/ncca-csls/model.json").write_text("{}")

    def peek(view: StageRun, job: Job) -> None:
        opens(view.root / name)

    reads = {declared: getattr(Layout(run), declared)("ncca")}
    peeking = Stage(peek, 1, writes=lambda layout: layout.audit, reads=lambda config, layout: reads)
    with watching() as watch, pytest.raises(AssertionError, match=f"peek opens .*{name}"):
        watch(peeking, lambda: run_stage(Run(run), peeking))


def run_all(folder: Path, settings: dict, targets: Set[str]) -> set[str]:
    """Make a run with `settings` in `folder`. Run the stages `targets` and the stages that make their inputs.

    Return the names of all stages that ran. The test fails if a stage opens an undeclared file (see `watching`).
    """
    values = {**settings, "name": "run", "data_root": str(folder / "data"), "results_root": str(folder)}
    (folder / "run").mkdir(parents=True)
    (folder / "run/config.yaml").write_text(yaml.safe_dump(values))
    done = set()
    with watching() as watch:
        for stage, names in list_jobs(Run(folder / "run"), targets):
            watch(stage, lambda stage=stage, names=names: run_stage(Run(folder / "run"), stage, names))
            done.add(stage.name)
            if stage.name == "ingest":
                bring_vectors(folder / "run", folder / "data")
    return done


def list_jobs(run: Run, targets: Set[str]) -> list[tuple[Stage, Names]]:
    """Return the jobs of the stages `targets` that the rule `all` makes, each after the jobs that make its inputs.

    If `all` makes no job of a stage, return two of its possible jobs.
    """
    known = [(stage, tuple(names)) for stage in STAGES.values() for names in stage.choices(run.config)]
    makers = {output.name: job for job in known for output in job[0].outputs(run.layout, *job[1])}
    jobs: dict[tuple[str, Names], tuple[Stage, Names]] = {}

    def visit(stage: Stage, names: Names) -> None:
        if (stage.name, names) in jobs:
            return
        if stage.sharded:
            visit(STAGES["ingest"], ())
        for source in list_inputs(stage.reads(run.config, run.layout, *names)):
            if not isinstance(source, Outside) and source.name in makers:
                visit(*makers[source.name])
        jobs[stage.name, names] = (stage, names)

    visit(STAGES["make_demo"], ())
    visit(STAGES["ingest"], ())
    for name in STAGES:
        if name in targets:
            for names in list(STAGES[name].wanted(run.config)) or list(STAGES[name].choices(run.config))[:2]:
                visit(STAGES[name], tuple(names))
    return list(jobs.values())


def bring_vectors(run: Path, data: Path) -> None:
    """Write random vectors for all images and captions of the run into the folder `data`, as precomputed vectors."""
    manifest = Manifest(run / "manifest")
    rng = np.random.default_rng(0)
    np.save(data / "theirs.npy", rng.standard_normal((manifest.n_images, 4)).astype(np.float32))
    (data / "theirs.txt").write_text("".join(f"{path}\n" for path in manifest.images["path"].to_pylist()))
    np.save(data / "given.npy", rng.standard_normal((len(manifest.sentence_images), 4)).astype(np.float32))


@contextmanager
def watching() -> Iterator[Callable[[Stage, Callable[[], None]], None]]:
    """Watch the functions that open files.

    Yield a function `watch(stage, call)`, which calls `call` to run the stage. `watch` raises AssertionError if the
    stage opens a file of its run that does not belong to a declared input or output.
    """
    views: list[StageRun] = []
    trusted: list[str] = []
    opened: list[Path] = []

    def note(path: object) -> None:
        if views and not trusted and isinstance(path, str | bytes | os.PathLike):
            opened.append(Path(os.path.abspath(os.fsdecode(path))))

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any, *arguments: Any, **more: Any) -> Any:
            note(path)
            return function(path, *arguments, **more)

        return called

    def trusting(function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `function`, which reads commit records to compare digests, so that the files that it reads are not
        watched.

        Such a function may read the commit record of any artefact from which an input was made.
        """

        def called(*arguments: Any, **more: Any) -> Any:
            trusted.append(function.__name__)
            try:
                result = function(*arguments, **more)
                return iter(list(result)) if isinstance(result, Iterator) else result
            finally:
                trusted.pop()

        return called

    begin = StageRun.__init__

    def begun(view: StageRun, *arguments: Any) -> None:
        begin(view, *arguments)
        views.append(view)

    def watch(stage: Stage, call: Callable[[], None]) -> None:
        views.clear()
        opened.clear()
        call()
        assert views, f"{stage.command} was not run"
        undeclared = sorted({str(path) for path in opened if not is_declared(path, views[0])})
        views.clear()
        assert not undeclared, f"{stage.command} opens what it does not declare: {undeclared}"

    with pytest.MonkeyPatch.context() as patch:
        for module, name in [
            (builtins, "open"), (io, "open"), (os, "open"), (h5py, "File"), (np, "memmap"), (pq, "read_table"),
            (pq, "ParquetFile"), (pa, "memory_map"), (pa, "OSFile"),
        ]:  # fmt: skip
            patch.setattr(module, name, noting(getattr(module, name)))
        # Commit records that were read to compare digests are in a cache. Without the cache, a stage that reads such a
        # record opens its file, and this test notices it.
        patch.setattr(commits, "_read", commits._read.__wrapped__)
        for name in ("faults", "require", "digest", "is_done"):
            patch.setattr(commits.Commits, name, trusting(getattr(commits.Commits, name)))
        patch.setattr(StageRun, "__init__", begun)
        yield watch


def is_declared(path: Path, view: StageRun) -> bool:
    """Return whether the stage with this `view` may open `path`: the path is outside the run, or belongs to a declared
    input or an output, to the configuration, to the measured times, to a temporary file or to a lock."""
    root = Path(os.path.abspath(view.root))
    if not path.is_relative_to(root):
        return True
    below = path.relative_to(root)
    if below.parts[:1] in ((), ("config.yaml",), ("benchmarks",)) or below.name.startswith("."):
        return True  # These are the configuration, the times that Snakemake measures, temporary files and locks.
    stage = view._stage
    if below.parts[0] == "manifest" and stage.sharded and "manifest" not in view._declared:
        tables = {"images" if column == "splits" else column for column in stage.columns}
        return path.is_dir() or below.suffix == ".json" or below.suffixes[0].removeprefix(".") in tables
    posix = below.as_posix()
    return any(
        # The path is the artefact itself, a file in its folder or next to it, or a folder that contains it.
        posix == name or posix.startswith((f"{name}/", f"{name}.")) or name.startswith(f"{posix}/")
        for name in view._declared
    )
