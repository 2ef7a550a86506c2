"""`import-vectors`: imports precomputed vectors of images or captions, in the form in which an encoder stores
vectors."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.run import Inputs, Layout, ShardJob, StageRun, stage

if TYPE_CHECKING:
    from pipeline.config.names import Config


def _choices(config: "Config") -> Iterator[tuple[str]]:
    """Yield each encoder with precomputed vectors as (features/NAME,) or (text/NAME,).

    The folder is part of the name, because an image encoder and a text encoder may have the same name.
    """
    for entry in (*config.every_encoder, *config.text_encoders):
        if entry.spec.reads == "vectors":
            yield (f"{'features' if entry.modality == 'image' else 'text'}/{entry.name}",)


def _keys(config: "Config", encoder: str) -> dict[str, object]:
    entry = config.entry(encoder)
    return {"storage": _storage(config, encoder), **entry.model_dump(include={"features", "names"})}


def _storage(config: "Config", encoder: str) -> str:
    return getattr(config.entry(encoder), "storage", config.extract.storage)


def _reads(config: "Config", layout: Layout, encoder: str) -> Inputs:
    """Return the inputs: the files of the vectors, and the encoder that made the vectors, if `made_by` names it."""
    from pipeline.run.reading.precomputed import given_inputs

    entry = config.entry(encoder)
    maker = layout.encoder(entry.name) if entry.modality == "image" else layout.text_encoder(entry.name)
    return {"source": given_inputs(config, entry), "encoder": maker if entry.prepared else None}


@stage(
    version=1,
    memory=4000,
    choices=_choices,
    keys=_keys,
    reads=_reads,
    also=lambda run, encoder: {"names of images": run.manifest.names_digest},
    columns=("images", "sentences"),
    writes=lambda layout, encoder: layout.any_vectors(encoder),
)
def import_vectors(run: StageRun, jobs: Iterator[ShardJob], encoder: str) -> Iterator[int]:
    """Match precomputed vectors to the run's images by path or file name, or to its captions.

    Captions are matched by image and number, by text, or by their order.
    """
    from pipeline.run.reading.precomputed import match_precomputed
    from pipeline.storage.features import to_stored, write_features
    from pipeline.storage.texts import storage_key, write_vectors

    entry = run.config.entry(encoder)
    storage = _storage(run.config, encoder)
    is_image = entry.modality == "image"
    matched = match_precomputed(run, entry)
    # All rows are checked before the first shard is written.
    matched.require_stored(storage, "extract.storage" if is_image else storage_key(entry.name))
    for job in jobs:
        files = {name: digest for name, digest in job.digests.items() if name.startswith("source/")}
        if is_image:
            rows = range(job.rows.first_image, job.rows.last_image)
            stored = to_stored(matched.features(rows), storage, matched.names(rows))
            details = {"encoder": {"name": entry.name, "imported": files}}
            write_features(job.path, stored, job.image_id, job.provenance, details)
        else:
            rows = range(job.rows.first_sentence, job.rows.last_sentence)
            about = {"encoder": entry.name, "imported": files, "storage": storage, "provenance": job.provenance}
            owners = run.manifest.owners(job.number)
            write_vectors(job.path, matched.features(rows), job.sentence_id, owners, **about)
        yield job.number
