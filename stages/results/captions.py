"""`train-generator`, `describe`, `evaluate-descriptions`: train caption generators, generate captions, and score
them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import InputError, UsageError
from pipeline.run import Inputs, Job, Layout, Run, StageRun, stage
from pipeline.run.reading.inputs import (
    box_texts,
    feature_shards,
    generator_inputs,
    region_shards,
    region_texts_path,
    text_files,
)

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config.names import Config
    from pipeline.config.results import RankedSnippetsSettings, RegionRecurrentSettings
    from pipeline.generate.generator import Ranker
    from pipeline.models.neural.task import TrainingPairs
    from pipeline.run.reading.generators import DescribedImages, StoredGenerator
    from pipeline.run.reading.regions import ShownBox, ShownImage
    from pipeline.storage.features import FeatureRows

log = logging.getLogger(__name__)
SNIPPETS_OF = ("train", "dev")
"""Splits from which `train-generator` reads captions, or snippets of captions that are aligned with regions."""
BLOCK_SENTENCES = 1024
"""Number of sentences whose word vectors are in memory at a time."""
DESCRIBED_IMAGES = 256
"""Number of images or boxes whose captions are generated in one step."""
MAX_SHOWN_IMAGES = 200
"""Maximum number of images or boxes on the page of generated captions. The files descriptions.json and descriptions.txt
beside the page list all images or boxes."""


def _training_keys(config: "Config", generator: str) -> dict[str, object]:
    configured = config.generator(generator)
    own = {"generator": configured.spec.name, **configured.settings.model_dump(exclude={"checkpoint_seconds"})}
    text = config.language_text.model_dump() if configured.spec.text else {}
    view = {"normalise": config.image_steps(configured.encoders)}
    return {"seed": configured.seed, "image_view": view, "text": text, "own": own}


def _training_reads(config: "Config", layout: Layout, generator: str) -> Inputs:
    configured = config.generator(generator)
    spec = configured.spec
    encoders = configured.encoders
    aligner = configured.snippets if spec.regions else None
    return {
        **generator_inputs(config, layout, generator),
        "features": feature_shards(encoders, layout),
        "regions": region_shards(encoders, layout) if spec.regions else {},
        "alignments": {split: layout.alignments(aligner, split) for split in SNIPPETS_OF} if aligner else {},
        "ranker": layout.model(aligner) if spec.ranks else None,
        "ranker_embeddings": layout.embeddings(aligner) if spec.ranks else None,
        "texts": text_files(config, generator, "lines", "treebank"),
    }


@stage(
    version=5,
    gpu=True,
    threads=8,
    memory=6000,
    choices=lambda config: [(name,) for name in config.generators],
    keys=_training_keys,
    reads=_training_reads,
    also=lambda run, generator: {"precision": str(run.precision(run.config.generator(generator).precision))},
    writes=lambda layout, generator: layout.generator(generator),
)
def train_generator(run: StageRun, job: Job, generator: str) -> None:
    """Train a caption generator on the photos and captions of train, or on aligned snippets.

    If the job is killed, run it again: it continues at the last checkpoint.
    """
    from pipeline.config.results import RankedSnippetsSettings, RegionRecurrentSettings
    from pipeline.generate.generator import Material
    from pipeline.models.linear.views import ImageView
    from pipeline.run.reading.generators import open_space, read_described, train_tagger
    from pipeline.run.reading.models import follow_training
    from pipeline.run.reading.texts import read_extra_text

    config = run.config
    configured = run.config.generator(generator)
    spec = configured.spec
    settings = configured.settings
    encoders = configured.encoders
    people = read_described(run, encoders, SNIPPETS_OF)
    pairs = people.pairs
    if isinstance(settings, RegionRecurrentSettings | RankedSnippetsSettings):
        pairs = _read_snippets(run, settings, people)
    dims = tuple(rows.shape[1] for rows in pairs["train"].features.values())
    space = open_space(run, generator)
    ranker = None
    if spec.ranks:
        assert configured.snippets is not None, "the check of configurations requires it"
        ranker = _read_ranker(run, configured.snippets, run.inputs.artefacts("alignments")["train"].path)
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
                precision=run.precision(configured.precision),
                checkpoint=checkpoint,
                after_step=after_step,
                device=run.device,
                ranker=ranker,
            )
        )
        details = {
            "generator": spec.name,
            "encoders": people.encoders,
            "vocabulary": people.vocabulary_fingerprint,
            "space": space and space.fingerprint,
            "training_log": learned.log,
        }
        run.write_model(job, learned.generator, details)
    log.info("%s was trained on %d sentences: %s", generator, learned.log["sentences"], learned.log["chosen"])


def _read_snippets(
    run: StageRun, settings: "RegionRecurrentSettings | RankedSnippetsSettings", people: "DescribedImages"
) -> "dict[str, TrainingPairs]":
    """Return the training pairs of the splits train and dev, as split -> pairs of a region and a snippet of a caption.

    The model `settings.snippets` has aligned the snippet with the region. If `settings.whole` is true, the features of
    the whole image follow the features of the region. Raises InputError if a snippet has no region in the run, or if
    one of the two splits has no snippets.
    """
    import numpy as np

    from pipeline.generate.snippets import Snippet, region_pairs
    from pipeline.run.reading.regions import read_regions
    from pipeline.storage.records import read_alignments

    snippets = []
    for alignments in run.inputs.artefacts("alignments").values():
        segments = read_alignments(alignments.path)
        snippets += [Snippet(*(segment[name] for name in Snippet._fields)) for segment in segments]
    image_id = np.unique(np.array([snippet.image_id for snippet in snippets], np.int64))
    regions = read_regions(run, people.encoders, image_id)
    whole = getattr(settings, "whole", False)
    return region_pairs(snippets, regions, run.manifest.splits, people.vocabulary, whole)


def _read_ranker(run: Run, model: str, alignments: Path) -> "Ranker":
    """Return a Ranker of snippets, which has the model and the sum of the word vectors of each snippet.

    The snippets are in the file `alignments`. The model has aligned these snippets with regions of train. Raises
    UsageError for a model that also reads whole images or the positions of regions.
    """
    import numpy as np

    from pipeline.compute.multivectors import several_vectors_each
    from pipeline.generate.generator import Ranker
    from pipeline.generate.snippets import sum_words
    from pipeline.models.neural.fragment_models import AlignedModel
    from pipeline.storage.records import read_alignments

    embeddings = run.embeddings(model)
    restored, stored = run.restored(model)
    region_view = getattr(restored, "region_view", None)
    if restored.encoders or region_view is None or region_view.geometry:
        raise UsageError(
            f"{model} also reads whole images or the positions of regions, so it cannot rank snippets. Name a dvsa"
            " model without these inputs in the key snippets of the generator."
        )
    assert isinstance(restored, AlignedModel), "the check of configurations requires a model that aligns words"
    segments = read_alignments(alignments)
    ids = np.array([segment["sentence_id"] for segment in segments])
    lengths = np.array([len(segment["words"]) for segment in segments])
    starts = np.flatnonzero(np.diff(ids, prepend=-1))[::BLOCK_SENTENCES].tolist()
    sums = []
    for first, last in pairwise([*starts, len(ids)]):
        words = several_vectors_each(embeddings.read("sentences", np.unique(ids[first:last])))
        sums.append(sum_words(words, lengths[first:last].tolist()))
    return Ranker(stored.details["registered"], restored, np.concatenate(sums))


def _describe_keys(config: "Config", generator: str, subject: str) -> dict[str, object]:
    text = {"text": config.language_text.model_dump(exclude={"treebank"})}
    return {
        "seed": config.seed,
        "describe": config.describe.model_dump(exclude={"splits", "boxes", "region_texts", "meteor"}),
        **(text if text_files(config, generator, "lines") else {}),
    }


def _describe_reads(config: "Config", layout: Layout, generator: str, subject: str) -> Inputs:
    encoders = config.generator(generator).encoders
    of_boxes = subject.endswith(".boxes")
    return {
        **generator_inputs(config, layout, generator),
        "generator": layout.generator(generator),
        "texts": text_files(config, generator, "lines"),
        "features": {} if of_boxes else feature_shards(encoders, layout),
        "regions": region_shards(encoders, layout) if of_boxes else {},
        "names": box_texts(config) if of_boxes else None,
    }


@stage(
    version=6,
    gpu=True,
    threads=8,
    memory=8000,
    shown=("descriptions", "Generated sentences"),
    choices=lambda config: config.descriptions(),
    wanted=lambda config: config.descriptions(config.describe.splits),
    keys=_describe_keys,
    reads=_describe_reads,
    writes=lambda layout, *names: (layout.descriptions(*names), layout.description_page(*names)),
)
def describe(run: StageRun, job: Job, generator: str, subject: str) -> None:
    """Generate captions for the images of a split. For the subject SPLIT.boxes, describe the labelled boxes instead."""
    import numpy as np
    from tqdm import tqdm

    from pipeline.generate.generator import describe_images
    from pipeline.images.opening import ImageLimits
    from pipeline.report.page import descriptions_as_text, render_page
    from pipeline.report.photographs import Photographs
    from pipeline.run.reading.generators import gather_sources, open_space_index, read_corpus, read_generator
    from pipeline.storage.commit import publish_record

    split, _, kind = subject.partition(".")
    settings = run.config.describe
    stored = read_generator(run, generator)
    features, shown = _read_boxes(run, stored, split) if kind else _read_images(run, stored, split)
    sources = gather_sources(run, stored, read_corpus(run), open_space_index(run, generator))
    described = []
    for start in tqdm(range(0, len(shown), DESCRIBED_IMAGES), f"describe with {generator}", unit="batch", disable=None):
        part = np.arange(start, min(start + DESCRIBED_IMAGES, len(shown)))
        block = {name: rows[part] for name, rows in features.items()}
        sentences = describe_images(stored.generator, block, sources, settings.top)
        described += [{**shown[place], "sentences": best} for place, best in zip(part.tolist(), sentences, strict=True)]
    about = {"generator": generator, "of": kind or "images", "split": split, "settings": settings.model_dump()}
    value = {**about, "precision": stored.precision, "images": described}
    picture = Photographs(run.photographs.read, ImageLimits.from_settings(run.config.collection))
    rows = run.manifest.pick([image["image_id"] for image in described[:MAX_SHOWN_IMAGES]])
    pictures = [picture(row, image["box"]).address for row, image in zip(rows, described, strict=False)]
    page = render_page("descriptions.html", value=value, pairs=list(zip(described, pictures, strict=False)))
    beside = {"index.html": page.encode(), "descriptions.txt": descriptions_as_text(value).encode()}
    publish_record(job.path / "descriptions.json", value, beside, job.provenance)


def _read_boxes(
    run: Run, stored: "StoredGenerator", split: str
) -> "tuple[Mapping[str, np.ndarray], Sequence[ShownImage]]":
    """Read the labelled boxes of a split.

    Return encoder -> features (k, dim) of the boxes, and the image and the corners of each box.
    """
    from pipeline.run.reading.regions import read_boxes, read_gold

    gold = read_gold(run, region_texts_path(run.config))
    whole = getattr(stored.generator, "whole", False)
    return read_boxes(run, gold, stored.encoders, split, whole)


def _read_images(
    run: Run, stored: "StoredGenerator", split: str
) -> "tuple[Mapping[str, FeatureRows], Sequence[ShownImage]]":
    """Read the images of a split. Return encoder -> features (n, dim), and the id and path of each image.

    Raises InputError if the split has no image.
    """
    import numpy as np

    from pipeline.storage.features import FeatureRows

    manifest = run.manifest
    ids = np.flatnonzero(manifest.splits == split)
    if not len(ids):
        raise InputError(
            f"The split {split} of {manifest.folder} has no image. Name another split in the key describe.splits."
        )
    features = {name: FeatureRows(run.features, name, ids) for name in stored.generator.encoders}
    images = manifest.pick(ids)
    return features, [{"image_id": row["image_id"], "image": row["path"], "box": None} for row in images]


def _judging_keys(config: "Config", generator: str, subject: str) -> dict[str, object]:
    if subject.endswith(".boxes"):
        return {"names": config.phrases.names, "meteor": config.describe.meteor}
    return {"seed": config.seed, "text": config.language_text.model_dump(), "meteor": config.describe.meteor}


def _judging_reads(config: "Config", layout: Layout, generator: str, subject: str) -> Inputs:
    of_boxes = subject.endswith(".boxes")
    return {
        **generator_inputs(config, layout, generator),
        "generator": layout.generator(generator),
        "descriptions": layout.descriptions(generator, subject),
        "features": feature_shards(config.generator(generator).encoders, layout),
        "texts": {} if of_boxes else text_files(config, generator, "treebank"),
        "parses": layout.parses if of_boxes and not config.describe.region_texts else None,
        "names": box_texts(config) if of_boxes else None,
    }


@stage(
    version=3,
    gpu=True,
    memory=6000,
    choices=lambda config: config.descriptions(),
    wanted=lambda config: config.descriptions(config.describe.splits),
    keys=_judging_keys,
    reads=_judging_reads,
    writes=lambda layout, *names: layout.description_evaluation(*names),
)
def evaluate_descriptions(run: StageRun, job: Job, generator: str, subject: str) -> None:
    """Score generated captions of a split or of SPLIT.boxes against texts that people wrote."""
    import numpy as np

    from pipeline.generate.metrics import METRICS, judge, variety
    from pipeline.run.reading.generators import hold_out, read_described
    from pipeline.storage.commit import read_record
    from pipeline.storage.records import write_measured
    from pipeline.text.tokens import make_analyzer

    split, _, kind = subject.partition(".")
    path = run.inputs.artefact("descriptions").commit
    described = read_record(path)["images"]
    stored = run.generator(generator)
    restored = run.config.generator(generator).spec.load().from_parts(stored.settings, stored.tensors)
    people = read_described(run, restored.encoders, (split,))
    analyze = make_analyzer(people.vocabulary.settings)
    if kind:
        references = _read_box_texts(run, described, analyze)
    else:
        references = _list_sentences(run, described, people, split, analyze)
    judged = [pair for pair in zip(described, references, strict=True) if pair[0]["sentences"] and pair[1]]
    if not judged:
        raise UsageError(
            f"No caption or noun phrase by a person belongs to the images or boxes of {path}, so the generated captions"
            " cannot be scored. Correct the file of phrases.names, or parse the captions."
        )
    best = [image["sentences"][0] for image, _ in judged]
    candidates = [sentence["text"].split(" ") for sentence in best]
    judgement, statistics = judge(candidates, [texts for _, texts in judged], run.config.describe.meteor)
    perplexity = None
    if hasattr(restored, "perplexities") and not kind:
        restored.to(run.device)
        held_out = hold_out(run, generator, people.pairs[split], people.texts[split], people.vocabulary)
        perplexity = restored.perplexities(held_out)

    about = {"generator": generator, "of": kind or "images", "split": split}
    value = {
        **about,
        "n_images": len({image["image_id"] for image, _ in judged}),
        "n_boxes": len(judged) if kind else None,
        "n_references": sum(len(texts) for _, texts in judged),
        "tokenisation": "words of the token vocabulary's analyzer",
        **asdict(judgement),
        **variety(candidates, [sentence["verbatim"] for sentence in best]),
        "perplexity": perplexity,
    }
    image_id = np.array([image["image_id"] for image, _ in judged])
    arrays = {"images": image_id, **vars(statistics)} if statistics else {}
    write_measured(job.path, value, "statistics", arrays, job.provenance)
    measured = "".join(f"{name} {value[name]:.1f}, " for name in METRICS if value[name] is not None)
    log.info(
        "%s on %s of %s: %s%.1f %% of the generated captions have exactly the words of a training caption.",
        *about.values(),
        measured,
        value["copied"],
    )
    for reason in dict.fromkeys(judgement.not_measured.values()):
        names = [name for name, why in judgement.not_measured.items() if why == reason]
        log.info("These measures were not computed: %s (%s)", ", ".join(names), reason)


def _read_box_texts(
    run: Run, boxes: "Sequence[ShownBox]", analyze: Callable[[str], list[str]]
) -> list[list[list[str]]]:
    """Return a list of reference texts for each box. `analyze` makes the list of words of each text.

    The reference texts are the texts that people wrote for the box or, if the configuration names no file with such
    texts, noun phrases of captions that name the box. A box can have no reference text.
    """
    from pipeline.run.reading.regions import read_naming_phrases, read_region_texts

    path = region_texts_path(run.config)
    if path is None:
        return read_naming_phrases(run, boxes, analyze)
    texts = read_region_texts(run, path)
    return [list(map(analyze, texts.get((box["image_id"], tuple(box["box"] or ())), []))) for box in boxes]


def _list_sentences(
    run: Run, images: "Sequence[ShownImage]", people: "DescribedImages", split: str, analyze: Callable[[str], list[str]]
) -> list[list[list[str]]]:
    """Return, for each of the `images` of a split, a list of the captions that people wrote for the image. `analyze`
    makes the list of words of each caption. An image without captions has an empty list."""
    owners = run.manifest.sentence_images
    by_image: dict[int, list[list[str]]] = {}
    for sentence_id, text in zip(people.pairs[split].names, people.texts[split], strict=True):
        by_image.setdefault(int(owners[sentence_id]), []).append(analyze(text))
    return [by_image.get(image["image_id"], []) for image in images]
