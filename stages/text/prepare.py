"""Vocabularies, vectors of words and text encoders, made from the training sentences or from files."""

import logging
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.run import Inputs, Job, Outside, outside_files, stage

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.run.jobs import StageRun
    from pipeline.run.layout import Layout

log = logging.getLogger(__name__)
LEARNED = {"dim", "predicts"}
"""The settings that decide vectors of words."""


@stage(
    version=5,
    keys=lambda config: config.tokens.model_dump(),
    reads=lambda config, layout: {"manifest": layout.manifest},
    writes=lambda layout: layout.token_vocabulary,
)
def build_token_vocabulary(run: "StageRun", job: Job) -> None:
    """Count the words of the training captions and keep the most frequent."""
    from pipeline.run.reading.texts import learn_vocabulary, measure_coverage
    from pipeline.storage.commit import publish_record
    from pipeline.storage.json_files import fingerprint
    from pipeline.text.tokens import TermSettings

    tokens = run.config.tokens
    settings = TermSettings(lemmatise=False, stop_words=(), max_ngram=1)
    sizes = {"size": tokens.size, "min_count": tokens.min_count}
    vocabulary = learn_vocabulary(run, "tokens", settings, **sizes, idf=False, normalise=False)
    value = vocabulary.to_dict()
    about = {"fingerprint": fingerprint("tokens", 1, value), "min_count": tokens.min_count}
    about["coverage"] = measure_coverage(run, "tokens", vocabulary, tokens.remedy)
    publish_record(job.path, {**about, **value}, provenance=job.provenance)
    log.info("%d words of %d training sentences", len(vocabulary.terms), vocabulary.n_sentences)


@stage(
    version=4,
    keys=lambda config: {
        "seed": config.seed,
        "text": config.language_text.model_dump(exclude={"treebank"}),
        "words": config.word_vectors.model_dump(include=LEARNED),
    },
    reads=lambda config, layout: {
        "manifest": layout.manifest,
        "vocabulary": layout.token_vocabulary,
        "lines": Outside("lines", Path(config.language_text.file)) if config.language_text.file else None,
    },
    writes=lambda layout: layout.word_vectors,
)
def train_word_vectors(run: "StageRun", job: Job) -> None:
    """Learn word2vec vectors from the training captions and the file of language_text, if any."""
    from pipeline.run.reading.texts import read_extra_text, read_token_vocabulary
    from pipeline.storage.parameters import WORDS, write_parameters
    from pipeline.text.sequences import encode_tokens
    from pipeline.text.wordvectors import train_vectors

    config = run.config
    vocabulary, _ = read_token_vocabulary(run)
    sentences = encode_tokens(chain(run.manifest.texts_of("train"), read_extra_text(config)), vocabulary)
    settings = config.word_vectors.model_dump(include=LEARNED)
    tensors = {"words": train_vectors(sentences, vocabulary.terms, **settings, seed=config.seed)}
    details = {"sentences": len(sentences)}
    write_parameters(job.path, WORDS, tensors, settings=settings, provenance=job.provenance, details=details)
    log.info("%d words learned from %d sentences", len(vocabulary.terms), len(sentences))


def _encoder_reads(config: "Config", layout: "Layout", encoder: str) -> Inputs:
    """The training sentences, the run's word vectors, the file that a person brought, the encoder that made vectors."""
    from pipeline.run.reading.precomputed import given_inputs

    entry = config.text_encoder(encoder)
    own, root = entry.own, config.weights_root
    folder = own.folder(root)
    files = [Outside(name, path) for name, path in own.files(root).items()]
    return {
        "files": files + (outside_files("file", folder) if folder else []),
        "manifest": layout.manifest if entry.learns or own.maker else None,
        "encoder": layout.text_encoder(own.maker) if own.maker else None,
        "source": given_inputs(config, entry) if own.maker else None,
        "vocabulary": layout.token_vocabulary if own.corpus else None,
        "word_vectors": layout.word_vectors if own.corpus else None,
    }


@stage(
    version=9,
    choices=lambda config: [(entry.name,) for entry in config.prepared_text_encoders],
    keys=lambda config, encoder: {"seed": config.seed, "encoder": config.text_encoder(encoder).decisive()},
    reads=_encoder_reads,
    writes=lambda layout, encoder: layout.text_encoder(encoder),
)
def prepare_text_encoder(run: "StageRun", job: Job, encoder: str) -> None:
    """Prepare a text encoder from the training captions, word vectors or files of your own.

    Of vectors made elsewhere it is the encoder that made them, compared with them on some sentences.
    """
    from pipeline.encoders.centred import Centred
    from pipeline.run.reading.texts import RunTextMaterial, measure_coverage
    from pipeline.storage.parameters import TEXT_ENCODER, write_parameters

    entry, material = run.config.text_encoder(encoder), RunTextMaterial(run, encoder)
    prepared = entry.spec.load().prepare(entry, material)
    if entry.centre != "none":
        prepared = Centred.fit(prepared, material.texts(), entry.centre == "whiten")
    details = {"name": encoder, "dim": prepared.dim}
    if entry.own.learns:
        details["coverage"] = measure_coverage(run, encoder, prepared, entry.own.remedy)
    about = {"settings": prepared.settings() | entry.spec.stored_kind, "provenance": job.provenance, "details": details}
    write_parameters(job.path / "model.safetensors", TEXT_ENCODER, prepared.tensors(), **about)
    log.info("%s: %s, %d dimensions", encoder, entry.kind, prepared.dim)
