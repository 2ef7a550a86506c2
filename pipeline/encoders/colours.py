"""Colour histograms of an image and of its horizontal bands, an encoder without weights."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pipeline.encoders.image_encoder import ImageEncoder, preprocessing_of
from pipeline.encoders.material import EncoderMaterial, Settings
from pipeline.images.preprocess import Preprocessing

if TYPE_CHECKING:
    from pipeline.config.encoders import ColoursEntry

MAX_LEVELS = 16
"""Largest number of levels per channel. A histogram with 16 levels has 4,096 cells. A stored encoder with more levels
is refused."""
MAX_BANDS = 16
"""Largest number of bands. A stored encoder with more bands is refused."""


@dataclass(frozen=True)
class ColourBins:
    """The cells of the histograms: `levels` per channel for the whole image, and `band_levels` per channel for each of
    the `bands`, which are horizontal stripes of equal height."""

    levels: int
    bands: int
    band_levels: int


class ColourHistograms(ImageEncoder):
    """Frequencies of colours (Swain and Ballard 1991) in the whole image and in horizontal bands of equal height.

    The bands are one level of a spatial pyramid (Lazebnik et al. 2006). A feature has `levels` ** 3 + `bands` *
    `band_levels` ** 3 values, which are shares of all pixels: the values of the whole image sum to 1, and the values of
    all bands together as well. With the square roots of the values, which the models take by default, the inner product
    of two features is the sum of the Bhattacharyya coefficients of their histograms.
    """

    def __init__(self, preprocessing: Preprocessing, bins: ColourBins) -> None:
        super().__init__(preprocessing)
        self.bins = bins

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        bands = torch.tensor_split(pixels, self.bins.bands, dim=1)
        parts = [(pixels, self.bins.levels), *((band, self.bins.band_levels) for band in bands)]
        area = pixels.shape[1] * pixels.shape[2]
        return torch.cat([_count_colours(part, levels) for part, levels in parts], dim=1) / area

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "kind": "colours", **asdict(self.bins)}

    @classmethod
    def prepare(cls, entry: "ColoursEntry", material: EncoderMaterial) -> "ColourHistograms":
        """Make the encoder of an entry of the configuration."""
        return cls(preprocessing_of(entry), ColourBins(entry.levels, entry.bands, entry.band_levels))

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "ColourHistograms":
        """Make an encoder from the result of `settings`.

        Raises ValueError for a number of levels or bands that is not from 1 to MAX_LEVELS or MAX_BANDS.
        """
        bins = ColourBins(settings["levels"], settings["bands"], settings["band_levels"])
        limits = {"levels": MAX_LEVELS, "bands": MAX_BANDS, "band_levels": MAX_LEVELS}
        for name, limit in limits.items():
            if not isinstance(settings[name], int) or not 1 <= settings[name] <= limit:
                raise ValueError(f"{name} is {settings[name]!r}, but must be a whole number from 1 to {limit}")
        return cls(Preprocessing.from_dict(settings["preprocessing"]), bins)


def _count_colours(pixels: torch.Tensor, levels: int) -> torch.Tensor:
    """Return the number of pixels of each of n images in each cell of a histogram: (n, levels ** 3) float32. `pixels`
    is (n, height, width, 3) uint8."""
    red, green, blue = (pixels.long() * levels // 256).unbind(3)
    cells = ((red * levels + green) * levels + blue).flatten(1)
    counts = torch.zeros(len(cells), levels**3, device=cells.device)
    return counts.scatter_add_(1, cells, torch.ones_like(cells, dtype=torch.float32))
