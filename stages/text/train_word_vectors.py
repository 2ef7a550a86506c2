"""`train-word-vectors`: vectors of the vocabulary's words, learned on the corpus."""

from pathlib import Path

import click

from stages import options


@click.command("train-word-vectors")
@options.manifest
@options.token_vocabulary
@options.config
@options.output("file", "The vectors, a safetensors file.")
def command(manifest_folder: Path, vocabulary_path: Path, config_path: Path | None, output: Path) -> None:
    """Learn word2vec's vectors from the training sentences, and from those of language_text where it names a file."""
    import logging
    from itertools import chain

    from pipeline import config
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import WORDS, digest_tensors, write_parameters
    from pipeline.storage.records import read_vocabulary
    from pipeline.text.sequences import encode_tokens
    from pipeline.text.vocabulary import Vocabulary
    from pipeline.text.word_training import train_vectors
    from stages.inputs import read_extra_text

    settings, manifest, value = config.load(config_path), Manifest(manifest_folder), read_vocabulary(vocabulary_path)
    chosen, extra = settings.word_vectors, read_extra_text(settings)
    vocabulary = Vocabulary.from_dict(value)
    sentences = encode_tokens(chain(manifest.training_texts, extra), vocabulary)
    words = train_vectors(sentences, vocabulary.terms, chosen.dim, chosen.window, chosen.epochs, settings.seed)

    tensors, about = {"words": words}, {"dim": chosen.dim, "window": chosen.window, "epochs": chosen.epochs}
    inputs = {"vocabulary": value["fingerprint"], "manifest": manifest.fingerprint}
    digest = fingerprint("words", 1, [about, settings.seed, digest_tensors(tensors)], inputs)
    details = {"inputs": inputs, "sentences": len(sentences)}
    write_parameters(output, WORDS, tensors, settings=about, fingerprint=digest, details=details)
    logging.getLogger(__name__).info("%d words learned from %d sentences", len(vocabulary.terms), len(sentences))
