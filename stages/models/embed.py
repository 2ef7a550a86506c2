"""`embed`: images and sentences in the joint space of a model."""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.run.run import Run
from pipeline.run.stage import Input, Job, Stage


def embed(run: Run, model: str) -> Callable[[Job], None]:
    """Embed all images and sentences."""
    import numpy as np

    from pipeline.device import find_gpu
    from pipeline.specs import SETS, restore
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.gather import Features
    from pipeline.storage.provenance import origin_of, require_origins
    from pipeline.storage.shards import EMBEDDINGS, write_shard

    manifest, folder, parameters = run.manifest, run.layout.model(model).path, run.model(model)
    known = parameters.details
    mapping = restore(known["registered"], parameters.settings, parameters.tensors, folder)
    if (gpu := find_gpu(run.config.device)) is not None:
        mapping.to(gpu)
    features, sentences = Features(manifest, run.root / "features"), _sentences(run, mapping.sentence_view, known)

    def make(job: Job) -> None:
        opened = {name: features.open(name, job.number) for name in mapping.encoders}
        made_by = {name: {str(stored.path): origin_of(stored.sidecar)} for name, stored in opened.items()}
        require_origins(known["encoders"], folder, made_by)
        form, path, vocabulary = sentences(job.number)
        require_same("vocabulary", {str(folder): known["vocabulary"], str(path): vocabulary})
        blocks = {name: stored["features"] for name, stored in opened.items()}
        ids = {
            "images": np.arange(job.rows.first_image, job.rows.last_image),
            "sentences": np.arange(job.rows.first_sentence, job.rows.last_sentence),
        }
        details = {
            "model": known["row"], "refits": known.get("refits"), "registered": known["registered"],
            "metric": mapping.metric, "vocabulary": vocabulary, "inputs": job.inputs,
        }  # fmt: skip
        if known["registered"] in SETS:
            _embed_sets(run, job, mapping, blocks, form, ids, details, known["regions"])
            return
        images = mapping.embed_images(blocks)
        arrays = {"images": images, "image_id": ids["images"]}
        arrays |= {"sentences": mapping.embed_sentences(form), "sentence_id": ids["sentences"]}
        details["dim"] = images.shape[1]
        write_shard(job.path, EMBEDDINGS, arrays, rows=len(images), fingerprint=job.fingerprint, details=details)

    return make


def _sentences(run: Run, view: str, known: Mapping[str, Any]) -> Callable[[int], tuple[Any, Any, str]]:
    """What reads a shard of the sentences in the form that a model takes: (form, file, vocabulary)."""
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.gather import Sentences
    from pipeline.storage.tokens import TokenShards
    from pipeline.storage.trees import TreeShards
    from pipeline.text.sequences import Tokens
    from pipeline.text.trees import Trees

    def tokens(number: int) -> tuple[Any, Any, str]:
        opened = TokenShards(run.manifest, run.layout.sentences("tokens").folder).open(number)
        return Tokens(opened.ids, opened.offsets), opened.path, opened.vocabulary

    def trees(number: int) -> tuple[Any, Any, str]:
        opened = TreeShards(run.manifest, run.layout.sentences("trees").folder).open(number)
        require_same("label table", {str(run.root): known["labels"], str(opened.path): opened.labels})
        return Trees(**getattr(opened, view.removesuffix("-trees"))), opened.path, opened.vocabulary

    def tfidf(number: int) -> tuple[Any, Any, str]:
        opened = Sentences(run.manifest, run.layout.sentences("tfidf").folder).open(number)
        return opened.matrix, opened.path, opened.vocabulary

    return {"tokens": tokens, "tfidf": tfidf}.get(view, trees)


def _embed_sets(
    run: Run, job: Job, model: Any, features: dict, sentences: Any, ids: dict, details: dict, origins: Mapping
) -> None:
    """One vector a region and one a word."""
    import numpy as np

    from pipeline.storage.fragments import write_fragments
    from pipeline.storage.names import plain
    from pipeline.storage.provenance import require_origins
    from pipeline.storage.region_rows import RegionRows

    folders = {name: run.layout.regions(plain(name, "the model")).folder for name in model.region_encoders}
    regions = RegionRows(run.manifest, folders, ids["images"])
    require_origins(origins, run.layout.model(details["model"]).path, regions.origins)
    sides = {"images": model.embed_image_sets(features, regions), "sentences": model.embed_sentence_sets(sentences)}
    boxes = regions.packed(np.arange(len(regions))).boxes
    details = {**details, "dim": sides["images"].vectors.shape[1], "score": model.rule._asdict()}
    write_fragments(job.path, sides, ids, boxes, fingerprint=job.fingerprint, details=details)


def _form(registered: str) -> str:
    """The shards of sentences that a registered model takes."""
    from pipeline.specs import TRAINED, TREES

    if registered in TREES:
        return "trees"
    return "tokens" if registered in TRAINED and registered != "ncca-refined" else "tfidf"


def _reads(config, layout, model: str) -> Mapping[str, Input]:
    from pipeline.specs import SETS

    row = config.row(model)
    form, regions = _form(row.model), config.regions.encoders if row.model in SETS else ()
    return {
        "model": layout.model(model),
        form: layout.sentences(form),
        **{f"features/{name}": layout.features(name) for name in row.encoders},
        **{f"regions/{name}": layout.regions(name) for name in regions},
    }


STAGE = Stage(
    embed,
    version=3,
    names=("model",),
    sharded=True,
    choices=lambda config: [(name,) for name in config.every_row() if not config.members(name)],
    reads=_reads,
    columns=("images", "sentences"),
    writes=lambda layout, model: layout.embeddings(model),
)
