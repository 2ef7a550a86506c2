"""`train-generator`: a generator of descriptions from stored features and training sentences."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.run import Inputs, Job, Outside, Run, Stage
from stages.generators import space_of

if TYPE_CHECKING:
    import torch

    from pipeline.generate.material import Ranker
    from stages.inputs import DescribedImages

SNIPPETS_OF = ("train", "dev")
BLOCK = 1024
"""Sentences whose word vectors are in memory at once."""


def train_generator(run: Run, job: Job, generator: str) -> None:
    """Train a registered generator; a killed run is resumed."""
    import logging

    from pipeline.generate.material import JointSpace, Material
    from pipeline.models.linear.views import ImageView
    from pipeline.storage.bundle import Bundle
    from stages.generators import read_extra_text, train_tagger
    from stages.inputs import follow_training, read_described

    settings, layout, chosen = run.config, run.layout, run.config.generator(generator)
    spec, own, encoders = chosen.spec, chosen.settings, chosen.encoders
    found = read_described(run, encoders, ("train", "dev"))
    pairs = _read_snippets(run, own, found) if spec.regions else dict(found.pairs)
    dims = tuple(rows.shape[1] for rows in pairs["train"].features.values())
    view = ImageView(encoders, dims, settings.image_view.normalise)
    bundle = Bundle(where.path) if (where := space_of(settings, layout, generator)) else None
    space = JointSpace(bundle, run.gpu) if bundle else None
    extra = read_extra_text(settings) if spec.text else []
    with follow_training(generator, own, job.path / "checkpoints", job.fingerprint) as (checkpoint, after_step):
        learned = spec.load().learn(
            Material(
                view,
                **pairs,
                texts=found.texts,
                vocabulary=found.vocabulary,
                space=space,
                extra=extra,
                tagger=train_tagger(settings, spec, chosen.seed),
                settings=own,
                seed=chosen.seed,
                precision=_precision(run, generator),
                checkpoint=checkpoint,
                after_step=after_step,
                device=run.device,
                ranker=_read_ranker(run, own.snippets) if spec.ranks else None,
            )
        )
        details = {
            "generator": spec.name,
            "encoders": found.encoders,
            "vocabulary": found.vocabulary_fingerprint,
            "space": space.fingerprint if learned.generator.in_space else None,
            "training_log": learned.log,
        }
        run.write_model(job, learned.generator, details)
    log = logging.getLogger(__name__)
    log.info("%s on %d sentences: %s", generator, learned.log["sentences"], learned.log["chosen"])


def _read_snippets(run: Run, own: Any, found: "DescribedImages") -> dict[str, Any]:
    """The pairs of regions with snippets of their images' sentences, as the model `own.snippets` aligns them."""
    import numpy as np

    from pipeline.generate.snippets import Snippet, region_pairs
    from pipeline.storage.records import read_alignments
    from stages.boxes import read_regions

    snippets = []
    for split in SNIPPETS_OF:
        segments = read_alignments(run.layout.alignments(own.snippets, split).path)
        snippets += [Snippet(*(one[name] for name in Snippet._fields)) for one in segments]
    image_id = np.unique(np.array([snippet.image_id for snippet in snippets], np.int64))
    regions = read_regions(run.manifest, run.root / "regions", found.encoders, run.root / "features", image_id)
    return region_pairs(snippets, regions, run.manifest.splits, found.vocabulary, getattr(own, "whole", False))


def _read_ranker(run: Run, model: str) -> "Ranker":
    """A model and the sums of the word vectors of the snippets that it found in train. UsageError for one that also
    reads whole images or the places of regions, IntegrityError where its sentences have other words."""
    import numpy as np

    from pipeline.config.registry.stored import restore
    from pipeline.errors import IntegrityError, UsageError
    from pipeline.generate.material import Ranker
    from pipeline.generate.snippets import sum_words
    from pipeline.storage.records import read_alignments

    embeddings, stored = run.embedded_model(model)
    name, path = stored.details["registered"], run.layout.alignments(model, SNIPPETS_OF[0]).path
    restored = restore(name, stored.settings, stored.tensors, run.layout.model(model).path)
    if restored.encoders or restored.region_view.geometry:
        raise UsageError(f"{model} also reads whole images or the places of regions; rank snippets by a plain dvsa")
    segments = read_alignments(path)
    ids, lengths = np.array([one["sentence_id"] for one in segments]), np.array([len(one["words"]) for one in segments])
    sums, bounds = [], [*np.flatnonzero(np.diff(ids, prepend=-1))[::BLOCK].tolist(), len(ids)]
    for first, last in zip(bounds, bounds[1:], strict=False):
        words = embeddings.read("sentences", np.unique(ids[first:last]))
        if words.offsets[-1] != lengths[first:last].sum():
            raise IntegrityError(f"{path} and {embeddings.folder} are of other words; run align again")
        sums.append(sum_words(words, lengths[first:last]))
    return Ranker(name, restored, np.concatenate(sums))


def _keys(config, generator: str) -> dict:
    chosen = config.generator(generator)
    own = {"generator": chosen.spec.name, **chosen.settings.model_dump(exclude={"checkpoint_seconds"})}
    text = config.language_text.model_dump() if chosen.spec.text else {}
    return {"seed": chosen.seed, "image_view": config.image_view.model_dump(), "text": text, "own": own}


def _reads(config, layout, generator: str) -> Inputs:
    chosen = config.generator(generator)
    spec, own, encoders = chosen.spec, chosen.settings, chosen.encoders
    found = {"manifest": layout.manifest, "vocabulary": layout.token_vocabulary, "tokens": layout.sentences("tokens")}
    found |= {f"features/{name}": layout.features(name) for name in encoders}
    if spec.regions:
        found |= {f"regions/{name}": layout.regions(name) for name in encoders}
        found |= {f"snippets/{split}": layout.alignments(own.snippets, split) for split in SNIPPETS_OF}
    if spec.ranks:
        found |= {"ranker": layout.model(own.snippets), "vectors": layout.embeddings(own.snippets)}
    found |= {"space": space} if (space := space_of(config, layout, generator)) else {}
    text = {"text": config.language_text.file, "treebank": config.language_text.treebank} if spec.text else {}
    return found | {name: Outside(Path(file)) for name, file in text.items() if file}


def _precision(run: Run, generator: str) -> "torch.dtype":
    """The dtype of the heaviest products, which `auto` chooses by the device."""
    from pipeline.precision import choose_precision

    return choose_precision(getattr(run.config.generator(generator).settings, "precision", "float32"), run.device)


STAGE = Stage(
    train_generator,
    version=5,
    gpu=True,
    names=("generator",),
    choices=lambda config: [(name,) for name in config.generators],
    keys=_keys,
    reads=_reads,
    also=lambda run, generator: {"precision": str(_precision(run, generator))},
    writes=lambda layout, generator: layout.generator(generator),
)
