"""Functions that write the embeddings and regions of a multi-vector model into the synthetic run. Every image has three
regions, and every word has one vector.
"""

import json
from pathlib import Path

import numpy as np
from synthetic_run import MADE_BY, THINGS, by_colour, by_hand

from pipeline.compute.multivectors import MultiVectors, ScoreRule
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.fragment_models import DVSA
from pipeline.models.neural.task import RegionView
from pipeline.run.layout import Layout
from pipeline.storage.commit import publish_record
from pipeline.storage.embeddings import write_embeddings
from pipeline.storage.json_files import fingerprint
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import MODEL, write_parameters
from pipeline.storage.shards import REGIONS, shard_path, write_shard
from pipeline.text.tokens import make_analyzer
from pipeline.text.vocabulary import Vocabulary

SCORE = {"sum": "words", "global_weight": 0}
THING = [5.0, 5.0, 25.0, 35.0]
"""The box of the thing that an image shows, in pixels as x1, y1, x2, y2. All images have this box."""
OTHER = [30.0, 5.0, 50.0, 35.0]
"""The box of a second thing that an image shows less clearly, in pixels as x1, y1, x2, y2. The second thing is the next
one of THINGS.
"""


def add_fragments(run: Path, row: str, score: dict) -> None:
    """Write the embeddings of a multi-vector model into `embeddings/<row>` of a synthetic run, and an untrained model
    of the registered type `dvsa` into `models/<row>`. The embeddings have known values and were not made by this model.

    `score` has the fields of the ScoreRule that compares an image with a sentence. The model reads words with the token
    vocabulary of the run. If the run has no token vocabulary, the terms of the encoder `tfidf` become its token
    vocabulary.
    """
    layout = Layout(run)
    manifest = Manifest(run / "manifest")
    if not layout.token_vocabulary.path.exists():
        write_tokens_of_terms(run)
    value = json.loads(layout.token_vocabulary.path.read_text())
    analyze = make_analyzer(Vocabulary.from_dict(value).settings)
    words = np.zeros((9, 4), np.float32)
    shape = {"dimensions": 8, "hidden": 3, "dropout": 0, "sum": score["sum"]}
    view = RegionView(ImageView(("colour",), (8,), ()), geometry=False)
    model = DVSA.build(view, np.zeros(8, np.float32), 1.0, words, shape, seed=0)
    stored = write_parameters(
        run / "models" / row / "model.safetensors", MODEL, model.tensors(), settings=model.settings(),
        provenance=by_hand(run), details={
            "model": row, "registered": "dvsa", "vocabulary": value["fingerprint"], "encoders": {"colour": MADE_BY},
            "regions": {"colour": MADE_BY},
        },
    )  # fmt: skip
    for number in range(manifest.n_shards):
        span = manifest.shard(number)
        ids = np.arange(span.first_image, span.last_image)
        images = _images(manifest, ids)
        spoken = [analyze(text) or [""] for text in manifest.texts(span.number)]
        offsets = np.concatenate([[0], np.cumsum(list(map(len, spoken)))])
        vectors = np.array([[2.0 * (word == thing) for thing in THINGS] for own in spoken for word in own], np.float32)
        sides = {"images": images, "sentences": MultiVectors(vectors, offsets)}
        sentence_id = np.arange(span.first_sentence, span.last_sentence)
        details = {"model": row, "registered": "dvsa", "metric": "inner_product", "made_of": stored.digest}
        details["vocabulary"] = value["fingerprint"]
        write_embeddings(
            shard_path(run / "embeddings" / row, number), sides, {"images": ids, "sentences": sentence_id}, details,
            ScoreRule(**score), provenance=by_hand(run, **{stored.place: stored.digest}),
        )  # fmt: skip


def write_regions(run: Path, encoder: str = "colour") -> None:
    """Write the region shards of an encoder for all images of the run. Each image has three regions: the whole image,
    its thing, and the next thing.
    """
    manifest = Manifest(run / "manifest")
    for number in range(manifest.n_shards):
        span = manifest.shard(number)
        ids = np.arange(span.first_image, span.last_image)
        images = _images(manifest, ids)
        boxes, features = (np.split(part, images.offsets[1:-1]) for part in (images.boxes, images.vectors))
        write_region_shard(run, encoder, boxes, features, number, ids[0])


def write_region_shard(
    run: Path, encoder: str, boxes: list[np.ndarray], features: list[np.ndarray], number: int = 0, first: int = 0
) -> None:
    """Write the region shard `number` of an encoder.

    `boxes` and `features` have one array per image, (k, 4) in pixels and (k, dim), for the k regions of the image. The
    images have consecutive ids that begin with `first`.
    """
    arrays = {
        "features": np.concatenate(features).astype(np.float32), "boxes": np.concatenate(boxes).astype(np.float32),
        "scores": np.ones(sum(map(len, boxes)), np.float32), "offsets": np.cumsum([0, *map(len, boxes)]),
        "image_id": np.arange(first, first + len(boxes)),
    }  # fmt: skip
    path = shard_path(run / "regions" / encoder, number)
    details = {"dim": arrays["features"].shape[1]}
    write_shard(path, REGIONS, arrays, rows=len(boxes), provenance=by_colour(run), details=details)


def write_tokens_of_terms(run: Path) -> None:
    """Store the terms of the text encoder `tfidf` as the token vocabulary of the run."""
    settings = json.loads(Layout(run).text_encoder("tfidf").commit.read_text())["details"]["settings"]
    value = Vocabulary.from_dict(settings).to_dict()
    value = {"fingerprint": fingerprint("vocabulary", 1, value), **value}
    publish_record(Layout(run).token_vocabulary.path, value, provenance=by_hand(run))


def whole_length(ids: np.ndarray) -> np.ndarray:
    """Return the length (norm) of the vector of each whole image, (n,) for the images `ids` (n,). The length is
    different for each image.
    """
    return (0.5 + 0.001 * ids).astype(np.float32)


def _images(manifest: Manifest, ids: np.ndarray) -> MultiVectors:
    """Return three vectors and boxes per image: the whole image, with the length of `whole_length`, its thing, with the
    length 1, and the next thing, with the length 0.6.
    """
    axes = np.eye(len(THINGS), dtype=np.float32)
    own = axes[ids % 8]
    following = axes[(ids + 1) % 8]
    vectors = np.stack([whole_length(ids)[:, None] * own, own, 0.6 * following], axis=1).reshape(-1, 8)
    widths = manifest.images["width"].to_numpy()[ids]
    boxes = np.array([box for width in widths for box in ([0, 0, width, 40], THING, OTHER)], np.float32)
    return MultiVectors(vectors, 3 * np.arange(len(ids) + 1), boxes=boxes)
