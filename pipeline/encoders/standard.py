"""The image encoder `standard`: GIST, colours and pooled local descriptors, each reduced and then concatenated."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import PCA
from threadpoolctl import threadpool_limits
from torch import nn

from pipeline.compute.device import find_device
from pipeline.encoders.descriptors import GLOBAL, LOCAL, Codebook, DescriptorSampler, PatchGrid, StandardDescriber
from pipeline.encoders.extraction import ExtractionPlan, Extractor
from pipeline.encoders.image_encoder import ImageEncoder, preprocessing_of
from pipeline.encoders.material import EncoderMaterial, Settings, WeightsOrigin
from pipeline.errors import UsageError
from pipeline.images.preprocess import Preprocessing, View

if TYPE_CHECKING:
    from pipeline.config.encoders import StandardEntry

KMEANS_BATCH = 4096
"""Number of descriptors in a batch of k-means."""
MAX_POINTS = 512
"""Largest number of grid points along a side of an image. A stored encoder with more points is refused."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StandardSpec:
    """The settings of a standard encoder.

    `grid` has the points of local descriptors. If `flip` is true, the descriptors of an image and of its mirror image
    are averaged.
    """

    preprocessing: Preprocessing
    grid: PatchGrid
    flip: bool


class PartwiseProjection(nn.Module):
    """Module that centres and projects each kind of descriptor.

    It maps the concatenated descriptors (n, sum of sizes) of n images to (n, sum of part_dims) float32. `parts` maps
    each kind, in the order of the input, to its mean (size,) and its directions (part_dim, size).
    """

    def __init__(self, parts: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
        super().__init__()
        self.parts = parts
        self.sizes = [directions.shape[1] for _, directions in parts.values()]
        for name, (mean, directions) in parts.items():
            self.register_buffer(f"{name}_mean", torch.tensor(mean))
            self.register_buffer(f"{name}_directions", torch.tensor(directions))

    def forward(self, described: torch.Tensor) -> torch.Tensor:
        blocks = zip(self.parts, described.split(self.sizes, dim=1), strict=True)
        centred = {name: block - self.get_buffer(f"{name}_mean") for name, block in blocks}
        return torch.cat([x @ self.get_buffer(f"{name}_directions").T for name, x in centred.items()], dim=1)

    def optimised(self, device: torch.device, dtype: torch.dtype) -> "PartwiseProjection":
        """Return a copy on `device`, in `dtype`."""
        return PartwiseProjection(self.parts).to(device, dtype)


class StandardEncoder(ImageEncoder):
    """Image encoder with pooled and projected descriptors (Gong et al. 2014, Table 1).

    `describer` computes the descriptors of one image, in the process that decodes it. `projection` reduces the
    descriptors of a batch. The paper states 6,400 dimensions for VLAD vectors with 500 words, although 500 words of
    unreduced descriptors give more dimensions. Here descriptors are reduced before they are quantised, and the
    configuration sets the number of words and the reduced dimension.
    """

    def __init__(
        self,
        spec: StandardSpec,
        codebooks: Mapping[str, Codebook],
        projection: PartwiseProjection,
        weights: WeightsOrigin,
    ) -> None:
        super().__init__(spec.preprocessing)
        self.spec = spec
        self.describer = StandardDescriber(spec.grid, spec.flip, codebooks)
        self.projection = projection
        self.weights = weights

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.projection(torch.from_numpy(np.stack([self.describer(picture) for picture in pixels.numpy()])))

    def extractor(self, device: str, precision: str, batch_size: int) -> Extractor:
        """Return a function that encodes many images, in batches of `batch_size`.

        The descriptors are computed on the CPU, in the processes that decode the images. Only the projection runs on
        `device`. `precision` is ignored, because everything is computed in float32.
        """
        plan = ExtractionPlan(find_device(device), torch.float32, batch_size)
        return Extractor(self.projection, plan, View(self.preprocessing, self.describer))

    def settings(self) -> dict[str, Any]:
        layer = " + ".join(self.projection.parts)
        return {"architecture": "standard", "layer": layer, **asdict(self.spec), "weights": dict(self.weights)}

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the codebooks and projections, by names such as `hog.codebook.words` and `gist.directions`."""
        tensors = {}
        for kind, codebook in self.describer.codebooks.items():
            tensors |= {f"{kind}.codebook.{name}": value for name, value in codebook._asdict().items()}
        for part, (mean, directions) in self.projection.parts.items():
            tensors |= {f"{part}.mean": mean, f"{part}.directions": directions}
        return tensors

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "StandardEncoder":
        preprocessing = Preprocessing.from_dict(settings["preprocessing"])
        spec = StandardSpec(preprocessing, PatchGrid(**settings["grid"]), settings["flip"])
        if not (0 < spec.grid.patch <= preprocessing.side and preprocessing.side <= MAX_POINTS * spec.grid.step):
            raise ValueError(
                f"the patches of {spec.grid.patch} pixels, one every {spec.grid.step} pixels, must fit in an image of"
                f" {preprocessing.side} x {preprocessing.side} pixels, with at most {MAX_POINTS} patches per side"
            )
        codebooks = {kind: Codebook(*(tensors[f"{kind}.codebook.{n}"] for n in Codebook._fields)) for kind in LOCAL}
        parts = {part: (tensors[f"{part}.mean"], tensors[f"{part}.directions"]) for part in (*GLOBAL, *LOCAL)}
        return cls(spec, codebooks, PartwiseProjection(parts), settings["weights"])

    @classmethod
    def prepare(cls, entry: "StandardEntry", material: EncoderMaterial) -> "StandardEncoder":
        """Learn the encoder from images of the train split. The images for the codebooks are read twice.

        Raises UsageError if the split has fewer than 2 images.
        """
        assert material.images is not None
        seed = material.seed
        train = material.images
        photographs = train.draw(entry.images, seed)
        if len(photographs) < 2:
            raise UsageError(
                f"encoder {entry.name} needs at least 2 train images, but the run has {len(photographs)}. Add images to"
                " the split train."
            )
        spec = StandardSpec(preprocessing_of(entry), PatchGrid(entry.grid_step, entry.patch), entry.flip)
        sampler = DescriptorSampler(spec.grid, entry.descriptors, seed)
        samples = train.apply_to_pixels("codebooks", photographs[: entry.codebook_images], spec.preprocessing, sampler)
        codebooks = learn_codebooks(samples, entry.codebook, entry.descriptor_dim, seed)
        parts = StandardDescriber(spec.grid, spec.flip, codebooks).parts
        described = train.apply_to_pixels("reductions", photographs, spec.preprocessing, parts)
        projection = learn_projection(described, entry.dimensions.model_dump(), seed)
        weights = {"origin": "learned", "images": len(photographs), "seed": seed, "manifest": train.manifest}
        return cls(spec, codebooks, projection, weights)


def learn_codebooks(
    samples: Sequence[Mapping[str, np.ndarray]], words: int, dim: int, seed: int
) -> dict[str, Codebook]:
    """Learn a codebook for each kind of local descriptor.

    `samples` has the result of a DescriptorSampler for each image. Descriptors are reduced to at most `dim` dimensions
    by PCA, and then clustered into `words` words by k-means, or into fewer words if there are fewer descriptors.
    """
    codebooks = {}
    for kind in LOCAL:
        # With float64, rounded to float32 at the end, the result does not depend on the order of the sums.
        descriptors = np.concatenate([sample[kind] for sample in samples]).astype(np.float64)
        with threadpool_limits(1):
            reduction = PCA(min(dim, *descriptors.shape), random_state=seed).fit(descriptors)
            options: dict[str, Any] = {"batch_size": KMEANS_BATCH, "n_init": 3, "random_state": seed}
            kmeans = MiniBatchKMeans(min(words, len(descriptors)), **options).fit(reduction.transform(descriptors))
        learned = (reduction.mean_, reduction.components_, kmeans.cluster_centers_)
        codebooks[kind] = Codebook(*(np.asarray(array, np.float32) for array in learned))
    return codebooks


def learn_projection(
    described: Sequence[Mapping[str, np.ndarray]], dims: Mapping[str, int], seed: int
) -> PartwiseProjection:
    """Learn the projection of each kind of descriptor on its first principal components.

    `described` has the result of `StandardDescriber.parts` for each image, and `dims` the wanted number of components
    for each kind. n images give at most n - 1 components, and a warning is logged if a kind gets fewer components than
    wanted. Each kind is scaled to a total variance of 1, so that all kinds have the same weight.
    """
    parts = {}
    short = []
    for part in (*GLOBAL, *LOCAL):
        stacked = np.stack([picture[part] for picture in described]).astype(np.float64)
        n, size = stacked.shape
        with threadpool_limits(1):
            pca = PCA(min(dims[part], n - 1, size), random_state=seed).fit(stacked)
        components = np.asarray(pca.components_)
        scale = np.sqrt(np.asarray(pca.explained_variance_).sum()) or 1
        parts[part] = np.asarray(pca.mean_, np.float32), (components / scale).astype(np.float32)
        if len(components) < dims[part]:
            short.append(f"{part} {len(components)} instead of {dims[part]}")
    if short:
        log.warning(
            "%d images are too few for the numbers of dimensions in the configuration: %s. Add photos to the split"
            " train.",
            len(described), ", ".join(short),
        )  # fmt: skip
    return PartwiseProjection(parts)
