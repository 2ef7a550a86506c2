"""Stages that parse captions and encode the dependency and phrase trees.

`train-parser` trains a parser, `parse` parses the captions, `build-label-table` counts the labels of the trees, and
`encode-trees` packs the trees into arrays.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import UsageError
from pipeline.run import Inputs, Job, Layout, Outside, Run, ShardJob, StageRun, stage

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.storage.manifest import ShardRows
    from pipeline.text.tree_conversions import Parsed

log = logging.getLogger(__name__)

BATCH_CAPTIONS = 64
"""Maximum number of captions that a worker process parses at a time. If the process dies, only these captions are not
parsed."""
MAX_LOGGED = 10
"""Maximum number of unparsed captions, and of reasons, that the log shows for each shard."""
MAX_RECORDED = 1000
"""Maximum number of unparsed captions that the commit record of a shard lists. The CoNLL-U file of the shard marks all
of them."""
FILE_KINDS = ("conllu", "brackets")
"""Keys of `parse` that name files with parses."""
Engine = Callable[["ShardRows", list[str]], "Iterator[Parsed]"]


def _treebank(config: "Config") -> dict[str, Path]:
    """Return the paths of the three files of the treebank by the keys `train`, `dev` and `test`.

    Raises UsageError if the configuration does not name all three files.
    """
    named = config.parse.treebank.model_dump()
    if missing := [part for part, name in named.items() if name is None]:
        raise UsageError(
            f"The key parse.treebank.{missing[0]} is null. Set this key to the name of a CoNLL-U file in weights_root,"
            " or name a trained spaCy pipeline in parse.pipeline."
        )
    return {part: Path(config.weights_root) / name for part, name in named.items()}


def _spacy(run: Run) -> dict[str, str]:
    """Return {"spacy": version}. The version is part of the provenance of the trained parser and of the parses."""
    from pipeline.text.parsing import require_spacy

    return {"spacy": require_spacy().__version__}


@stage(
    version=4,
    keys=lambda config: {"seed": config.seed, "training": config.parse.training.model_dump()},
    threads=8,
    memory=3000,
    reads=lambda config, layout: {
        "treebank": {part: Outside(part, path) for part, path in _treebank(config).items()},
    },
    also=_spacy,
    writes=lambda layout: layout.parser,
)
def train_parser(run: StageRun, job: Job) -> None:
    """Train a spaCy tagger and dependency parser on the CoNLL-U files of the key parse.treebank.

    The stage stores the trained pipeline with its scores on the dev and test files.
    """
    from pipeline.storage.parsers import publish_parser
    from pipeline.storage.texts import text_lines
    from pipeline.text.dependencies import read_conllu
    from pipeline.text.parsing import judge, train, write_corpus

    settings = run.config
    files = run.inputs.paths("treebank")
    work = job.path / ".training"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        corpora = {part: work / f"{part}.spacy" for part in files}
        words = {
            part: write_corpus([entry.parse for entry in read_conllu(text_lines(path), str(path))], corpora[part])
            for part, path in files.items()
        }
        trained = train(work, words["train"], settings.parse.training.epochs, settings.seed)
        scores = {part: judge(trained, corpora[part]) for part in ("dev", "test")}
        log.info("The parser has these scores on the dev and test files of the treebank, in percent: %s", scores)
        used = {"training": settings.parse.training.model_dump(), "seed": settings.seed, "spacy": job.digests["spacy"]}
        publish_parser(job.path, trained, {"settings": used, **scores}, job.provenance)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _spacy_pipeline(run: Run) -> tuple[str, str]:
    """Return the name or path of the spaCy pipeline that parses the captions, and the digest of the pipeline.

    The pipeline is named by the key parse.pipeline. If this key is null, the pipeline is the parser that the run has
    trained.
    """
    from pipeline.storage.parsers import find_parser
    from pipeline.text.parsing import require_spacy

    require_spacy()
    pipeline = run.config.parse.pipeline
    trained = run.layout.parser.path if pipeline is None else None
    return find_parser(trained, pipeline, Path(run.config.weights_root))


def _files(config: "Config") -> dict[str, Path]:
    """Return the files with parses that another program made, as far as the configuration names them: `conllu` or
    `brackets` -> path."""
    files = {kind: getattr(config.parse, kind) for kind in FILE_KINDS}
    return {kind: Path(config.data_root) / name for kind, name in files.items() if name is not None}


def _engine_keys(config: "Config") -> dict:
    """Return the settings that decide the parses, in addition to the captions and the parser."""
    if config.parse.engine == "files":
        return {"engine": "files"}
    from pipeline.text.parsing import MAX_WORDS

    return {"engine": "spacy", "pipeline": config.parse.pipeline, "max_words": MAX_WORDS}


def _parse_reads(config: "Config", layout: Layout) -> Inputs:
    if config.parse.engine == "files":
        # Parses are matched by image names. The digests of the manifest's columns do not cover these names, so the
        # whole manifest is an input.
        files = {kind: Outside(kind, path) for kind, path in _files(config).items()}
        return {"manifest": layout.manifest, "files": files}
    return {"parser": layout.parser if config.parse.pipeline is None else None}


def _parser(run: Run) -> dict[str, str]:
    """Return the digest of the spaCy pipeline and the version of spaCy, or {} if the parses come from files."""
    if run.config.parse.engine == "files":
        return {}
    return {"parser": _spacy_pipeline(run)[1], **_spacy(run)}


@stage(
    version=3,
    keys=_engine_keys,
    reads=_parse_reads,
    also=_parser,
    columns=("sentences",),
    writes=lambda layout: layout.parses,
)
def parse(run: StageRun, jobs: Iterator[ShardJob]) -> Iterator[int]:
    """Parse the captions with spaCy, or read their parses from files of another parser.

    A caption without a parse is stored as a chain of its words, with the reason. The stage writes the parses of each
    shard, and yields the number of each written shard.
    """
    from tqdm import tqdm

    from pipeline.storage.texts import write_parses
    from pipeline.text.dependencies import format_conllu

    engine = ENGINES[run.config.parse.engine](run)
    for job in jobs:
        rows = job.rows
        texts = run.manifest.texts(job.number)
        conllu = []
        brackets = []
        fallbacks = []
        ids = range(rows.first_sentence, rows.last_sentence)
        progress = tqdm(engine(rows, texts), "parse", len(texts), unit=" sentences", disable=None)
        for sentence_id, text, parsed in zip(ids, texts, progress, strict=True):
            comments = {"sent_id": sentence_id, "text": " ".join(text.split())}
            if parsed.fallback:
                fallbacks.append({"sentence_id": sentence_id, "reason": parsed.fallback})
                comments["fallback"] = " ".join(parsed.fallback.split())
            conllu.append(format_conllu(parsed.parse, comments.items()))
            brackets.append(f"{sentence_id}\t{parsed.tree.to_brackets()}\n")
        parser = {name: job.digests[name] for name in ("parser", "spacy") if name in job.digests}
        details = {"engine": _engine_keys(run.config), **parser, "n_fallbacks": len(fallbacks)}
        details["fallbacks"] = fallbacks[:MAX_RECORDED]
        written = "".join(conllu), "".join(brackets), len(texts)
        write_parses(job.path, *written, provenance=job.provenance, details=details)
        for fallback in fallbacks[:MAX_LOGGED]:
            log.warning(
                "The caption with the sentence_id %d is stored as a chain of its words, because it was not parsed: %s",
                fallback["sentence_id"], fallback["reason"],
            )  # fmt: skip
        log.info(
            "This shard has %d captions, of which %d were not parsed and are stored as chains of their words",
            len(texts),
            len(fallbacks),
        )
        for reason, count in Counter(fallback["reason"].partition(":")[0] for fallback in fallbacks).most_common(
            MAX_LOGGED
        ):
            log.info("%6d %s", count, reason)
        yield job.number


def _find_in_files(run: StageRun) -> Engine:
    from pipeline.storage.texts import text_lines
    from pipeline.text.dependencies import read_conllu
    from pipeline.text.parsing import index_parses, index_trees, match, sentence_keys
    from pipeline.text.phrase_trees import read_brackets

    manifest = run.manifest
    kinds = {"conllu": (read_conllu, index_parses), "brackets": (read_brackets, index_trees)}

    def engine(rows: "ShardRows", texts: list[str]) -> "Iterator[Parsed]":
        images = manifest.table("images", rows.number).select(["member", "path"]).to_pylist()
        names = [image["member"] or image["path"] for image in images]
        owners = manifest.owners(rows.number).tolist()
        keys = sentence_keys([names[owner - rows.first_image] for owner in owners], rows.first_sentence)
        wanted = {key for sentence_keys in keys for key in sentence_keys}
        indexed = {}
        for kind, path in run.inputs.paths("files").items():
            read, index = kinds[kind]
            indexed[kind] = index(read(text_lines(path), str(path)), wanted, str(path))
        parses, trees = (indexed.get(kind, {}) for kind in FILE_KINDS)
        return (match(text, own, parses, trees) for text, own in zip(texts, keys, strict=True))

    return engine


def _run_spacy(run: StageRun) -> Engine:
    from pipeline.compute.workers import Failure, isolated_map
    from pipeline.storage.parsers import load_parser
    from pipeline.text.parsing import parse_texts
    from pipeline.text.tree_conversions import fall_back

    name, _ = _spacy_pipeline(run)
    load_parser(name)  # The workers load the parser, too. If it cannot be loaded, this call fails before they start.

    def engine(rows: "ShardRows", texts: list[str]) -> "Iterator[Parsed]":
        batches = [texts[at : at + BATCH_CAPTIONS] for at in range(0, len(texts), BATCH_CAPTIONS)]
        outcomes = isolated_map(partial(parse_texts, partial(load_parser, name)), batches, run.config.parse.workers)
        for batch, outcome in zip(batches, outcomes, strict=True):
            if isinstance(outcome, Failure):
                outcome = [fall_back(text, f"its batch could not be parsed: {outcome.reason}") for text in batch]
            yield from outcome

    return engine


ENGINES = {"files": _find_in_files, "spacy": _run_spacy}
"""Value of parse.engine -> function that opens this engine for a run. The opened engine is a function, too. It gets the
rows and the captions of a shard, and yields a Parsed for each caption, in the order of the captions."""


@stage(
    version=4,
    reads=lambda config, layout: {
        "manifest": layout.manifest,
        "vocabulary": layout.token_vocabulary,
        "parses": layout.parses,
    },
    writes=lambda layout: layout.labels,
)
def build_label_table(run: StageRun, job: Job) -> None:
    """Count the relations and phrase labels in the trees of the training captions, and number them."""
    from pipeline.run.reading.texts import read_analyzer, read_trees
    from pipeline.storage.commit import publish_record
    from pipeline.storage.json_files import fingerprint
    from pipeline.text.trees import count_labels

    manifest = run.manifest
    analyze = read_analyzer(run)
    is_training = iter((manifest.splits == "train")[manifest.sentence_images])
    table = count_labels(
        sentence
        for number in range(manifest.n_shards)
        for sentence in read_trees(run, number, analyze)
        if next(is_training)
    )
    value = table.to_dict()
    publish_record(job.path, {"fingerprint": fingerprint("labels", 1, value), **value}, provenance=job.provenance)
    log.info("The label table has %d relations and %d phrase labels", len(table.relations), len(table.phrases))


@stage(
    version=5,
    reads=lambda config, layout: {
        "parses": layout.parses,
        "vocabulary": layout.token_vocabulary,
        "labels": layout.labels,
    },
    columns=("sentences",),
    writes=lambda layout: layout.sentences("trees"),
)
def encode_trees(run: StageRun, jobs: Iterator[ShardJob]) -> Iterator[int]:
    """Encode the dependency and phrase trees of the captions as arrays.

    The words are numbered by the token vocabulary, and the labels by the label table. The stage writes one file per
    shard, and yields the number of each written shard.
    """
    from pipeline.run.reading.texts import read_token_vocabulary, read_trees
    from pipeline.storage.commit import read_record
    from pipeline.storage.texts import KINDS, TREES, write_sentences
    from pipeline.text.tokens import make_analyzer
    from pipeline.text.trees import LabelTable, pack_trees

    vocabulary, _ = read_token_vocabulary(run)
    labels = LabelTable.from_dict(read_record(run.inputs.artefact("labels").path))
    analyze = make_analyzer(vocabulary.settings)
    for job in jobs:
        sentences = list(read_trees(run, job.number, analyze))
        packed = zip(KINDS, pack_trees(sentences, vocabulary, labels), strict=True)
        arrays = {f"{kind}_{name}": array for kind, trees in packed for name, array in vars(trees).items()}
        misfits = sum(not sentence.fits for sentence in sentences)
        owners = run.manifest.owners(job.number)
        details = {"n_misfits": misfits}
        write_sentences(job.path, TREES, arrays, job.sentence_id, owners, provenance=job.provenance, details=details)
        log.info(
            "This shard has %d captions, of which %d are stored as chains of their words, because the words of their"
            " parses are different",
            len(sentences),
            misfits,
        )
        yield job.number
