"""`simulate-documents`: weak texts made from sentences, to see what a method does as they get worse."""

from pathlib import Path

import click

from stages import options


@click.command("simulate-documents")
@click.argument("name")
@options.manifest
@options.config
@options.output("file", "The documents, a Parquet file.")
def command(name: str, manifest_folder: Path, config_path: Path | None, output: Path) -> None:
    """Make titles, tags and descriptions from sentences, as noisy as `documents.NAME.simulate` says."""
    import numpy as np

    from pipeline import config
    from pipeline.collections.weakening import simulate
    from pipeline.errors import UsageError
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.tables import write_table

    settings = config.load(config_path)
    chosen = settings.documents_named(name)
    if chosen.simulate is None:
        raise UsageError(f"documents.{name} are the collection's own; give documents.{name}.simulate to simulate some")
    manifest = Manifest(manifest_folder)
    wanted = np.isin(manifest.splits.astype(str), settings.auxiliary.splits)[manifest.sentence_images]
    texts = manifest.sentences.filter(wanted)

    documents = simulate(texts["image_id"].to_numpy(), texts["text"].to_pylist(), chosen.simulate, settings.seed)

    about = [chosen.simulate.model_dump(), settings.auxiliary.splits, settings.seed]
    inputs = {"manifest": manifest.fingerprint}
    digest = fingerprint("simulated documents", 2, about, inputs)
    details = {"documents": name, "inputs": inputs}
    write_table(output, "simulated-documents", documents, fingerprint=digest, details=details)
