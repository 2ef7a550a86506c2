"""`build-token-vocabulary`, `train-word-vectors`: words and word vectors, learned from the training captions."""

import logging
from itertools import chain
from pathlib import Path

from pipeline.run import Job, Outside, StageRun, stage

log = logging.getLogger(__name__)
WORD2VEC_KEYS = {"dim", "predicts"}
"""Keys of word_vectors that decide the vectors which `train-word-vectors` learns."""


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
    """Learn word2vec vectors from the training captions and the file of language_text, if any."""
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
    log.info("learned the vectors of %d words from %d sentences", len(vocabulary.terms), len(sentences))
