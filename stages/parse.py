"""`parse`: the sentences of one shard as dependency and phrase trees, by spaCy or from another parser's files."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages import options

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.storage.manifest import Manifest, ShardRows
    from pipeline.text.parsed import Parsed

log = logging.getLogger(__name__)
SHOWN, LISTED = 10, 1000
"""Sentences without a parse that the log shows and that the sidecar lists; the CoNLL-U file marks all of them."""


@click.command("parse")
@options.manifest
@options.shard
@click.option(
    "--parser",
    "parser_folder",
    type=options.FOLDER,
    help="What `train-parser` wrote, for parse.engine spacy without a parse.pipeline.",
)
@options.config
@options.output("file", "The parses in CoNLL-U; beside them the phrase trees, with the ending .brackets.")
def command(
    manifest_folder: Path, shard: int, parser_folder: Path | None, config_path: Path | None, output: Path
) -> None:
    """Parse the sentences of one shard, or find their parses in files."""
    from collections import Counter

    from tqdm import tqdm

    from pipeline import config
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.trees import write_parses
    from pipeline.text.conllu import format_conllu

    settings, manifest = config.load(config_path), Manifest(manifest_folder)
    rows = manifest.shard(shard)
    texts = manifest.texts(rows)
    parsed, source, told = ENGINES[settings.parse.engine](settings, manifest, rows, texts, parser_folder)

    conllu, brackets, fallbacks = [], [], []
    progress = tqdm(parsed, "parse", len(texts), unit=" sentences", disable=None)
    for sentence_id, text, found in zip(range(rows.first_sentence, rows.last_sentence), texts, progress, strict=True):
        comments = {"sent_id": sentence_id, "text": " ".join(text.split())}
        if found.fallback:
            fallbacks.append({"sentence_id": sentence_id, "reason": found.fallback})
            comments["fallback"] = " ".join(found.fallback.split())
        conllu.append(format_conllu(found.parse, comments.items()))
        brackets.append(f"{sentence_id}\t{found.tree.to_brackets()}\n")

    inputs = {"sentences": rows.fingerprints["sentences"], **source}
    digest = fingerprint("parses", 2, told, inputs)
    details = {"inputs": inputs, "engine": told, "n_fallbacks": len(fallbacks), "fallbacks": fallbacks[:LISTED]}
    write_parses(output, "".join(conllu), "".join(brackets), len(texts), fingerprint=digest, details=details)
    for fallback in fallbacks[:SHOWN]:
        log.warning("sentence %(sentence_id)d: %(reason)s", fallback)
    log.info("%d sentences, %d of them chains for want of a parse", len(texts), len(fallbacks))
    for reason, count in Counter(fallback["reason"].partition(":")[0] for fallback in fallbacks).most_common(SHOWN):
        log.info("%6d %s", count, reason)


def _find_in_files(
    settings: "Config", manifest: "Manifest", rows: "ShardRows", texts: list[str], parser_folder: Path | None
) -> "tuple[Iterator[Parsed], dict[str, str], dict]":
    from pipeline.storage.reading import file_sha256
    from pipeline.storage.trees import text_lines
    from pipeline.text.brackets import read_brackets
    from pipeline.text.conllu import read_conllu
    from pipeline.text.matching import index_parses, index_trees, match, sentence_keys

    owners = manifest.sentence_images[rows.first_sentence : rows.last_sentence].tolist()
    images = manifest.images.slice(rows.first_image, rows.last_image - rows.first_image)
    names = [member or path for member, path in zip(*(images[c].to_pylist() for c in ("member", "path")), strict=True)]
    keys = sentence_keys([names[owner - rows.first_image] for owner in owners], rows.first_sentence)
    wanted = {key for own in keys for key in own}
    source, found = {}, {}
    kinds = {"conllu": (read_conllu, index_parses), "brackets": (read_brackets, index_trees)}
    for kind, (read, index) in kinds.items():
        if name := getattr(settings.parse, kind):
            path = Path(settings.data_root) / name
            found[kind] = index(read(text_lines(path), str(path)), wanted, str(path))
            source[kind] = file_sha256(path)
    parses, trees = (found.get(kind, {}) for kind in kinds)
    matched = (match(text, own, parses, trees) for text, own in zip(texts, keys, strict=True))
    return matched, source, {"engine": "files"}


def _run_spacy(
    settings: "Config", manifest: "Manifest", rows: "ShardRows", texts: list[str], parser_folder: Path | None
) -> "tuple[Iterator[Parsed], dict[str, str], dict]":
    from functools import partial

    from pipeline.storage.parsers import find_parser, load_parser
    from pipeline.text.parsed import fall_back
    from pipeline.text.parsing import BatchParser, require_spacy
    from pipeline.workers import Failure, isolated_map

    chosen = settings.parse
    spacy = require_spacy()
    name, digest = find_parser(parser_folder, chosen.pipeline, Path(settings.weights_root))
    load_parser(name)  # what is wrong with it is better said here than by the workers
    batches = [texts[at : at + chosen.batch_sentences] for at in range(0, len(texts), chosen.batch_sentences)]

    def parsed() -> "Iterator[Parsed]":
        outcomes = isolated_map(BatchParser(partial(load_parser, name), chosen.max_words), batches, chosen.workers)
        for batch, outcome in zip(batches, outcomes, strict=True):
            if isinstance(outcome, Failure):
                outcome = [fall_back(text, f"its batch could not be parsed: {outcome.reason}") for text in batch]
            yield from outcome

    told = {"engine": "spacy", "pipeline": chosen.pipeline, "max_words": chosen.max_words, "spacy": spacy.__version__}
    return parsed(), {"parser": digest}, told


ENGINES = {"files": _find_in_files, "spacy": _run_spacy}
"""parse.engine -> how the sentences' trees are found, what they were made from, and how."""
