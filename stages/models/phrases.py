"""`align`, `embed-phrases`, `rank-phrases`: match words and noun phrases of captions with regions of the photos."""

import logging
from itertools import chain
from typing import TYPE_CHECKING, cast

from pipeline.run import Job, StageRun, stage
from pipeline.run.reading.inputs import label_names, region_shards

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from pipeline.models.joint_model import PhraseModel
    from pipeline.storage.regions import RegionRows

ALIGNED_IMAGES = 1024
"""Maximum number of images whose vectors are in memory at a time, while captions are aligned with the regions of these
images."""
EMBEDDED_IMAGES = 512
"""Maximum number of images whose regions are embedded at a time."""


@stage(
    version=4,
    choices=lambda config: config.aligned_splits(),
    wanted=lambda config: config.aligned_splits(config.align.splits),
    keys=lambda config, model, split: {"beta": config.align.beta},
    memory=3000,
    reads=lambda config, layout, model, split: {
        "manifest": layout.manifest,
        "embeddings": layout.embeddings(model),
        "vocabulary": layout.token_vocabulary,
    },
    writes=lambda layout, model, split: layout.alignments(model, split),
)
def align(run: StageRun, job: Job, model: str, split: str) -> None:
    """Divide each caption of a split into segments of consecutive words, and assign a region of its photo to each
    segment.

    The stage writes one JSON line per segment: the ids of the caption and the photo, the words, the box and the score.
    """
    from tqdm import tqdm

    from pipeline.compute.multivectors import several_vectors_each
    from pipeline.models.neural.alignment import align
    from pipeline.run.reading.texts import read_analyzer, read_words
    from pipeline.storage.records import write_alignments

    embeddings = run.embeddings(model)
    pairs = run.pairs(split)
    beta = run.config.align.beta
    analyze = read_analyzer(run)
    lines = []
    for block in tqdm(list(pairs.blocks(ALIGNED_IMAGES)), desc=f"align {split}", unit="block", disable=None):
        images = several_vectors_each(embeddings.read("images", block.image_id))
        sentences = several_vectors_each(embeddings.read("sentences", block.sentence_id))
        spoken = read_words(run, block.sentence_id, analyze)
        words = sentences.split("vectors")
        regions = images.split("vectors")
        for number, (sentence_id, owner) in enumerate(zip(block.sentence_id, block.owners, strict=True)):
            lines += [
                {
                    "sentence_id": int(sentence_id),
                    "image_id": int(block.image_id[owner]),
                    "words": spoken[number][segment.first : segment.last],
                    "box": images.box_array[images.offsets[owner] + segment.region].tolist(),
                    "score": segment.score,
                }
                for segment in align(words[number], regions[owner], beta)
            ]
    write_alignments(job.path, lines, provenance=job.provenance, details={"model": model, "split": split})


@stage(
    version=3,
    gpu=True,
    choices=lambda config: config.phrase_splits(),
    wanted=lambda config: config.phrase_splits(config.phrases.splits),
    memory=6000,
    reads=lambda config, layout, model, split: {
        "manifest": layout.manifest,
        "model": layout.model(model),
        "parses": layout.parses,
        "vocabulary": layout.token_vocabulary,
        "labels": layout.labels,
        "regions": region_shards(config.regions.encoders, layout),
    },
    writes=lambda layout, model, split: layout.phrases(model, split),
)
def embed_phrases(run: StageRun, job: Job, model: str, split: str) -> None:
    """Embed the noun phrases of a split's captions and the regions of its images.

    `hmlstm` embeds a noun phrase as a part of its caption. Other models with one vector per caption embed a noun phrase
    like a caption. Multi-vector models add up or average the vectors of the words of a noun phrase. A model that has no
    vectors of regions embeds a region like a whole image. The stage writes a table of the noun phrases and a table of
    the regions, with their vectors.
    """
    import numpy as np
    import pyarrow as pa

    from pipeline.run.reading.models import open_region_rows, restore_model
    from pipeline.run.reading.texts import read_sentence_trees, read_token_vocabulary
    from pipeline.storage.commit import read_record
    from pipeline.storage.regions import write_phrases
    from pipeline.storage.tables import vectors_column
    from pipeline.text.tokens import make_analyzer
    from pipeline.text.tree_conversions import list_noun_phrases
    from pipeline.text.trees import LabelTable, pack_trees
    from pipeline.text.vocabulary import encode_tokens

    mapping = cast("PhraseModel", restore_model(run, model)[0])  # `phrase_splits` lists only models that embed phrases
    vocabulary, _ = read_token_vocabulary(run)
    pairs = run.pairs(split)
    sentences = read_sentence_trees(run, make_analyzer(vocabulary.settings), pairs.sentence_id)
    phrases = [list_noun_phrases(sentence.tree) for sentence in sentences]
    counts = list(map(len, phrases))
    spoken = list(chain.from_iterable(phrases))
    if mapping.sentence_view == "tokens":
        vectors = mapping.embed_phrases(encode_tokens([phrase.text for phrase in spoken], vocabulary))
    else:
        labels = LabelTable.from_dict(read_record(run.inputs.artefact("labels").path))
        vectors = mapping.embed_phrases(pack_trees(sentences, vocabulary, labels)[1])
    phrase_table = {
        "sentence_id": np.repeat(pairs.sentence_id, counts),
        "image_id": np.repeat(pairs.image_id[pairs.owners], counts),
        "text": [phrase.text for phrase in spoken],
        "head": [phrase.head for phrase in spoken],
        "vector": vectors_column(vectors),
    }
    encoders = getattr(mapping, "region_encoders", mapping.encoders)
    regions = _embed_regions(mapping, open_region_rows(run, encoders, pairs.image_id), pairs.image_id)
    details = {"model": model, "split": split, "dim": vectors.shape[1]}
    write_phrases(job.path, regions, pa.table(phrase_table), provenance=job.provenance, details=details)
    logging.getLogger(__name__).info(
        "%d noun phrases of %d captions in the split %s were embedded", len(spoken), len(sentences), split
    )


