"""`build-vocabulary`: the most common terms of the training sentences."""

from pathlib import Path

from pipeline.plan.needs import PYTHON, Need, fixed, per_image, process
from pipeline.run import Inputs, Job, Outside, Run, Stage


def build_vocabulary(run: Run, job: Job) -> None:
    """Count the terms of the training sentences and keep the most common."""
    import logging

    from pipeline.storage.atomic import publish_json, read_json
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.forms import VocabularyForm
    from pipeline.storage.records import require_form
    from pipeline.text.tokens import TermSettings, english_stop_words
    from pipeline.text.vocabulary import Vocabulary, build_vocabulary

    text = run.config.text
    if text.vocabulary:
        path = Path(text.vocabulary)
        given = require_form(read_json(path), VocabularyForm, path, "correct text.vocabulary")
        vocabulary = Vocabulary.from_dict(given)
    else:
        sentences = run.manifest.training_texts
        stop_words = english_stop_words() if text.stop_words else []
        settings = TermSettings(text.lowercase, text.tokenizer, text.lemmatise, stop_words, text.max_ngram)
        sizes = {"size": text.size, "min_count": text.min_count, "idf": text.idf, "normalise": text.normalise}
        vocabulary = build_vocabulary(sentences, settings, **sizes)
        found = "%d terms from %d training sentences"
        logging.getLogger(__name__).info(found, len(vocabulary.terms), len(sentences))
    value = vocabulary.to_dict()
    publish_json(job.path, {"fingerprint": fingerprint("vocabulary", 1, value), **value})


def _reads(config, layout) -> Inputs:
    given = config.text.vocabulary
    return {"vocabulary": Outside(Path(given))} if given else {"manifest": layout.manifest}


STAGE = Stage(
    build_vocabulary,
    version=2,
    needs=Need(process(PYTHON + 500, sentences=0.002), fixed(10), per_image(300), "training sentences"),
    keys=lambda config: config.text.model_dump(),
    reads=_reads,
    writes=lambda layout: layout.vocabulary,
)
