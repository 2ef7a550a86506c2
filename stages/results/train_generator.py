"""`train-generator`: a generator of descriptions from stored features and training sentences."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pipeline.run import Inputs, Job, Run, Stage
from stages.inputs import generator_inputs, named, text_files

if TYPE_CHECKING:
    import torch

    from pipeline.generate.material import Ranker
    from stages.generators import DescribedImages

SNIPPETS_OF = ("train", "dev")
BLOCK = 1024
"""Sentences whose word vectors are in memory at once."""


def train_generator(run: Run, job: Job, generator: str) -> None:
    """Train a registered caption generator. Resumable."""
    import logging

    from pipeline.generate.material import Material
    from pipeline.models.linear.views import ImageView
    from stages.generators import open_space, read_described, train_tagger
    from stages.texts import read_extra_text
    from stages.training import follow_training

    config, configured = run.config, run.config.generator(generator)
    spec, settings, encoders = configured.spec, configured.settings, configured.encoders
    people = read_described(run, encoders, SNIPPETS_OF)
    pairs = _read_snippets(run, settings, people) if spec.regions else people.pairs
    dims = tuple(rows.shape[1] for rows in pairs["train"].features.values())
    space = open_space(run, generator)
    with follow_training(generator, settings, job) as (checkpoint, after_step):
        learned = spec.load().learn(
            Material(
                ImageView(encoders, dims, config.image_steps(encoders)),
                **pairs,
                texts=people.texts,
                vocabulary=people.vocabulary,
                space=space,
                extra=read_extra_text(config) if spec.text else [],
                tagger=train_tagger(config, spec, configured.seed),
                settings=settings,
                seed=configured.seed,
                precision=_precision(run, generator),
                checkpoint=checkpoint,
                after_step=after_step,
                device=run.device,
                ranker=_read_ranker(run, settings.snippets) if spec.ranks else None,
            )
        )
        details = {
            "generator": spec.name,
            "encoders": people.encoders,
            "vocabulary": people.vocabulary_fingerprint,
            "space": space.fingerprint if learned.generator.in_space else None,
            "training_log": learned.log,
        }
        run.write_model(job, learned.generator, details)
    log = logging.getLogger(__name__)
    log.info("%s on %d sentences: %s", generator, learned.log["sentences"], learned.log["chosen"])


def _read_snippets(run: Run, settings: Any, people: "DescribedImages") -> dict[str, Any]:
    """The pairs of regions with snippets of their images' sentences, as the model `settings.snippets` aligns them."""
    import numpy as np

    from pipeline.generate.snippets import Snippet, region_pairs
    from pipeline.storage.records import read_alignments
    from stages.boxes import read_regions

    snippets = []
    for split in SNIPPETS_OF:
        segments = read_alignments(run.layout.alignments(settings.snippets, split).path)
        snippets += [Snippet(*(segment[name] for name in Snippet._fields)) for segment in segments]
    image_id = np.unique(np.array([snippet.image_id for snippet in snippets], np.int64))
    regions = read_regions(run, people.encoders, image_id)
    whole = getattr(settings, "whole", False)
    return region_pairs(snippets, regions, run.manifest.splits, people.vocabulary, whole)


def _read_ranker(run: Run, model: str) -> "Ranker":
    """A model and the sums of the word vectors of the snippets that it found in train. UsageError for one that also
    reads whole images or the places of regions, IntegrityError where its sentences have other words."""
    import numpy as np

    from pipeline.config.stored import restore
    from pipeline.errors import IntegrityError, UsageError
    from pipeline.generate.material import Ranker
    from pipeline.generate.snippets import sum_words
    from pipeline.storage.records import read_alignments

    embeddings, stored = run.embedded_model(model)
    name, path = stored.details["registered"], run.layout.alignments(model, "train").path
    restored = restore(name, stored.settings, stored.tensors, run.layout.model(model).path)
    if restored.encoders or restored.region_view.geometry:
        raise UsageError(
            f"{model} also reads whole images or the positions of regions; rank snippets with a plain dvsa"
        )
    segments = read_alignments(path)
    ids = np.array([segment["sentence_id"] for segment in segments])
    lengths = np.array([len(segment["words"]) for segment in segments])
    starts = np.flatnonzero(np.diff(ids, prepend=-1))[::BLOCK].tolist()
    sums = []
    for first, last in pairwise([*starts, len(ids)]):
        words = embeddings.read("sentences", np.unique(ids[first:last]))
        if words.offsets[-1] != lengths[first:last].sum():
            raise IntegrityError(f"{path} and {embeddings.folder} have different words; run align again")
        sums.append(sum_words(words, lengths[first:last]))
    return Ranker(name, restored, np.concatenate(sums))


def _keys(config, generator: str) -> dict:
    configured = config.generator(generator)
    own = {"generator": configured.spec.name, **configured.settings.model_dump(exclude={"checkpoint_seconds"})}
    text = config.language_text.model_dump() if configured.spec.text else {}
    view = {"normalise": config.image_steps(configured.encoders)}
    return {"seed": configured.seed, "image_view": view, "text": text, "own": own}


def _reads(config, layout, generator: str) -> Inputs:
    configured = config.generator(generator)
    spec, encoders = configured.spec, configured.encoders
    read = [*map(layout.features, encoders)]
    if spec.regions:
        snippets = configured.settings.snippets
        read += map(layout.regions, encoders)
        read += [layout.alignments(snippets, split) for split in SNIPPETS_OF]
    if spec.ranks:
        read += [layout.model(snippets), layout.embeddings(snippets)]
    texts = text_files(config, generator, "text", "treebank")
    return {**named(*read), **generator_inputs(config, layout, generator), **texts}


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
