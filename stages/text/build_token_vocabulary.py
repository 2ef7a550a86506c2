"""`build-token-vocabulary`: the words of the training sentences that neural models know."""

from pipeline.run import Job, Run, Stage
from stages.inputs import named


def build_token_vocabulary(run: Run, job: Job) -> None:
    """Count the words of the training captions and keep the most frequent."""
    import logging

    from pipeline.storage.commit import publish_record
    from pipeline.storage.json_files import fingerprint
    from pipeline.text.tokens import TermSettings
    from stages.texts import learn_vocabulary, measure_coverage

    tokens = run.config.tokens
    settings = TermSettings(lemmatise=False, stop_words=(), max_ngram=1)
    sizes = {"size": tokens.size, "min_count": tokens.min_count}
    vocabulary = learn_vocabulary(run, "tokens", settings, **sizes, idf=False, normalise=False)
    value = vocabulary.to_dict()
    about = {"fingerprint": fingerprint("tokens", 1, value), "min_count": tokens.min_count}
    about["coverage"] = measure_coverage(run, "tokens", vocabulary, tokens.remedy)
    publish_record(job.path, {**about, **value}, provenance=job.provenance)
    logging.getLogger(__name__).info("%d words of %d training sentences", len(vocabulary.terms), vocabulary.n_sentences)


STAGE = Stage(
    build_token_vocabulary,
    version=5,
    keys=lambda config: config.tokens.model_dump(),
    reads=lambda config, layout: named(layout.manifest),
    writes=lambda layout: layout.token_vocabulary,
)
