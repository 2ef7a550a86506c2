"""What `apply` does to each shard of its run. No rule makes it, so that it stands outside of the groups of commands."""

from collections.abc import Callable
from pathlib import Path

from pipeline.run import Inputs, Job, Run, Stage
from pipeline.run.layout import Layout, Shards
from stages.catalogue import declared


def embed_with_bundle(run: Run, bundle: str) -> Callable[[Job], None]:
    """Embed all images, and the sentences where there are some, by the model in the folder `bundle`."""
    import numpy as np

    from pipeline.index.asking import Asker
    from pipeline.multivectors import concatenate
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.embeddings import write_embeddings
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.provenance import origin_of, require_origins

    opened = Bundle(Path(bundle))
    asker, stored = Asker(opened), opened.model()
    known = stored.details
    require_same("model", {bundle: opened.card["inputs"]["model"], f"{bundle}/model.json": stored.fingerprint})

    def make(job: Job) -> None:
        shards = {name: run.features.open(name, job.number) for name in asker.encoders}
        made_by = {name: {str(one.path): origin_of(one.sidecar)} for name, one in shards.items()}
        require_origins(known["encoders"], bundle, made_by)
        images = asker.embed_image({name: one["features"] for name, one in shards.items()})
        sentences = [asker.embed_sentence(text) for text in run.manifest.texts(job.rows)]
        sides = {"images": images, "sentences": concatenate(sentences) if sentences else images[:0]}
        ids = {"images": job.image_id, "sentences": job.sentence_id}
        details = {
            "model": known["model"], "refits": known.get("refits"), "registered": known["registered"],
            "metric": opened.card["metric"], "vocabulary": known["vocabulary"], "inputs": job.inputs,
        }  # fmt: skip
        sides = {name: np.ascontiguousarray(side, np.float32) for name, side in sides.items()}
        write_embeddings(job.path, sides, ids, details, fingerprint=job.fingerprint)

    return make


def _reads(_, layout: Layout, bundle: str) -> Inputs:
    return {f"features/{name}": layout.features(name) for name in _card(bundle)["encoders"]}


def _writes(layout: Layout, bundle: str) -> Shards:
    from pipeline.storage.names import plain

    return layout.embeddings(plain(_card(bundle)["model"], bundle))


def _card(bundle: str) -> dict:
    from pipeline.storage.bundle import Bundle

    return Bundle(Path(bundle)).card


STAGE = Stage(
    embed_with_bundle,
    version=1,
    needs=declared()["embed"].needs,
    names=("bundle",),
    sharded=True,
    reads=_reads,
    also=lambda _, bundle: {"model": _card(bundle)["inputs"]["model"]},
    columns=("images", "sentences"),
    writes=_writes,
)
