"""Region proposals by Faster R-CNN (Ren et al. 2015), with the detectors of torchvision.

The weights are torchvision's or the user's.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Protocol, cast

import numpy as np
import torch
from torchvision.models import get_model
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import concat_box_prediction_layers

from pipeline.compute.device import OomBatcher, full_float32, tf32, upload
from pipeline.compute.workers import Failure
from pipeline.encoders.weights import State, select
from pipeline.errors import InputError
from pipeline.images.boxes import MIN_REGION_SCORE, NONE, Candidates

CLASSES = "roi_heads.box_predictor.cls_score.weight"
"""Name of the tensor with one row per class."""
CORNERS = "roi_heads.box_predictor.bbox_pred.weight"
"""Name of the tensor with four rows per class, one for each side of a box."""


class BoxCoder(Protocol):
    """Converts the offsets that a network predicts for each anchor to boxes."""

    def decode(self, offsets: torch.Tensor, anchors: list[torch.Tensor]) -> torch.Tensor: ...


class Transform(Protocol):
    """Resizes and normalises images.

    The shorter side is resized to `min_size[-1]` pixels, or to fewer if the longer side would exceed `max_size` pixels.
    """

    min_size: Sequence[int]
    max_size: int

    def __call__(self, images: list[torch.Tensor]) -> tuple[ImageList, object]: ...


class ProposalNetwork(Protocol):
    """The region proposal network of a detector."""

    head: Callable[[list[torch.Tensor]], tuple[list[torch.Tensor], list[torch.Tensor]]]
    anchor_generator: Callable[[ImageList, list[torch.Tensor]], list[torch.Tensor]]
    box_coder: BoxCoder
    filter_proposals: Callable[..., tuple[list[torch.Tensor], list[torch.Tensor]]]


class Detector(Protocol):
    """A Faster R-CNN of torchvision. The type annotations of torchvision lack these attributes."""

    transform: Transform
    backbone: Callable[[torch.Tensor], Mapping[str, torch.Tensor]]
    rpn: ProposalNetwork

    def to(self, device: torch.device) -> "Detector": ...

    def __call__(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]: ...


def build_detector(architecture: str, state: State, source: str) -> Detector:
    """Build a detector with the weights `state`, which determine its number of classes.

    Raises InputError, with the name `source` of the weights, if they do not fit the architecture.
    """
    if missing := [name for name in (CLASSES, CORNERS) if name not in state]:
        raise InputError(
            f"{source} lacks the tensor {missing[0]}, so it is not a Faster R-CNN of torchvision. Give the weights of"
            " such a detector."
        )
    classes, corners = len(state[CLASSES]), len(state[CORNERS])
    if corners != 4 * classes:
        raise InputError(
            f"{source} has scores for {classes} classes, but boxes for {corners / 4:g} classes. Download the file"
            " again."
        )
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        network = get_model(
            architecture, weights=None, weights_backbone=None, num_classes=classes, box_score_thresh=MIN_REGION_SCORE
        ).eval()
    needed = network.state_dict()
    network.load_state_dict(select(state, needed, needed, source))
    return cast(Detector, network)


def detect(
    network: Detector,
    images: Iterable[np.ndarray | Failure],
    device: torch.device,
    stage: str,
    most: int,
    in_tf32: bool = False,
) -> Iterator[Candidates]:
    """Yield region proposals for each image (height, width, 3) uint8, the best first, in pixels of the image.

    `stage` is `detections` (boxes of all classes) or `rpn` (the output of the region proposal network). There are no
    proposals for a Failure, and none for an image that is so elongated that its shorter side vanishes when the image is
    resized for the network.

    `most` images are read at once. Images of the same shape go through the network together, or fewer of them if the
    memory of the GPU is full. Images of different shapes would be padded by torchvision, which changes the results near
    the edges. With `in_tf32`, a GPU rounds the factors of products to TF32.
    """
    network = network.to(device)
    batcher, waiting = OomBatcher(most, "image"), iter(images)
    while block := list(islice(waiting, most)):
        proposals = [NONE] * len(block)
        shapes: dict[tuple[int, ...], list[tuple[int, np.ndarray]]] = defaultdict(list)
        for number, pixels in enumerate(block):
            if not isinstance(pixels, Failure) and _is_seen(network, pixels):
                shapes[pixels.shape].append((number, pixels))
        for seen in shapes.values():

            def look(rows: slice, seen: list[tuple[int, np.ndarray]] = seen) -> list[Candidates]:
                pixels = upload(np.stack([pixels for _, pixels in seen[rows]]), device)
                with torch.inference_mode(), tf32() if in_tf32 else full_float32():
                    return _look(network, pixels.permute(0, 3, 1, 2).float() / 255, stage)

            found = chain.from_iterable(batcher.map(look, len(seen)))
            for (number, _), candidates in zip(seen, found, strict=True):
                proposals[number] = candidates
        yield from proposals


def _is_seen(network: Detector, pixels: np.ndarray) -> bool:
    """Return whether the shorter side of an image remains at least one pixel when the network resizes the image."""
    longest, shortest = network.transform.max_size, network.transform.min_size[-1]
    return min(shortest, min(pixels.shape[:2]) * longest / max(pixels.shape[:2])) >= 1 + 1e-3


def _look(network: Detector, images: torch.Tensor, stage: str) -> list[Candidates]:
    """Return the proposals in each of the images (n, 3, height, width), whose values are in [0, 1]."""
    if stage == "rpn":
        detections = _objects(network, images)
    else:
        detections = list(map(itemgetter("boxes", "scores"), network(list(images))))
    ordered = []
    for boxes, scores in detections:
        order = scores.argsort(descending=True, stable=True)
        ordered.append(Candidates(boxes[order].float().cpu().numpy(), scores[order].float().cpu().numpy()))
    return ordered


def _objects(network: Detector, pictures: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the boxes and scores of the region proposal network for each of `pictures` (n, 3, height, width).

    The boxes are in pixels of the pictures. The `forward` of the region proposal network does not return the scores.
    """
    images, _ = network.transform(list(pictures))
    features = list(network.backbone(images.tensors).values())
    rpn = network.rpn
    objectness, offsets = rpn.head(features)
    anchors = rpn.anchor_generator(images, features)
    per_level = [level[0].numel() for level in objectness]
    objectness, offsets = concat_box_prediction_layers(objectness, offsets)
    boxes = rpn.box_coder.decode(offsets, anchors).view(len(pictures), -1, 4)
    boxes, scores = rpn.filter_proposals(boxes, objectness, images.image_sizes, per_level)
    original, resized = torch.tensor([pictures.shape[:1:-1], images.image_sizes[0][::-1]], device=pictures.device)
    return [(box * (original / resized).repeat(2), score) for box, score in zip(boxes, scores, strict=True)]