def _embed_regions(model: "PhraseModel", regions: "RegionRows", image_id: "np.ndarray") -> "pa.Table":
    """Return a table of all regions of the images `image_id` (n,): image, number, box and vector of each region."""
    import numpy as np
    import pyarrow as pa

    from pipeline.storage.tables import CORNERS, vectors_column

    parts = []
    for start in range(0, len(image_id), EMBEDDED_IMAGES):
        rows = np.arange(start, min(start + EMBEDDED_IMAGES, len(image_id)))
        block = regions.packed(rows)
        columns = {
            "image_id": image_id[rows][block.owners],
            "number": block.numbers,
            **dict(zip(CORNERS, block.boxes.T, strict=True)),
            "vector": vectors_column(model.embed_regions(block)),
        }
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


@stage(
    version=3,
    choices=lambda config: config.phrase_splits(),
    wanted=lambda config: config.phrase_splits(config.phrases.splits),
    keys=lambda config, model, split: {
        "seed": config.seed,
        "bootstrap": config.evaluate.bootstrap,
        "phrases": config.phrases.model_dump(exclude={"splits"}),
    },
    memory=8000,
    reads=lambda config, layout, model, split: {
        "manifest": layout.manifest,
        "phrases": layout.phrases(model, split),
        "names": label_names(config),
    },
    writes=lambda layout, model, split: layout.phrase_ranking(model, split),
)
def rank_phrases(run: StageRun, job: Job, model: str, split: str) -> None:
    """Rank the regions of a split for each noun phrase, and the noun phrases for each region.

    Labelled boxes say which regions are correct. If the collection has no labelled boxes, nothing is ranked. The stage
    also measures how often the best region of a phrase within its own photo is correct. The measured values and the
    ranks are written to files.
    """
    from pipeline.metrics.phrases import PhraseSet, RegionSet, measure_phrases
    from pipeline.metrics.retrieval import TIES, Bootstrap
    from pipeline.run.reading.regions import read_gold
    from pipeline.storage.records import write_measured
    from pipeline.storage.regions import PhraseVectors

    log = logging.getLogger(__name__)
    settings = run.config
    stored = PhraseVectors(run.inputs.artefact("phrases").path)
    phrases = PhraseSet(
        [text.lower() for text in stored.phrases["text"].to_pylist()],
        [head.lower() for head in stored.phrases["head"].to_pylist()],
        stored.phrases["image_id"].to_numpy(),
        stored.phrase_vectors,
    )
    parts = stored.regions["number"].to_numpy() > 0  # region 0 is the whole image
    regions = RegionSet(stored.regions["image_id"].to_numpy()[parts], stored.boxes[parts], stored.region_vectors[parts])
    bootstrap = Bootstrap(settings.evaluate.bootstrap, settings.seed)
    least_overlap = settings.phrases.least_overlap
    gold = read_gold(run)
    about = {"model": model, "split": split, "ties": TIES, "least_overlap": least_overlap, "bootstrap": vars(bootstrap)}
    if not gold.labels:
        reason = "no box of the manifest has a label"
        write_measured(job.path, {**about, "left_out": reason}, "ranks", {}, job.provenance)
        log.warning("%s: no regions were ranked, because %s. Add labelled boxes to the collection.", model, reason)
        return
    measured, ranks = measure_phrases(phrases, regions, gold, least_overlap, bootstrap)
    write_measured(job.path, {**about, **measured}, "ranks", ranks, job.provenance)
    log.info(
        "%s: the best region in the photo is right for %.1f %% of the %d noun phrases that a label of a box names. By"
        " chance, a region would be right for %.1f %%.",
        model, measured["correspondence"]["right"], measured["n_named"], measured["correspondence"]["chance"],
    )  # fmt: skip
