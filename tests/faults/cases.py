"""Every command that writes, as a case of the whole run: what it is called with, and what it makes."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import tiny_run
from tiny_run import N_SHARDS

NEEDS = {"train_parser": "spacy", "train_word_vectors": "gensim"}
"""Module of a command -> the library without which it refuses to run."""
REFUSING = {"export", "index_add", "init"}
"""Commands that refuse to replace what is there."""
DOCUMENTS = ("all", "title", "tags", "description")


class Case(NamedTuple):
    """The arguments of each call of the command of module `stage`, and the files and folders that they make."""

    stage: str
    calls: list[list[str]]
    made: list[Path]

    @property
    def possible(self) -> bool:
        """Whether the library is there that the command needs."""
        return self.stage not in NEEDS or find_spec(NEEDS[self.stage]) is not None


def over_shards(config: Path, run: Path, *names: str) -> list[list[object]]:
    """The call of a stage over shards that makes all of them, by a configuration of its own."""
    return [[*names, "--run", run, "--config", config, "--again"]]


def whole(config: Path, run: Path, *names: str) -> list[list[object]]:
    """The call of a stage of the run by a configuration of its own."""
    return [[*names, "--run", run, "--config", config]]


def all_cases(root: Path, place: Path) -> dict[str, Case]:
    """The cases by name, that of a rule where there is one, in an order in which each finds what it needs.

    The collection is in `root`, the run in `place / "run"`, which another demo is drawn beside.
    """
    run = place / "run"
    fast = {name: Case(name, *value) for name, value in tiny_run.stages(root, run).items()}
    later = [*_images(root, run), *_texts(root, run), *_models(root, run), *_indices(root, run), *_studies(root, run)]
    later += [*_applied(root, run, place), *_generators(root, run), *_pages(root, run, place)]
    cases = fast | {name: Case(stage, calls, made) for name, stage, calls, made in later}
    return {
        name: Case(case.stage, [list(map(str, call)) for call in case.calls], case.made) for name, case in cases.items()
    }


Found = Iterable[tuple[str, str, list[list[object]], list[Path]]]


def _images(root: Path, run: Path) -> Found:
    tuned = run / "encoders/tuned"
    yield "finetune", "finetune", whole(root / "network.yaml", run, "tuned"), [tuned]
    calls = [call for name in ("eyes", "pooled") for call in whole(root / "encoders.yaml", run, name)]
    yield "prepare_encoder", "prepare_encoder", calls, [run / "encoders/eyes", run / "encoders/pooled"]
    yield "extract", "extract", over_shards(root / "network.yaml", run, "tuned"), [run / "features/tuned"]
    shards = [run / f"regions/tuned/shard-{n:05d}.h5{end}" for n in range(N_SHARDS) for end in ("", ".json")]
    calls = over_shards(root / "network.yaml", run, "tuned")
    yield "extract_regions", "extract_regions", calls, [*shards, run / "regions/tuned/parts"]
    calls = over_shards(root / "encoders.yaml", run, "pooled")
    yield "pool_regions", "pool_regions", calls, [run / "features/pooled"]
    components = [run / f"reduced/tuned/components.{end}" for end in ("safetensors", "json")]
    yield "learn_components", "learn_components", whole(root / "network.yaml", run, "tuned"), components
    shards = [run / f"reduced/tuned/shard-{n:05d}.h5{end}" for n in range(N_SHARDS) for end in ("", ".json")]
    calls = over_shards(root / "network.yaml", run, "tuned")
    yield "reduce_regions", "reduce_regions", calls, [*shards, run / "reduced/tuned/parts"]


def _texts(root: Path, run: Path) -> Found:
    text = run / "text"
    mild = text / "simulated/mild.parquet"
    calls = whole(root / "study.yaml", run, "mild")
    yield "simulate_documents", "simulate_documents", calls, [mild.parent]
    fields = [text / "documents" / name for name in DOCUMENTS[1:]]
    calls = [call for folder in fields for call in over_shards(root / "study.yaml", run, folder.name)]
    yield "encode_fields", "encode_documents", calls, fields
    calls = whole(root / "adopted.yaml", run, "words")
    yield "prepare_words", "prepare_text_encoder", calls, [text / "encoders/words"]
    yield "encode_words", "encode_sentences", over_shards(root / "adopted.yaml", run, "words"), [text / "words"]
    yield "import_sentences", "import_sentences", over_shards(root / "spoken.yaml", run, "spoken"), [text / "spoken"]
    learned = text / "word-vectors.safetensors"
    calls = whole(root / "network.yaml", run)
    yield "train_word_vectors", "train_word_vectors", calls, [learned, learned.with_suffix(".json")]
    yield "train_parser", "train_parser", whole(root / "network.yaml", run), [run / "parser"]
    yield "parse", "parse", over_shards(root / "network.yaml", run), [text / "parses"]
    calls = whole(root / "network.yaml", run)
    yield "build_label_table", "build_label_table", calls, [text / "labels.json"]
    yield "encode_trees", "encode_trees", over_shards(root / "network.yaml", run), [text / "trees"]


def _models(root: Path, run: Path) -> Found:
    models, embeddings = run / "models", run / "embeddings"
    yield "adopt", "adopt", whole(root / "adopted.yaml", run, "zero-shot"), [models / "zero-shot"]
    trained = (
        ("train", "gru", "network"), ("train_sets", "dvsa", "network"), ("train_dense", "hmlstm", "dense"),
        ("train_trees", "sdtrnn", "trees"),
    )  # fmt: skip
    for name, model, config in trained:
        yield name, "train", whole(root / f"{config}.yaml", run, model), [models / model]
    calls = [call for row in ("gru", "dvsa") for call in over_shards(root / "network.yaml", run, row)]
    yield "embed_learned", "embed", calls, [embeddings / "gru", embeddings / "dvsa"]
    yield "embed_trees", "embed", over_shards(root / "trees.yaml", run, "sdtrnn"), [embeddings / "sdtrnn"]
    for name, row in (("fit_csls", "gru"), ("fit_csls_of_sets", "dvsa")):
        calls = whole(root / "network.yaml", run, f"{row}-csls")
        yield name, "fit_csls", calls, [models / f"{row}-csls"]
    calls = whole(root / "network.yaml", run, "both")
    yield "combine", "combine", calls, [models / "both"]
    calls = over_shards(root / "network.yaml", run, "both")
    yield "join_embeddings", "join_embeddings", calls, [embeddings / "both"]
    folder, given = run / "alignments/dvsa", ["--run", run, "--config", root / "network.yaml"]
    files = [folder / f"{split}.jsonl" for split in ("train", "dev")]
    yield "align", "align", [["dvsa", split, *given] for split in ("train", "dev")], files
    phrases, spoken = run / "phrases/hmlstm/test", whole(root / "dense.yaml", run, "hmlstm", "test")
    ranking = run / "evaluation/phrases/hmlstm.test.json"
    yield "embed_phrases", "embed_phrases", spoken, [phrases]
    yield "rank_phrases", "rank_phrases", spoken, [ranking, ranking.with_suffix(".ranks.npz")]


def _indices(root: Path, run: Path) -> Found:
    bundle, given = run / "index/ncca", ["--run", run, "--config", root / "config.yaml", "--output"]
    grown, shrunk = run / "index/grown", run / "index/shrunk"
    yield "build_sets", "build_index", whole(root / "network.yaml", run, "dvsa"), [run / "index/dvsa"]
    yield "index_remove", "index_remove", [["--index", bundle, "--image", 3, *given, shrunk]], [shrunk]
    yield "index_add", "index_add", [["--index", shrunk, "--from", bundle, "--output", grown]], [grown]
    nearest, asked = run / "nearest.h5", ["--gallery", "images", "--queries", 20, "--neighbours", 5]
    calls = [["ncca", *asked, *given, nearest]]
    yield "ground_truth", "ground_truth", calls, [nearest, nearest.with_name("nearest.h5.json")]


def _applied(root: Path, run: Path, place: Path) -> Found:
    bundle, applied, arrays = run / "index/gru", place / "applied", place / "arrays"
    yield "build_gru", "build_index", whole(root / "network.yaml", run, "gru"), [bundle]
    given = ["--config", root / "applied.yaml", "--output", applied]
    yield "apply", "apply", [[bundle, root / "images", *given]], [applied]
    yield "export", "export", [[bundle, "--to", "npy", "--output", arrays]], [arrays]


def _studies(root: Path, run: Path) -> Found:
    study, sums, folder = root / "study.yaml", run / "moments/study", run / "study"
    calls = over_shards(study, run, "study/target")
    yield "accumulate_folds", "accumulate", calls, [sums / "target"]
    calls = [call for name in DOCUMENTS for call in over_shards(study, run, f"study/auxiliary/{name}")]
    yield "accumulate_auxiliary", "accumulate", calls, [sums / "auxiliary"]
    yield "study", "study", whole(study, run), [folder / "cells", folder / "study.json"]
    tables = folder / "tables.md"
    yield "tabulate", "tabulate", whole(study, run), [tables, tables.with_name("tables.md.json")]
    yield "sweep", "sweep", whole(study, run, "ncca"), [run / "sweeps/ncca"]
    yield "reproduce", "reproduce", whole(study, run), [run / "reproduction.md", run / "transfer.html"]


def _generators(root: Path, run: Path) -> Found:
    made, network, evaluation = run / "generators", root / "network.yaml", run / "evaluation/descriptions"
    for name, rule in (("mrnn", "train_generator"), ("mrnn-regions", "train_region_generator")):
        yield rule, "train_generator", whole(network, run, name), [made / name]
    for what, name, subject in (("", "mrnn", "test"), ("_boxes", "mrnn-regions", "test.boxes")):
        calls = whole(network, run, name, subject)
        yield f"describe{what}", "describe", calls, [run / f"descriptions/{name}.{subject}"]
        judged = evaluation / f"{name}.{subject}.json"
        files = [judged, judged.with_suffix(".statistics.npz")]
        yield f"evaluate{what or '_descriptions'}", "evaluate_descriptions", calls, files
    ranked = run / "evaluation/mrnn-perplexity.test.all-sentences"
    made_by = whole(root / "ranked.yaml", run, "mrnn", "test", "all-sentences")
    files = [ranked.with_name(f"{ranked.name}{end}") for end in (".json", ".ranks.npz")]
    yield "rank_sentences", "rank_sentences", made_by, files
    folder = run / "described"
    given = ["--run", run, "--index", run / "index/dvsa", "--config", network, "--output", folder]
    calls = [["mrnn", root / "images/00.png", *given]]
    yield "describe_photographs", "describe_photographs", calls, [folder]


def _pages(root: Path, run: Path, place: Path) -> Found:
    yield "report", "report", whole(root / "shown.yaml", run), [run / "report/index.html"]
    demo = place / "demo"
    drawn = ["--config", root / "demo.yaml", "--processes", 0]
    started = place / "started.yaml"
    yield "init", "init", [[root, "--output", started]], [started]
    yield "make_demo", "make_demo", [[*drawn, "--output", demo]], [demo]
