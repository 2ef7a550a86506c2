"""`train-word-vectors`: vectors of the vocabulary's words, learned on the corpus."""

from pathlib import Path

from pipeline.run import Inputs, Job, Outside, Run, Stage
from stages.inputs import named

LEARNED = {"dim", "predicts"}
"""The settings that decide the vectors."""


def train_word_vectors(run: Run, job: Job) -> None:
    """Learn word2vec vectors from the training captions and the file of language_text, if any."""
    import logging
    from itertools import chain

    from pipeline.storage.parameters import WORDS, write_parameters
    from pipeline.text.sequences import encode_tokens
    from pipeline.text.wordvectors import train_vectors
    from stages.texts import read_extra_text, read_token_vocabulary

    config = run.config
    vocabulary, _ = read_token_vocabulary(run)
    sentences = encode_tokens(chain(run.manifest.texts_of("train"), read_extra_text(config)), vocabulary)
    settings = config.word_vectors.model_dump(include=LEARNED)
    tensors = {"words": train_vectors(sentences, vocabulary.terms, **settings, seed=config.seed)}
    details = {"sentences": len(sentences)}
    write_parameters(job.path, WORDS, tensors, settings=settings, provenance=job.provenance, details=details)
    logging.getLogger(__name__).info("%d words learned from %d sentences", len(vocabulary.terms), len(sentences))


def _reads(config, layout) -> Inputs:
    file = config.language_text.file
    text = {"text": Outside(Path(file))} if file else {}
    return {**named(layout.manifest, layout.token_vocabulary), **text}


STAGE = Stage(
    train_word_vectors,
    version=4,
    keys=lambda config: {
        "seed": config.seed,
        "text": config.language_text.model_dump(exclude={"treebank"}),
        "words": config.word_vectors.model_dump(include=LEARNED),
    },
    reads=_reads,
    writes=lambda layout: layout.word_vectors,
)
