"""The standard visual features: GIST, colours and pooled local descriptors, each reduced, then concatenated."""

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
    from pipeline.config.encoders import EncoderEntry

KMEANS_BATCH = 4096
MAX_POINTS = 512
"""Points of the grid along a side at most."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StandardSpec:
    """A standard encoder before learning; `flip` averages over mirror images."""

    preprocessing: Preprocessing
    grid: PatchGrid
    flip: bool


class PartwiseProjection(nn.Module):
    """Centres and projects each part of a description: (n, sum of sizes) to (n, dim) float32.

    parts: name -> (mean (size,), directions (part_dim, size)), in the order of the description.
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
        """A copy on `device`, in `dtype`."""
        return PartwiseProjection(self.parts).to(device, dtype)


class StandardEncoder(ImageEncoder):
    """Descriptors, pooled and projected (Gong et al. 2014, Table 1).

    `describer` works on one picture, in the decoding process; `projection` on a batch of the results. The paper's VLADs
    of 6,400 dimensions cannot be 500 words of whole descriptors; here descriptors are reduced before quantisation, and
    the configuration sets the number of words and their dimension.
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
        """Describes pictures in the decoding processes, and projects in float32."""
        plan = ExtractionPlan(find_device(device), torch.float32, batch_size)
        return Extractor(self.projection, plan, View(self.preprocessing, self.describer))

    def settings(self) -> dict[str, Any]:
        layer = " + ".join(self.projection.parts)
        return {"architecture": "standard", "layer": layer, **asdict(self.spec), "weights": dict(self.weights)}

    def tensors(self) -> dict[str, np.ndarray]:
        """What was learned, by names such as `hog.codebook.words` and `gist.directions`."""
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
            raise ValueError(f"its grid does not fit a picture of {preprocessing.side} pixels a side")
        codebooks = {kind: Codebook(*(tensors[f"{kind}.codebook.{n}"] for n in Codebook._fields)) for kind in LOCAL}
        parts = {part: (tensors[f"{part}.mean"], tensors[f"{part}.directions"]) for part in (*GLOBAL, *LOCAL)}
        return cls(spec, codebooks, PartwiseProjection(parts), settings["weights"])

    @classmethod
    def prepare(cls, entry: "EncoderEntry", material: EncoderMaterial) -> "StandardEncoder":
        """Learn the encoder from images of the train split. The images for the codebooks are read twice."""
        from pipeline.config.encoders import StandardEntry

        assert isinstance(entry, StandardEntry) and material.images is not None
        seed = material.seed
        train = material.images
        photographs = train.draw(entry.images, seed)
        if len(photographs) < 2:
            raise UsageError(f"encoder {entry.name} needs 2 train images, and there are {len(photographs)}; add some")
        spec = StandardSpec(preprocessing_of(entry), PatchGrid(entry.grid_step, entry.patch), entry.flip)
        sampler = DescriptorSampler(spec.grid, entry.descriptors, seed)
        samples = train.describe("codebooks", photographs[: entry.codebook_images], spec.preprocessing, sampler)
        codebooks = learn_codebooks(samples, entry.codebook, entry.descriptor_dim, seed)
        parts = StandardDescriber(spec.grid, spec.flip, codebooks).parts
        described = train.describe("reductions", photographs, spec.preprocessing, parts)
        projection = learn_projection(described, entry.dimensions.model_dump(), seed)
        weights = {"origin": "learned", "images": len(photographs), "seed": seed, "manifest": train.manifest}
        return cls(spec, codebooks, projection, weights)


def learn_codebooks(
    samples: Sequence[Mapping[str, np.ndarray]], words: int, dim: int, seed: int
) -> dict[str, Codebook]:
    """A codebook for each kind of local descriptor, from the `samples` of a DescriptorSampler, one per picture.

    Descriptors are reduced to at most `dim` dimensions, then clustered into `words` words, or as many as there are
    descriptors.
    """
    codebooks = {}
    for kind in LOCAL:
        # float64, rounded at the end, hides the order of the sums.
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
    """The first `dims` principal directions of each part of `described`, the pictures' `StandardDescriber.parts`.

    There are fewer directions than pictures. Each part is scaled to a total variance of 1, so that all weigh the same.
    """
    parts, short = {}, []
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
        log.warning("dimensions from %d images: %s; more images allow more", len(described), ", ".join(short))
    return PartwiseProjection(parts)
