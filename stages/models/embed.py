"""`embed`: images and sentences in the joint space of a model."""

from collections.abc import Callable, Sequence
from typing import Any

from pipeline.run import Inputs, Job, Run, Stage
from stages.inputs import named, sentence_shards


def embed(run: Run, model: str) -> Callable[[Job], None]:
    """Embed all images and sentences."""
    from pipeline.storage.embeddings import write_embeddings
    from stages.training import restore_model

    mapping, parameters = restore_model(run, model)
    known = parameters.details
    sentences = _sentences(run, mapping)
    about = {
        "model": known["model"], "refits": known.get("refits"), "registered": known["registered"],
        "metric": mapping.metric, "made_of": parameters.fingerprint,
        **({"vocabulary": known["vocabulary"]} if known.get("vocabulary") else {}),
    }  # fmt: skip

    def make(job: Job) -> None:
        opened = {name: run.features.open(name, job.number) for name in mapping.encoders}
        blocks = {name: stored["features"] for name, stored in opened.items()}
        ids = {"images": job.image_id, "sentences": job.sentence_id}
        given = ()
        if mapping.multi_vector:
            given = (_regions(run, mapping.region_encoders, ids["images"]),)
        sides = {
            "images": mapping.embed_images(blocks, *given),
            "sentences": mapping.embed_sentences(sentences(job.number)),
        }
        rule = mapping.rule if mapping.multi_vector else None
        write_embeddings(job.path, sides, ids, about, rule, provenance=job.provenance)

    return make


def _sentences(run: Run, model: Any) -> Callable[[int], Any]:
    """What reads a shard of the sentences in the form that a model takes."""
    from pipeline.storage.texts import TokenShard, TreeShard
    from pipeline.text.sequences import Tokens
    from pipeline.text.trees import Trees

    def tokens(number: int) -> Tokens:
        opened = TokenShard(run.layout.sentences("tokens").shard(number))
        return Tokens(opened.ids, opened.offsets)

    def trees(number: int) -> Trees:
        opened = TreeShard(run.layout.sentences("trees").shard(number))
        return Trees(**getattr(opened, model.sentence_view.removesuffix("-trees")))

    def vectors(number: int) -> dict[str, Any]:
        opened = run.texts({name: run.layout.sentences(name) for name in model.text_encoders}).open(number)
        return {name: one.matrix for name, one in opened.items()}

    return {"tokens": tokens, "vectors": vectors}.get(model.sentence_view, trees)


def _regions(run: Run, encoders: Sequence[str], image_id: Any) -> Any:
    """The regions of some images."""
    from pipeline.storage.features import RegionRows

    folders = {name: run.layout.regions(name, run.config.regions.reduced).folder for name in encoders}
    return RegionRows(run.manifest, folders, image_id)


def _reads(config, layout, model: str) -> Inputs:
    chosen = config.model(model)
    spec, encoders = chosen.spec, chosen.encoders
    regions = config.regions.encoders if spec.multi_vector else ()
    return {
        "model": layout.model(model),
        **named(*sentence_shards(chosen, layout)),
        **{f"features/{name}": layout.features(name) for name in encoders},
        **{f"regions/{name}": layout.regions(name, config.regions.reduced) for name in regions},
    }


STAGE = Stage(
    embed,
    version=4,
    gpu=True,
    names=("model",),
    sharded=True,
    choices=lambda config: [(name,) for name in config.every_model() if not config.members(name)],
    reads=_reads,
    columns=("images", "sentences"),
    writes=lambda layout, model: layout.embeddings(model),
)
