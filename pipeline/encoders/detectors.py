"""Region proposals by Faster R-CNN (Ren et al. 2015), with the detectors of torchvision.

The weights are torchvision's or the user's.
"""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import itemgetter
from typing import Any, cast

import numpy as np
import torch
from torchvision.models import get_model
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.rpn import RegionProposalNetwork, concat_box_prediction_layers

from pipeline.compute.device import OomBatcher, full_float32, tf32, upload
from pipeline.compute.workers import Failure
from pipeline.encoders.weights import State, select
from pipeline.errors import InputError
from pipeline.images.boxes import MIN_REGION_SCORE, NONE, Candidates

CLASSES = "roi_heads.box_predictor.cls_score.weight"
"""Name of the tensor with one row per class, including the background."""
CORNERS = "roi_heads.box_predictor.bbox_pred.weight"
"""Name of the tensor with four rows per class, one for each side of a box."""


def build_detector(architecture: str, state: State, source: str) -> FasterRCNN:
    """Build a detector with the weights `state`, which determine its number of classes.

    Raises InputError, with the name `source` of the weights, if the weights do not fit the architecture.
    """
    if missing := [name for name in (CLASSES, CORNERS) if name not in state]:
        raise InputError(
            f"{source} lacks the tensor {missing[0]}, so it is not a Faster R-CNN of torchvision. Give the weights of"
            " such a detector."
        )
    classes = len(state[CLASSES])
    corners = len(state[CORNERS])
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
    return cast(FasterRCNN, network)


def detect(
    network: FasterRCNN,
    images: Iterable[np.ndarray | Failure],
    device: torch.device,
    stage: str,
    most: int,
    in_tf32: bool = False,
) -> Iterator[Candidates]:
    """Yield region proposals for each image (height, width, 3) uint8, the best first, in pixels of the image.

    `stage` is `detections` (boxes of all classes) or `rpn` (the output of the region proposal network). A Failure has
    no proposals. A very elongated image has no proposals if its shorter side vanishes when the image is resized for the
    network.

    At most `most` images are read at once. Images that are read at once and have the same shape form a batch, or
    several smaller batches if the memory of the GPU is full. torchvision would pad images of different shapes, which
    changes the results near the edges. If `in_tf32` is true, a GPU rounds the factors of products to TF32.
    """
    network = network.to(device)
    batcher = OomBatcher(most, "image")
    waiting = iter(images)
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


def _is_seen(network: FasterRCNN, pixels: np.ndarray) -> bool:
    """Return whether the shorter side of an image remains at least one pixel when the network resizes the image."""
    transform: Any = network.transform  # torchvision declares only a Module, without these attributes
    longest = transform.max_size
    shortest = transform.min_size[-1]
    return min(shortest, min(pixels.shape[:2]) * longest / max(pixels.shape[:2])) >= 1 + 1e-3


def _look(network: FasterRCNN, images: torch.Tensor, stage: str) -> list[Candidates]:
    """Return the proposals in each of the images (n, 3, height, width), whose values are in [0, 1].

    The proposals of an image are in pixels of the image, the best first, and on the CPU. `detect` explains `stage`.
    """
    if stage == "rpn":
        detections = _objects(network, images)
    else:
        detections = list(map(itemgetter("boxes", "scores"), network(list(images))))
    ordered = []
    for boxes, scores in detections:
        order = scores.argsort(descending=True, stable=True)
        ordered.append(Candidates(boxes[order].float().cpu().numpy(), scores[order].float().cpu().numpy()))
    return ordered


def _objects(network: FasterRCNN, pictures: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the boxes and scores of the region proposal network for each of `pictures` (n, 3, height, width).

    The boxes are in pixels of the pictures. The `forward` of the region proposal network does not return the scores.
    """
    images, _ = network.transform(list(pictures))
    features = list(network.backbone(images.tensors).values())
    rpn = cast(RegionProposalNetwork, network.rpn)
    objectness, offsets = rpn.head(features)
    anchors = rpn.anchor_generator(images, features)
    per_level = [level[0].numel() for level in objectness]
    objectness, offsets = concat_box_prediction_layers(objectness, offsets)
    boxes = rpn.box_coder.decode(offsets, anchors).view(len(pictures), -1, 4)
    boxes, scores = rpn.filter_proposals(boxes, objectness, images.image_sizes, per_level)
    original, resized = torch.tensor([pictures.shape[:1:-1], images.image_sizes[0][::-1]], device=pictures.device)
    return [(box * (original / resized).repeat(2), score) for box, score in zip(boxes, scores, strict=True)]
