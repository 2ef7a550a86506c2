"""Stages that learn words and word vectors from the training captions, and encode captions and weak texts.

Weak texts are the titles, tags and descriptions of the collection, or texts that `simulate-documents` makes from
captions.
"""

import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import UsageError
from pipeline.run import Inputs, Job, Layout, Outside, ShardJob, StageRun, stage

if TYPE_CHECKING:
    from pipeline.config.names import Config

log = logging.getLogger(__name__)
WORD2VEC_KEYS = {"dim", "predicts"}
"""Keys of word_vectors that decide the vectors which `train-word-vectors` learns."""


def _text_keys(config: "Config", encoder: str) -> dict[str, str]:
    """Return the settings on which the stored vectors of a text encoder depend: the number format in which they are
    stored (`storage`) and, only for an encoder from another library, the precision of the computation."""
    entry = config.text_encoder(encoder)
    precision = {"precision": config.extract.precision} if entry.spec.library else {}
    return {"storage": entry.storage, **precision}


@stage(
    version=7,
    gpu=True,
    choices=lambda config: [(one.name,) for one in config.text_encoders if one.spec.reads == "texts"],
    keys=_text_keys,
    memory=4000,
    reads=lambda config, layout, encoder: {"encoder": layout.text_encoder(encoder)},
    columns=("sentences",),
    writes=lambda layout, encoder: layout.sentences(encoder),
)
def encode_sentences(run: StageRun, jobs: Iterator[ShardJob], encoder: str) -> Iterator[int]:
    """Encode the captions with a text encoder.

    The stage writes one file of vectors per shard, and yields the number of each written shard.
    """
    from pipeline.run.reading.texts import encode_on_device
    from pipeline.storage.texts import write_vectors

    encode = encode_on_device(run, encoder)
    storage = run.config.text_encoder(encoder).storage
    for job in jobs:
        vectors = encode(run.manifest.texts(job.number))
        owners = run.manifest.owners(job.number)
        ids = job.sentence_id
        write_vectors(job.path, vectors, ids, owners, encoder=encoder, storage=storage, provenance=job.provenance)
        yield job.number


@stage(
    version=3,
    choices=lambda config: [(name,) for name, chosen in config.documents.items() if chosen.simulate is not None],
    keys=lambda config, documents: {
        "seed": config.seed,
        "splits": config.auxiliary.splits,
        "simulate": config.documents[documents].simulate.model_dump(),
    },
    reads=lambda config, layout, documents: {"manifest": layout.manifest},
    writes=lambda layout, documents: layout.simulated(documents),
)
def simulate_documents(run: StageRun, job: Job, documents: str) -> None:
    """Simulate titles, tags and descriptions from the captions of auxiliary.splits, with the noise of
    `documents.NAME.simulate`."""
    import numpy as np

    from pipeline.collections.weakening import simulate
    from pipeline.storage.tables import write_table

    manifest = run.manifest
    settings = run.config
    texts = manifest.sentences.filter(
        np.isin(manifest.splits.astype(str), settings.auxiliary.splits)[manifest.sentence_images]
    )
    noise = settings.documents[documents].simulate
    assert noise is not None
    table = simulate(texts["image_id"].to_numpy(), texts["text"].to_pylist(), noise, settings.seed)
    details = {"documents": documents}
    write_table(job.path, "simulated-documents", table, provenance=job.provenance, details=details)


def _document_reads(config: "Config", layout: Layout, documents: str, encoder: str) -> Inputs:
    if not config.text_encoder(encoder).prepared:
        raise UsageError(
            f"The text encoder {encoder} has precomputed vectors of captions, but the run must also encode the weak"
            f" texts of documents.{documents}. In the entry of {encoder} in text_encoders, set made_by to the encoder"
            " that made the vectors."
        )
    is_simulated = config.documents[documents].simulate is not None
    return {
        "encoder": layout.text_encoder(encoder),
        "documents": layout.simulated(documents) if is_simulated else None,
    }


