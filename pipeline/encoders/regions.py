"""Computes features of image regions from crops, or from one activation map per image, and pools them to one feature
per image."""

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import fx, nn
from torch.fx.experimental.optimization import fuse
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional

from pipeline.compute.device import Arriving
from pipeline.compute.workers import Failure
from pipeline.encoders.extraction import ExtractionPlan, Extractor, Network
from pipeline.encoders.image_encoder import ImageEncoder, ModuleEncoder, to_channels_last
from pipeline.encoders.material import EncoderMaterial, EncoderParts, Settings, StoredEncoder
from pipeline.encoders.networks import NetworkEncoder
from pipeline.encoders.preparation import Crops, Cutting, PreparedImage, WholeImages
from pipeline.encoders.restore import restore_encoder
from pipeline.errors import UsageError
from pipeline.images.boxes import NONE, Candidates, suppress

if TYPE_CHECKING:
    from pipeline.config.encoders import PooledEntry

PROBE_SIDE = 224
"""Side in pixels of an image for which the activation map of every network has more than one cell."""
POOL_MODULES = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
"""Modules that pool an activation map to a fixed size."""
POOL_FUNCTIONS = (functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d, torch.mean, "mean")
"""Functions, and names of methods, that pool an activation map to a fixed size."""


class RegionEncoder(nn.Module):
    """Module that maps pixels (n, height, width, 3) uint8 and boxes (n, k, 4) to features (n, k, dim) float32.

    The columns x1, y1, x2, y2 of the boxes are shares of the width and height. `trunk` computes an activation map from
    the pixels that `encoder` has normalised. A feature is the mean over a box of the bilinear interpolation of the map.
    This is RoIAlign (He et al. 2017) with one bin and infinitely many samples. If `encoder.flip` is true, the features
    of an image and of its mirror image are averaged.
    """

    def __init__(self, encoder: ModuleEncoder, trunk: fx.GraphModule) -> None:
        super().__init__()
        self.encoder = encoder
        self.trunk = trunk

    def forward(self, pixels: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        features = pool_regions(self._maps(pixels), boxes)
        if not self.encoder.flip:
            return features
        mirrored = torch.stack([1 - boxes[..., 2], boxes[..., 1], 1 - boxes[..., 0], boxes[..., 3]], dim=-1)
        return (features + pool_regions(self._maps(pixels.flip(2)), mirrored)) / 2

    def _maps(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.trunk(self.encoder.normalise(pixels)).float()

    def optimised(self, device: torch.device, dtype: torch.dtype) -> "RegionEncoder":
        """Return a copy for fast inference on `device`, in `dtype`, with batch norms folded into convolutions."""
        trunk = to_channels_last(fuse(self.trunk).to(device, dtype))
        assert isinstance(trunk, fx.GraphModule)
        return RegionEncoder(self.encoder.optimised(device, dtype), trunk)


def region_encoder(encoder: NetworkEncoder) -> RegionEncoder:
    """Convert an encoder to a RegionEncoder, whose network ends with an activation map.

    This map is the input of the layer that pools activation maps to a fixed size, or the last activation map if there
    is no such layer. Both encoders share their tensors. Raises UsageError if the network has no activation map.
    """
    side = max(encoder.spec.preprocessing.side, PROBE_SIDE)
    body = fx.GraphModule(encoder.body, copy.deepcopy(encoder.body.graph))
    with torch.inference_mode():
        ShapeProp(body).propagate(torch.zeros(1, 3, side, side, dtype=next(body.parameters()).dtype))
    output = next(node for node in body.graph.nodes if node.op == "output")
    # `chain` has the nodes at the end of the network that form a single chain to the output, from the last node on.
    chain = [output.all_input_nodes[0]]
    while len(chain[-1].all_input_nodes) == 1:
        chain.append(chain[-1].all_input_nodes[0])
    pools = [node.args[0] for node in chain if _pools(body, node)]
    border = pools[-1] if pools else next(filter(_is_map, chain), None)
    if border is None or not _is_map(border):
        raise UsageError(
            "regions.features roi-align needs a network with an activation map, but the network of the encoder has"
            " none. Set regions.features to crops."
        )
    body.graph.erase_node(output)
    body.graph.output(border)
    body.graph.eliminate_dead_code()
    return RegionEncoder(encoder, fx.GraphModule(body, body.graph))


def _pools(body: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return isinstance(body.get_submodule(str(node.target)), POOL_MODULES)
    return node.target in POOL_FUNCTIONS


def _is_map(node: fx.Node) -> bool:
    shape = node.meta["tensor_meta"].shape if "tensor_meta" in node.meta else ()
    return node.op != "placeholder" and len(shape) == 4 and shape[-1] > 1


def pool_regions(maps: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """Return the means (n, k, channels) of activation maps (n, channels, h, w) over boxes (n, k, 4).

    The columns x1, y1, x2, y2 of the boxes are shares of the width and height of the maps. The value of a cell is the
    value at its centre. The map is interpolated bilinearly between the centres, and constant beyond the outermost
    centres. Since the interpolation is separable, one matrix product computes all regions of an image.
    """
    height, width = maps.shape[-2:]
    across = cell_weights(boxes[..., 0] * width, boxes[..., 2] * width, width)
    down = cell_weights(boxes[..., 1] * height, boxes[..., 3] * height, height)
    weights = torch.einsum("nkh,nkw->nkhw", down, across).flatten(2)
    return torch.bmm(weights, maps.permute(0, 2, 3, 1).flatten(1, 2))


def cell_weights(start: torch.Tensor, stop: torch.Tensor, cells: int) -> torch.Tensor:
    """Return the weights (..., cells) of the cells of an axis in the mean over each interval [start, stop).

    `start` and `stop` are tensors (...) of positions. Cell i covers the positions [i, i + 1). The weights of an
    interval sum to 1.
    """
    low, high = (edge[..., None] - 0.5 for edge in (start, start + (stop - start)))
    last = cells - 1
    centres = torch.arange(cells, device=start.device, dtype=start.dtype)
    below, above = (_hat_integral(edge.clamp(0, last) - centres) for edge in (low, high))
    weights = above - below
    weights[..., :1] += high.clamp(max=0) - low.clamp(max=0)
    weights[..., -1:] += high.clamp(min=last) - low.clamp(min=last)
    return weights / (high - low).clamp(min=1e-9)


def _hat_integral(x: torch.Tensor) -> torch.Tensor:
    """Return the integral of the hat function max(0, 1 - |t|) from -1 to x."""
    x = x.clamp(-1, 1)
    return 0.5 + x - x * x.abs() / 2


class DescribedRegions(NamedTuple):
    """The regions of n images, one image after another.

    `arrays` has `features` (total, dim) float32, `boxes` (total, 4) in pixels, `scores` (total,), and the number of
    regions of each image, `lengths` (n,). An image that could not be prepared has no regions, and `faults` maps the
    number of this image to the reason. `counts` has the numbers of proposals that were clipped or dropped, and of
    windows that were added, in all images (see `select` in pipeline.images.boxes).
    """

    arrays: dict[str, np.ndarray]
    faults: dict[int, str]
    counts: Counter[str]


class Classifier(NamedTuple):
    """The classifier of regions that `finetune` has trained on the features of an encoder.

    `weight` is (1 + classes, dim) and `bias` is (1 + classes,). Class 0 is the background. As in R-CNN, at most `most`
    regions of an image are kept, the best first. Regions that overlap a better region by more than `iou` (intersection
    over union) are dropped (Girshick et al. 2014, section 2.2).
    """

    weight: np.ndarray
    bias: np.ndarray
    iou: float
    most: int

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return the probabilities (n, 1 + classes) of all classes for features (n, dim)."""
        return torch.from_numpy(features @ self.weight.T + self.bias).softmax(1).numpy()

    def keep_best(self, regions: Candidates, features: np.ndarray) -> tuple[Candidates, np.ndarray]:
        """Return the best of the n `regions` of an image, and their rows of `features` (n, dim).

        Region 0, the whole image, stays first and keeps its score. The new score of every other region is its highest
        foreground probability. At most `most` of the other regions follow, by falling score, without the regions that
        overlap a better region by more than `iou`.
        """
        scores = self.probabilities(features)[:, 1:].max(axis=1).astype(np.float32)
        scores[:1] = regions.scores[:1]
        kept = suppress(Candidates(regions.boxes[1:], scores[1:]), self.iou, self.most)
        rows = np.concatenate([[0], 1 + kept])
        return Candidates(regions.boxes[rows], scores[rows]), features[rows]


def extract_regions(
    images: Iterable[PreparedImage | Failure], extract: "RegionExtractor", classifier: Classifier | None = None
) -> DescribedRegions:
    """Return the features of the regions of images, which `extract` computes.

    An image that could not be prepared has no regions. If a `classifier` is given, only the regions that its method
    `keep_best` returns are kept.
    """
    faults: dict[int, str] = {}
    usable_numbers: list[int] = []
    regions: list[Candidates] = []
    counts: Counter[str] = Counter()

    def usable() -> Iterator[PreparedImage]:
        for number, image in enumerate(images):
            if isinstance(image, Failure):
                faults[number] = image.reason
                continue
            usable_numbers.append(number)
            regions.append(image.regions)
            counts.update(image.counts)
            yield image

    features = extract(usable())
    if classifier is not None:
        kept = [classifier.keep_best(*pair) for pair in zip(regions, features, strict=True)]
        regions = [part for part, _ in kept]
        features = [rows for _, rows in kept]
    lengths = np.zeros(len(usable_numbers) + len(faults), np.int64)
    lengths[usable_numbers] = [len(part.scores) for part in regions]
    arrays = {
        "features": np.concatenate(features or [np.empty((0, 0), np.float32)]),
        "boxes": np.concatenate([part.boxes for part in regions] or [NONE.boxes]),
        "scores": np.concatenate([part.scores for part in regions] or [NONE.scores]),
        "lengths": lengths,
    }
    return DescribedRegions(arrays, faults, counts)


class RegionExtractor:
    """An encoder of the regions that `view` has rendered, on the device and in the precision of `plan`.

    The constructor raises UsageError if `view` renders whole images and the encoder is not a NetworkEncoder with an
    activation map.
    """

    def __init__(self, encoder: ModuleEncoder, plan: ExtractionPlan, view: Crops | WholeImages) -> None:
        self._by_map = isinstance(view, WholeImages)
        network: Network = encoder
        if self._by_map:
            if not isinstance(encoder, NetworkEncoder):
                raise UsageError(
                    "regions.features roi-align needs an encoder of the kind network. Set regions.features to crops."
                )
            network = region_encoder(encoder)
        self.extractor = Extractor(network, plan)
        self._crop_pixels = encoder.preprocessing.side**2

    def __call__(self, images: Iterable[PreparedImage]) -> list[np.ndarray]:
        """Return the features (regions, dim) float32 of each image, or [] if there are no images.

        The images are read one after another. A batch has whole images of the same size, or crops of one or more
        images.
        """
        if self._by_map:
            started: list[tuple[list[tuple[int, int]], Arriving]] = []
            for bucket in self._buckets(images):
                pixels = torch.from_numpy(np.stack([image.pixels for _, image in bucket]))
                output = self.extractor.start(pixels, _pad_boxes([image for _, image in bucket]))
                started.append(([(number, len(image.regions.boxes)) for number, image in bucket], output))
            by_image: dict[int, np.ndarray] = {}
            for counted, output in started:
                for (number, count), rows in zip(counted, output.numpy(), strict=True):
                    by_image[number] = rows[:count]
            return [by_image[number] for number in sorted(by_image)]
        counts = []

        def crops() -> Iterator[np.ndarray]:
            for image in images:
                counts.append(len(image.pixels))
                yield from image.pixels

        features = self.extractor(crops())
        return np.split(features, np.cumsum(counts)[:-1]) if counts else []

    def _buckets(self, images: Iterable[PreparedImage]) -> Iterator[list[tuple[int, PreparedImage]]]:
        """Yield batches of images of the same size. Each image comes with its position in `images`."""
        buckets: dict[tuple[int, ...], list[tuple[int, PreparedImage]]] = {}
        for number, image in enumerate(images):
            shape = image.pixels.shape
            bucket = buckets.setdefault(shape, [])
            bucket.append((number, image))
            full = self.extractor.plan.batch_size * self._crop_pixels // (shape[0] * shape[1])
            if len(bucket) >= full:
                yield buckets.pop(shape)
        yield from buckets.values()


def _pad_boxes(images: list[PreparedImage]) -> torch.Tensor:
    """Return the boxes (n, k, 4) float32 of n images as shares of their width and height.

    An image with fewer than k boxes is padded with boxes of the whole image.
    """
    boxes = np.zeros((len(images), max(len(image.regions.boxes) for image in images), 4), np.float32)
    boxes[:, :, 2:] = 1
    for row, image in zip(boxes, images, strict=True):
        row[: len(image.regions.boxes)] = image.regions.boxes / np.tile(np.asarray(image.size, np.float32), 2)
    return torch.from_numpy(boxes)


POOLING = {"mean": np.add, "max": np.maximum}
BATCH_REGIONS = 32
"""Number of regions that PooledEncoder encodes at once."""
MAX_CROP_SIDE = 1024
"""Largest side of a crop in pixels that a stored encoder may have. An encoder with a larger side is refused, because an
image can have more than a hundred crops."""


def pool(features: np.ndarray, offsets: np.ndarray, pooling: str) -> np.ndarray:
    """Pool the features (total, dim) of the regions of n images by their mean or max: (n, dim) float32.

    The regions of image i are the rows offsets[i] to offsets[i + 1] - 1. Each image must have at least one region.
    """
    pooled = POOLING[pooling].reduceat(features, offsets[:-1], axis=0)
    return pooled / np.diff(offsets)[:, None].astype(np.float32) if pooling == "mean" else pooled


class PooledEncoder(ImageEncoder):
    """Image encoder that pools the features of regions: (n, dim) float32.

    `network` computes the features of regions, and `regions` has the settings of the section `regions`. If the
    proposals are boxes of a file or of a detector, a query image has no proposals. Its regions are then the whole image
    and, if the setting `fill` is true, windows of a grid.
    """

    def __init__(self, network: ModuleEncoder, regions: Settings, pooling: str) -> None:
        super().__init__(network.preprocessing)
        self.network = network
        self.regions = regions
        self.pooling = pooling
        self._cutting = Cutting.from_settings(regions, network.preprocessing)
        plan = ExtractionPlan(torch.device("cpu"), torch.float32, BATCH_REGIONS)
        self._extractor = RegionExtractor(network, plan, self._cutting.view)

    @property
    def dim(self) -> int:
        return self.network.dim

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        """Return the features (n, dim) float32 of n RGB images, at least one, computed on the CPU.

        A feature is the mean or maximum, as `pooling` says, over the regions of an image.
        """
        features = self._extractor(self._cutting(image, NONE) for image in images)
        return pool(np.concatenate(features), np.cumsum([0, *map(len, features)]), self.pooling)

    def extractor(self, device: str, precision: str, batch_size: int) -> Extractor:
        """Raise UsageError in any case: the stage `extract` cannot be used for this encoder, since regions must be
        extracted first."""
        raise UsageError(
            "An encoder of the kind pooled cannot be used with `jointspace stage extract`. Use"
            " `jointspace stage extract-regions` and `jointspace stage pool-regions`."
        )

    def settings(self) -> dict[str, Any]:
        network = self.network.settings()
        return {
            "architecture": "pooled",
            "layer": f"{self.pooling} over regions of {network['architecture']}, {network['layer']}",
            "weights": network["weights"],
            "pooling": self.pooling,
            "regions": dict(self.regions),
            "network": network,
        }

    def tensors(self) -> dict[str, np.ndarray]:
        return self.network.tensors()

    def save(self, folder: Path) -> None:
        self.network.save(folder)

    @classmethod
    def restore(cls, stored: StoredEncoder) -> "PooledEncoder":
        settings = stored.settings
        if (settings["regions"]["crop_side"] or 1) > MAX_CROP_SIDE:
            raise ValueError(
                f"crop_side is {settings['regions']['crop_side']} pixels, but at most {MAX_CROP_SIDE} pixels are"
                " allowed"
            )
        network = restore_encoder(ImageEncoder, EncoderParts(settings["network"], stored.tensors, stored.library))
        return cls(_require_network(network), settings["regions"], settings["pooling"])

    @classmethod
    def prepare(cls, entry: "PooledEntry", material: EncoderMaterial) -> "PooledEncoder":
        """Make the encoder of an entry, with the network of the encoder that the key `of` of the entry names.

        Raises ValueError if that encoder is not a network.
        """
        assert material.base is not None
        network = restore_encoder(ImageEncoder, material.base)
        return cls(_require_network(network), material.regions, entry.pooling)


def _require_network(encoder: ImageEncoder) -> ModuleEncoder:
    """Return the encoder if it is a network, which can encode regions. Otherwise raise ValueError."""
    if not isinstance(encoder, ModuleEncoder):
        raise ValueError(f"{type(encoder).__name__} cannot encode regions")
    return encoder
