"""`embed-phrases`: the noun phrases of a split and the regions of its images in the joint space of a model."""

from typing import TYPE_CHECKING, Any

from pipeline.run import Inputs, Job, Run, Stage
from stages.inputs import named, region_shards

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from pipeline.storage.regions import RegionRows

BLOCK = 512
"""Images whose regions are embedded at once."""


def embed_phrases(run: Run, job: Job, model: str, split: str) -> None:
    """Embed the noun phrases of a split's captions and the regions of its images.

    A model of whole sentences takes each phrase as one, and one of whole images each region.
    """
    import logging
    from itertools import chain

    import numpy as np
    import pyarrow as pa

    from pipeline.storage.phrases import write_phrases
    from pipeline.storage.records import read_labels
    from pipeline.storage.tables import vectors_column
    from pipeline.text.sequences import encode_tokens
    from pipeline.text.tokens import make_analyzer
    from pipeline.text.tree_conversions import list_noun_phrases
    from pipeline.text.trees import LabelTable, pack_trees
    from stages.texts import read_sentence_trees, read_token_vocabulary
    from stages.training import open_region_rows, restore_model

    mapping, _ = restore_model(run, model)
    vocabulary, _ = read_token_vocabulary(run)
    pairs = run.pairs(split)
    sentences = read_sentence_trees(run, make_analyzer(vocabulary.settings), pairs.sentence_id)
    phrases = [list_noun_phrases(sentence.tree) for sentence in sentences]
    counts = list(map(len, phrases))
    spoken = list(chain.from_iterable(phrases))
    if mapping.sentence_view == "tokens":
        vectors = mapping.embed_phrases(encode_tokens([phrase.text for phrase in spoken], vocabulary))
    else:
        labels = LabelTable.from_dict(read_labels(run.layout.labels.path))
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
    logging.getLogger(__name__).info("%d noun phrases in %d sentences of %s", len(spoken), len(sentences), split)


def _embed_regions(model: Any, regions: "RegionRows", image_id: "np.ndarray") -> "pa.Table":
    """The table of all regions of the images `image_id` (n,)."""
    import numpy as np
    import pyarrow as pa

    from pipeline.storage.tables import CORNERS, vectors_column

    parts = []
    for start in range(0, len(image_id), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(image_id)))
        block = regions.packed(rows)
        columns = {
            "image_id": image_id[rows][block.owners],
            "number": block.numbers,
            **dict(zip(CORNERS, block.boxes.T, strict=True)),
            "vector": vectors_column(model.embed_regions(block)),
        }
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def _reads(config, layout, model: str, split: str) -> Inputs:
    sentences = [layout.parses, layout.token_vocabulary, layout.labels]
    return named(layout.manifest, layout.model(model), *sentences, *region_shards(config, layout))


STAGE = Stage(
    embed_phrases,
    version=3,
    gpu=True,
    names=("model", "split"),
    choices=lambda config: config.phrase_splits(),
    wanted=lambda config: config.phrase_splits(config.phrases.splits),
    reads=_reads,
    writes=lambda layout, model, split: layout.phrases(model, split),
)
