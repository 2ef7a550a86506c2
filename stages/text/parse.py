"""`parse`: sentences as dependency and phrase trees, by spaCy or from another parser's files."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.run import Inputs, Job, Outside, Run, Stage
from stages.inputs import named

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.storage.manifest import ShardRows
    from pipeline.text.tree_conversions import Parsed

log = logging.getLogger(__name__)

BATCH = 64
"""Sentences that a worker takes at a time: its death costs no more of them."""
SHOWN, LISTED = 10, 1000
"""Unparsed sentences that the log shows and that the commit lists; the CoNLL-U file marks all of them."""
FILES = ("conllu", "brackets")
Engine = Callable[["ShardRows", list[str]], "Iterator[Parsed]"]


def parse(run: Run) -> Callable[[Job], None]:
    """Parse the captions, or read their parses from files."""
    from collections import Counter

    from tqdm import tqdm

    from pipeline.storage.texts import write_parses
    from pipeline.text.dependencies import format_conllu

    engine = ENGINES[run.config.parse.engine](run)

    def make(job: Job) -> None:
        rows, texts = job.rows, run.manifest.texts(job.number)
        conllu, brackets, fallbacks = [], [], []
        ids = range(rows.first_sentence, rows.last_sentence)
        progress = tqdm(engine(rows, texts), "parse", len(texts), unit=" sentences", disable=None)
        for sentence_id, text, parsed in zip(ids, texts, progress, strict=True):
            comments = {"sent_id": sentence_id, "text": " ".join(text.split())}
            if parsed.fallback:
                fallbacks.append({"sentence_id": sentence_id, "reason": parsed.fallback})
                comments["fallback"] = " ".join(parsed.fallback.split())
            conllu.append(format_conllu(parsed.parse, comments.items()))
            brackets.append(f"{sentence_id}\t{parsed.tree.to_brackets()}\n")
        parser = {name: job.inputs[name] for name in ("parser", "spacy") if name in job.inputs}
        details = {"engine": _engine_keys(run.config), **parser, "n_fallbacks": len(fallbacks)}
        details["fallbacks"] = fallbacks[:LISTED]
        written = "".join(conllu), "".join(brackets), len(texts)
        write_parses(job.path, *written, provenance=job.provenance, details=details)
        for fallback in fallbacks[:SHOWN]:
            log.warning("sentence %(sentence_id)d: %(reason)s", fallback)
        log.info("%d sentences; %d were not parsed and are stored as chains", len(texts), len(fallbacks))
        for reason, count in Counter(fallback["reason"].partition(":")[0] for fallback in fallbacks).most_common(SHOWN):
            log.info("%6d %s", count, reason)

    return make


def _find_in_files(run: Run) -> Engine:
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
        for kind, path in _files(run.config).items():
            read, index = kinds[kind]
            indexed[kind] = index(read(text_lines(path), str(path)), wanted, str(path))
        parses, trees = (indexed.get(kind, {}) for kind in FILES)
        return (match(text, own, parses, trees) for text, own in zip(texts, keys, strict=True))

    return engine


def _run_spacy(run: Run) -> Engine:
    from functools import partial

    from pipeline.storage.parsers import load_parser
    from pipeline.text.parsing import parse_texts
    from pipeline.text.tree_conversions import fall_back
    from pipeline.workers import Failure, isolated_map

    name, _ = _spacy_pipeline(run)
    load_parser(name)  # fails here rather than in the workers

    def engine(rows: "ShardRows", texts: list[str]) -> "Iterator[Parsed]":
        batches = [texts[at : at + BATCH] for at in range(0, len(texts), BATCH)]
        outcomes = isolated_map(partial(parse_texts, partial(load_parser, name)), batches, run.config.parse.workers)
        for batch, outcome in zip(batches, outcomes, strict=True):
            if isinstance(outcome, Failure):
                outcome = [fall_back(text, f"its batch could not be parsed: {outcome.reason}") for text in batch]
            yield from outcome

    return engine


def _spacy_pipeline(run: Run) -> tuple[str, str]:
    """The name of spaCy's pipeline, and its digest."""
    from pipeline.storage.parsers import find_parser
    from pipeline.text.parsing import require_spacy

    require_spacy()
    pipeline = run.config.parse.pipeline
    trained = run.layout.parser.path if pipeline is None else None
    return find_parser(trained, pipeline, Path(run.config.weights_root))


ENGINES = {"files": _find_in_files, "spacy": _run_spacy}
"""parse.engine -> what opens it for a run: a function from a shard's rows and texts to their parses."""


def _files(config: "Config") -> dict[str, Path]:
    """The files of another parser, by their kind."""
    files = {kind: getattr(config.parse, kind) for kind in FILES}
    return {kind: Path(config.data_root) / name for kind, name in files.items() if name is not None}


def _engine_keys(config: "Config") -> dict:
    """What decides the parses beside the sentences and the parser."""
    if config.parse.engine == "files":
        return {"engine": "files"}
    from pipeline.text.parsing import MAX_WORDS

    return {"engine": "spacy", "pipeline": config.parse.pipeline, "max_words": MAX_WORDS}


def _reads(config, layout) -> Inputs:
    if config.parse.engine == "files":
        return {kind: Outside(path) for kind, path in _files(config).items()}
    return named(layout.parser) if config.parse.pipeline is None else {}


def _parser(run: Run) -> dict[str, str]:
    """The digest of spaCy's pipeline, and its version."""
    if run.config.parse.engine == "files":
        return {}
    import spacy

    return {"parser": _spacy_pipeline(run)[1], "spacy": spacy.__version__}


STAGE = Stage(
    parse,
    version=3,
    sharded=True,
    keys=_engine_keys,
    reads=_reads,
    also=_parser,
    columns=("sentences",),
    writes=lambda layout: layout.parses,
)
