"""`build-vocabulary`: the most common terms of the training sentences."""

from pathlib import Path

import click

from stages import options


@click.command("build-vocabulary")
@options.manifest
@options.config
@options.output("file", "The vocabulary, a JSON file.")
def command(manifest_folder: Path, config_path: Path | None, output: Path) -> None:
    """Count the terms of the training sentences and keep the most common."""
    import logging

    from pipeline import config
    from pipeline.storage.atomic import publish_json, read_json
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.forms import VocabularyForm
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.records import require_form
    from pipeline.text.tokens import TermSettings, english_stop_words
    from pipeline.text.vocabulary import Vocabulary, build_vocabulary

    text = config.load(config_path).text
    if text.vocabulary:
        path = Path(text.vocabulary)
        given = require_form(read_json(path), VocabularyForm, path, "correct text.vocabulary")
        value = Vocabulary.from_dict(given).to_dict()
        publish_json(output, {"fingerprint": fingerprint("vocabulary", 1, value), **value})
        return
    sentences = Manifest(manifest_folder).training_texts

    stop_words = english_stop_words() if text.stop_words else []
    settings = TermSettings(text.lowercase, text.tokenizer, text.lemmatise, stop_words, text.max_ngram)
    vocabulary = build_vocabulary(
        sentences, settings, size=text.size, min_count=text.min_count, idf=text.idf, normalise=text.normalise
    )

    value = vocabulary.to_dict()
    publish_json(output, {"fingerprint": fingerprint("vocabulary", 1, value), **value})
    logging.getLogger(__name__).info("%d terms from %d training sentences", len(vocabulary.terms), len(sentences))
