"""`build-token-vocabulary`: the words of the training sentences that neural models know."""

from pathlib import Path

import click

from stages import options


@click.command("build-token-vocabulary")
@options.manifest
@options.config
@options.output("file", "The vocabulary, a JSON file.")
def command(manifest_folder: Path, config_path: Path | None, output: Path) -> None:
    """Count the words of the training sentences and keep the most common."""
    import logging

    from pipeline import config
    from pipeline.storage.atomic import publish_json
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.text.tokens import TermSettings
    from pipeline.text.vocabulary import build_vocabulary

    tokens = config.load(config_path).tokens
    sentences = Manifest(manifest_folder).training_texts

    settings = TermSettings(tokens.lowercase, tokens.tokenizer, lemmatise=False, stop_words=(), max_ngram=1)
    vocabulary = build_vocabulary(
        sentences, settings, size=tokens.size, min_count=tokens.min_count, idf=False, normalise=False
    )

    value = vocabulary.to_dict()
    publish_json(output, {"fingerprint": fingerprint("tokens", 1, value), "min_count": tokens.min_count, **value})
    logging.getLogger(__name__).info("%d words of %d training sentences", len(vocabulary.terms), len(sentences))