@stage(
    version=7,
    gpu=True,
    choices=lambda config: [(name, one.name) for name in config.documents for one in config.text_encoders],
    keys=lambda config, documents, encoder: {
        documents: config.documents[documents].model_dump(),
        **_text_keys(config, encoder),
    },
    memory=3000,
    reads=_document_reads,
    columns=("images", "documents"),
    writes=lambda layout, documents, encoder: layout.documents(documents, encoder),
)
def encode_documents(run: StageRun, jobs: Iterator[ShardJob], documents: str, encoder: str) -> Iterator[int]:
    """Encode the weak texts (title, tags, description) of each image with a text encoder.

    DOCUMENTS is a section of the key `documents`, and says which of the three fields are joined. Images without weak
    text are left out. The stage writes one file of vectors per shard, and yields the number of each written shard.
    """
    import numpy as np

    from pipeline.encoders.tfidf import join_fields
    from pipeline.run.reading.texts import encode_on_device, open_documents
    from pipeline.storage.texts import write_vectors

    encode = encode_on_device(run, encoder)
    read_shard = open_documents(run, documents)
    fields = run.config.documents[documents].fields
    storage = run.config.text_encoder(encoder).storage
    for job in jobs:
        table, first = read_shard(job.rows)
        texts = join_fields(table.to_pylist(), fields)
        present = np.flatnonzero([bool(text) for text in texts])
        vectors = encode([texts[row] for row in present])
        owners = table["image_id"].to_numpy()[present]
        about = {"encoder": encoder, "storage": storage, "documents": documents, "provenance": job.provenance}
        write_vectors(job.path, vectors, first + present, owners, **about)
        yield job.number


@stage(
    version=5,
    keys=lambda config: config.tokens.model_dump(),
    reads=lambda config, layout: {"manifest": layout.manifest},
    writes=lambda layout: layout.token_vocabulary,
)
def build_token_vocabulary(run: StageRun, job: Job) -> None:
    """Count the words of the training captions and keep the most frequent ones as the token vocabulary."""
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
    log.info("The vocabulary has %d words, from %d training captions", len(vocabulary.terms), vocabulary.n_sentences)


@stage(
    version=4,
    keys=lambda config: {
        "seed": config.seed,
        "text": config.language_text.model_dump(exclude={"treebank"}),
        "words": config.word_vectors.model_dump(include=WORD2VEC_KEYS),
    },
    reads=lambda config, layout: {
        "manifest": layout.manifest,
        "vocabulary": layout.token_vocabulary,
        "lines": Outside("lines", Path(config.language_text.file)) if config.language_text.file else None,
    },
    writes=lambda layout: layout.word_vectors,
)
def train_word_vectors(run: StageRun, job: Job) -> None:
    """Learn word2vec vectors from the training captions and, if language_text.file names a file, from the sentences of
    this file."""
    from pipeline.run.reading.texts import read_extra_text, read_token_vocabulary
    from pipeline.storage.parameters import WORDS, write_parameters
    from pipeline.text.vocabulary import encode_tokens
    from pipeline.text.wordvectors import train_vectors

    config = run.config
    vocabulary, _ = read_token_vocabulary(run)
    sentences = encode_tokens(chain(run.manifest.texts_of("train"), read_extra_text(config)), vocabulary)
    settings = config.word_vectors.model_dump(include=WORD2VEC_KEYS)
    tensors = {"words": train_vectors(sentences, vocabulary.terms, **settings, seed=config.seed)}
    details = {"sentences": len(sentences)}
    write_parameters(job.path, WORDS, tensors, settings=settings, provenance=job.provenance, details=details)
    log.info("The vectors of %d words were learned from %d sentences", len(vocabulary.terms), len(sentences))


@stage(
    version=5,
    reads=lambda config, layout: {"vocabulary": layout.token_vocabulary},
    columns=("sentences",),
    writes=lambda layout: layout.sentences("tokens"),
)
def encode_tokens(run: StageRun, jobs: Iterator[ShardJob]) -> Iterator[int]:
    """Encode each caption as the sequence of its words' numbers in the token vocabulary.

    The stage writes one file per shard, and yields the number of each written shard.
    """
    from pipeline.run.reading.texts import read_token_vocabulary
    from pipeline.storage.texts import TOKENS, write_sentences
    from pipeline.text.vocabulary import encode_tokens

    vocabulary, _ = read_token_vocabulary(run)
    for job in jobs:
        tokens = encode_tokens(run.manifest.texts(job.number), vocabulary)
        arrays = {"ids": tokens.ids, "offsets": tokens.offsets}
        owners = run.manifest.owners(job.number)
        write_sentences(job.path, TOKENS, arrays, job.sentence_id, owners, provenance=job.provenance)
        yield job.number
