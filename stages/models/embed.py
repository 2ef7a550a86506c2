"""`embed`: images and sentences in the joint space of a model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.run import Inputs, Job, Run, Stage
from stages.texts import sentence_shards


def embed(run: Run, model: str) -> Callable[[Job], None]:
    """Embed all images and sentences."""
    from pipeline.storage.embeddings import write_embeddings
    from pipeline.storage.provenance import origin_of, require_origins
    from stages.inputs import restore_model

    (mapping, parameters), folder = restore_model(run, model), run.layout.model(model).path
    known = parameters.details
    sentences = _sentences(run, mapping, known, folder)

    def make(job: Job) -> None:
        opened = {name: run.features.open(name, job.number) for name in mapping.encoders}
        made_by = {name: {str(stored.path): origin_of(stored.sidecar)} for name, stored in opened.items()}
        require_origins(known["encoders"], folder, made_by)
        form, vocabulary = sentences(job.number)
        blocks = {name: stored["features"] for name, stored in opened.items()}
        ids = {"images": job.image_id, "sentences": job.sentence_id}
        details = {
            "model": known["model"], "refits": known.get("refits"), "registered": known["registered"],
            "metric": mapping.metric, "inputs": job.inputs, **({"vocabulary": vocabulary} if vocabulary else {}),
        }  # fmt: skip
        given = ()
        if mapping.multi_vector:
            given = (_regions(run, mapping.region_encoders, ids["images"]),)
            require_origins(known["regions"], folder, given[0].origins)
        sides = {"images": mapping.embed_images(blocks, *given), "sentences": mapping.embed_sentences(form)}
        rule = mapping.rule if mapping.multi_vector else None
        write_embeddings(job.path, sides, ids, details, rule, fingerprint=job.fingerprint)

    return make


def _sentences(run: Run, model: Any, known: Mapping[str, Any], folder: Any) -> Callable[[int], tuple[Any, str | None]]:
    """What reads a shard of the sentences in the form that a model in the folder `folder` takes, with the vocabulary of
    their tokens. IntegrityError where that, or a text encoder, is another than the model's."""
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.names import plain
    from pipeline.storage.provenance import origin_of, require_origins
    from pipeline.storage.text_shards import TokenShards
    from pipeline.storage.trees import TreeShards
    from pipeline.text.sequences import Tokens
    from pipeline.text.trees import Trees

    def checked(opened: Any) -> str:
        require_same("vocabulary", {str(folder): known["vocabulary"], str(opened.path): opened.vocabulary})
        return opened.vocabulary

    def tokens(number: int) -> tuple[Any, str]:
        opened = TokenShards(run.manifest, run.layout.sentences("tokens").folder).open(number)
        return Tokens(opened.ids, opened.offsets), checked(opened)

    def trees(number: int) -> tuple[Any, str]:
        opened = TreeShards(run.manifest, run.layout.sentences("trees").folder).open(number)
        require_same("label table", {str(run.root): known["labels"], str(opened.path): opened.labels})
        return Trees(**getattr(opened, model.sentence_view.removesuffix("-trees"))), checked(opened)

    def vectors(number: int) -> tuple[Any, None]:
        names = [plain(name, "the model") for name in model.text_encoders]
        opened = run.texts({name: run.layout.sentences(name) for name in names}).open(number)
        made_by = {name: {str(one.path): origin_of(one.sidecar)} for name, one in opened.items()}
        require_origins(known["text_encoders"], folder, made_by)
        return {name: one.matrix for name, one in opened.items()}, None

    return {"tokens": tokens, "vectors": vectors}.get(model.sentence_view, trees)


def _regions(run: Run, encoders: Sequence[str], image_id: Any) -> Any:
    """The regions of some images."""
    from pipeline.storage.names import plain
    from pipeline.storage.rows import RegionRows

    folders = {
        name: run.layout.regions(plain(name, "the model"), run.config.regions.reduced).folder for name in encoders
    }
    return RegionRows(run.manifest, folders, image_id)


def _reads(config, layout, model: str) -> Inputs:
    chosen = config.model(model)
    spec, encoders = chosen.spec, chosen.encoders
    regions = config.regions.encoders if spec.multi_vector else ()
    return {
        "model": layout.model(model),
        **sentence_shards(chosen, layout),
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
