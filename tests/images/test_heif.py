"""Tests of HEIC photos with and without the extra `heif`."""

import io

import numpy as np
import pytest
from PIL import Image

from pipeline.errors import InputError
from pipeline.images.decode import UnreadableImage, decode, decoding_process
from pipeline.images.opening import ImageLimits

LIMITS = ImageLimits(max_pixels=1_000_000, min_side=8, max_aspect=20, seconds=10)
GRADIENT = np.add.outer(np.arange(64), np.arange(96))[..., None] + np.array([0, 40, 80])


@pytest.fixture(scope="module")
def heic() -> bytes:
    """Return the bytes of a smooth HEIC image of 96 x 64 pixels. Tests are skipped if pillow-heif is not installed."""
    pillow_heif = pytest.importorskip("pillow_heif")
    image = Image.fromarray(GRADIENT.astype(np.uint8))
    pillow_heif.from_pillow(image).save(buffer := io.BytesIO(), quality=95)
    return buffer.getvalue()


def test_heic_photos_have_the_right_pixels(heic: bytes) -> None:
    found = decode(heic, LIMITS)
    assert (found.mode, found.size) == ("RGB", (96, 64))
    assert np.abs(np.asarray(found).astype(int) - GRADIENT).mean() < 4


def test_heic_photos_beyond_the_limits_are_refused(heic: bytes) -> None:
    with pytest.raises(UnreadableImage, match="too-large"):
        decode(heic, ImageLimits(6000, 8, 20))
    with pytest.raises(UnreadableImage, match="too-small"):
        decode(heic, ImageLimits(10**6, 65, 20))
    claimed = heic.replace((96).to_bytes(4), (30_000).to_bytes(4)).replace((64).to_bytes(4), (30_000).to_bytes(4))
    assert claimed != heic
    with pytest.raises(UnreadableImage):
        decode(claimed, LIMITS)


def test_a_damaged_heic_photo_costs_only_itself(heic: bytes) -> None:
    rng = np.random.default_rng(0)
    with decoding_process(LIMITS) as read:
        for cut in range(0, len(heic), max(len(heic) // 25, 1)):
            with pytest.raises(InputError):
                read(heic[:cut])
        for _ in range(60):
            data = bytearray(heic)
            for at in rng.integers(12, len(data), 3):
                data[at] ^= 1 << int(rng.integers(8))
            try:
                found = read(bytes(data))
            except InputError:
                continue
            assert found.size[0] * found.size[1] <= LIMITS.max_pixels
        assert read(heic).size == (96, 64)
