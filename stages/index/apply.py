"""`apply`: any photographs, indexed in the space of a trained bundle."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.run import Run
from pipeline.run.layout import Layout
from stages.commands import FILE, FOLDER, PATH, output

if TYPE_CHECKING:
    import numpy as np

    from pipeline.index.asking import Asker
    from pipeline.storage.bundle import Bundle

RECORD = "applied.json"
"""In the folder of a run that this command made: what its manifest was made from."""


@click.command("apply")
@click.argument("bundle_folder", type=FOLDER, metavar="BUNDLE")
@click.argument("photographs", type=PATH, metavar="PHOTOS")
@output(FOLDER, "Folder of the new bundle and of what it is made from; `search --index` takes it.")
@click.option("--name", help="What the bundle's card calls the photographs. [default: the name of --output]")
@click.option("--config", "config_path", type=FILE, help="Configuration to lay over what the command chooses.")
def command(bundle_folder: Path, photographs: Path, output: Path, name: str | None, config_path: Path | None) -> None:
    """Index PHOTOS, a folder of them, tar shards or a table, in the space of the model in BUNDLE.

    Nothing is learned, and no sentence is needed. A command that was stopped goes on where it was when it is given
    again; photographs that were added meanwhile are indexed too.
    """
    import logging
    import shlex

    from pipeline.index.asking import Asker
    from pipeline.run.runner import make
    from pipeline.storage.bundle import Bundle
    from stages.applied import STAGE
    from stages.catalogue import declared

    bundle = Bundle(bundle_folder)
    asker = Asker(bundle)
    _require_whole_images(bundle, asker)
    run, known = _begin(photographs, output, config_path), declared()
    for encoder in asker.encoders:
        _carry(bundle, f"encoders/{encoder}/", run.layout.encoder(encoder).path)
    _carry(bundle, "", run.layout.model(bundle.card["model"]).path)
    _ingest(run, known["ingest"])
    for encoder in asker.encoders:
        make(run, known["extract"], (encoder,))
    make(run, STAGE, (str(bundle.folder),))
    counts = _index(run, bundle, asker, name or run.config.name)
    log = logging.getLogger(__name__)
    log.info("%d photographs and %d sentences are in %s", *counts, run.layout.index(bundle.card["model"]).path)
    log.info("search: %s", shlex.join(["jointspace", "search", "--index", str(output), "two dogs"]))


def _require_whole_images(bundle: "Bundle", asker: "Asker") -> None:
    """Raises UsageError for a model that sees more of an image than its encoders make of the pixels."""
    from pipeline.errors import UsageError
    from pipeline.specs.stored import stored_kind

    name = bundle.card["model"]
    if asker.multi_vector:
        raise UsageError(
            f"{name} compares regions, and a bundle does not say how to find these; apply the bundle of a model with"
            " one vector an image"
        )
    for encoder, parts in asker.encoder_parts().items():
        if stored_kind(parts.settings).reads != "pixels":
            raise UsageError(
                f"the encoder {encoder} of {name} takes regions; apply a model on encoders of whole images"
            )


def _begin(photographs: Path, output: Path, config_path: Path | None) -> Run:
    """The run in `output`, with a configuration that fits the photographs. Raises UsageError where there is a run that
    another command made."""
    import yaml

    from pipeline import config
    from pipeline.collections.detect import detect
    from pipeline.errors import UsageError
    from pipeline.settings.section import SPLITS
    from pipeline.storage.atomic import publish_json, publish_text

    folder = output.absolute()
    layout = Layout(folder)
    record = layout.file(RECORD).path
    if not record.exists() and (layout.config.exists() or layout.manifest.commit.exists()):
        raise UsageError(f"{output} holds a run of its own; choose another --output")
    found = detect(photographs.absolute())
    values: dict[str, Any] = {
        "name": folder.name,
        "data_root": str(found.root),
        "results_root": str(folder.parent),
        "demo": {"generate": False},
        "collection": {**found.settings(), "default_split": "gallery", "reject_limit": 1.0},
        "index": {"splits": list(SPLITS)},
    }
    if config_path is not None:
        values = config.merge(values, config.read_mapping(config_path))
    chosen = config.validate(config.merge(config.read_mapping(config.default_path()), values), config_path or "apply")
    if not record.exists():
        publish_json(record, {"ingest": ""})
    publish_text(layout.config, yaml.safe_dump(values, sort_keys=False))
    return Run(folder, chosen)


def _carry(bundle: "Bundle", prefix: str, folder: Path) -> None:
    """Put the parameters below `prefix` of the bundle into the run's folder, unless they are there."""
    from pipeline.storage.batch import FileBatch

    files = {name: bundle.read(f"{prefix}{name}") for name in ("model.safetensors", "model.json")}
    if all((folder / name).is_file() and (folder / name).read_bytes() == data for name, data in files.items()):
        return
    batch = FileBatch()
    for name, data in files.items():
        batch.add(folder / name, data, commit=name == "model.json")
    batch.publish()


def _ingest(run: Run, stage: Any) -> None:
    """Make the manifest, unless it was made from the same photographs."""
    from pipeline.run.runner import make
    from pipeline.storage.atomic import publish_json, read_json

    record, digest = run.layout.file(RECORD).path, run.job(stage, ()).fingerprint
    if read_json(record).get("ingest") != digest or not run.layout.manifest.commit.exists():
        make(run, stage)
        publish_json(record, {"ingest": digest})


def _index(run: Run, bundle: "Bundle", asker: "Asker", name: str) -> tuple[int, int]:
    """Write the bundle; returns how many images and sentences it has."""
    from pipeline.settings.section import SPLITS
    from pipeline.storage.bundle import BundleWriter
    from pipeline.storage.embeddings import split_ids
    from pipeline.storage.fingerprint import fingerprint
    from stages.indices import add_indices

    source, manifest, settings = bundle.card, run.manifest, run.config.index
    embeddings, ids = run.embeddings(source["model"]), split_ids(manifest, settings.splits)
    writer = BundleWriter(run.layout.index(source["model"]).path)
    about = add_indices(writer, embeddings, ids, settings, run.gpu, _queries(bundle, asker))
    for modality, rows in ids.items():
        writer.add_table(f"{modality}.parquet", getattr(manifest, modality).take(rows))
    own = {file for file in source["files"] if file.partition(".")[0] in ids}
    writer.copy(bundle, but=own)
    inputs = {one: digest for one, digest in source["inputs"].items() if not one.startswith("embeddings/")}
    inputs |= {**embeddings.inputs, "bundle": source["fingerprint"]}
    card = {key: value for key, value in source.items() if key not in ("files", *ids)}
    digest = fingerprint("applied", 1, {"splits": SPLITS, "index": settings.model_dump()}, inputs)
    about |= {"splits": list(settings.splits), "data_root": str(manifest.root), "name": name}
    writer.commit({**card, **about, "inputs": inputs, "fingerprint": digest})
    return len(ids["images"]), len(ids["sentences"])


def _queries(bundle: "Bundle", asker: "Asker") -> "np.ndarray | None":
    """Sentences of the bundle, to measure an index of images with; None where it has none in plain words."""
    from contextlib import suppress

    from pipeline.errors import UsageError
    from pipeline.index.build import QUERIES
    from pipeline.index.vectors import evenly_spaced
    from pipeline.multivectors import concatenate

    table = bundle.packed_table("sentences")
    texts = [one["text"] for one in table.records(evenly_spaced(table.num_rows, QUERIES)) if one["text"]]
    with suppress(UsageError):
        return concatenate([asker.embed_sentence(text) for text in texts]) if texts else None
    return None
