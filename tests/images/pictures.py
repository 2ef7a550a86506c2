"""Synthetic photos and encoders for the tests in this folder."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from pipeline.images.preprocess import Preprocessing

if TYPE_CHECKING:  # Otherwise each worker process of a test would import torch.
    import torch

    from pipeline.encoders.networks import NetworkEncoder, NetworkSpec

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def make_image(seed: int, size: tuple[int, int] = (90, 70)) -> Image.Image:
    """Return an RGB image of `size` (width, height) with smooth colours, like a photo."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def make_tiff(
    samples: np.ndarray,
    photometric: int,
    planes: bool = False,
    extras: Sequence[int] = (),
    order: str = "<",
    deflate: bool = False,
    tile: int = 0,
    tags: Mapping[int, tuple[int, Sequence[int] | bytes]] | None = None,
) -> bytes:
    """Return samples (height, width, bands) as a TIFF file, with one strip per plane or, if `tile` is not 0, with
    square tiles of this side in pixels.

    `photometric` is the value of PhotometricInterpretation, `planes` says whether each band has its own plane, `extras`
    are the values of ExtraSamples, and `order` is the byte order of NumPy. `tags` maps the number of each further tag
    to its type and values.
    """
    height, width, bands = samples.shape
    side = tile or max(height, width)
    blocks = [
        np.pad(block, ((0, side - len(block)), (0, side - block.shape[1]), (0, 0))) if tile else block
        for plane in (np.split(samples, bands, axis=2) if planes else [samples])
        for rows in np.split(plane, range(side, height, side))
        for block in np.split(rows, range(side, width, side), axis=1)
    ]
    stored = [block.astype(block.dtype.newbyteorder(order)).tobytes() for block in blocks]
    stored = [zlib.compress(block) for block in stored] if deflate else stored
    starts = [8 + sum(map(len, stored[:number])) for number in range(len(stored))]
    at = {True: (324, 325), False: (273, 279)}[bool(tile)]
    entries = {
        256: (4, [width]), 257: (4, [height]), 258: (3, [8 * samples.itemsize] * bands),
        259: (3, [8 if deflate else 1]), 262: (3, [photometric]), at[0]: (4, starts), 277: (3, [bands]),
        278: (4, [height]), at[1]: (4, [*map(len, stored)]), 284: (3, [1 + planes]),
        339: (3, [1 + "uif".index(samples.dtype.kind)] * bands),
    }  # fmt: skip
    entries |= {338: (3, list(extras))} if extras else {}
    entries |= {322: (3, [tile]), 323: (3, [tile])} if tile else {}
    body = b"".join(stored)
    table = b""
    for tag, (type, values) in sorted((entries | dict(tags or {})).items()):
        letter = {2: "s", 3: "H", 4: "I", 7: "s"}[type]
        data = values if isinstance(values, bytes) else struct.pack(f"{order}{len(values)}{letter}", *values)
        if len(data) > 4:
            body += data
            data = struct.pack(f"{order}I", 8 + len(body) - len(data))
        table += struct.pack(f"{order}HHI", tag, type, len(values)) + data.ljust(4, b"\0")
    mark = {"<": b"II", ">": b"MM"}[order]
    head = mark + struct.pack(f"{order}HI", 42, 8 + len(body))
    return head + body + struct.pack(f"{order}H", len(table) // 12) + table + bytes(4)


def make_spec(
    architecture: str = "squeezenet1_1", layer: str = "average", side: int = 64, **more: object
) -> "NetworkSpec":
    from pipeline.encoders.networks import NetworkSpec

    return NetworkSpec(architecture, layer, Preprocessing(side, None, MEAN, STD), **{"flip": False, **more})


def make_encoder(architecture: str = "squeezenet1_1", seed: int = 0, **more: object) -> "NetworkEncoder":
    from pipeline.encoders.networks import untrained

    return untrained(make_spec(architecture, **more), seed)


def make_pixels(count: int, side: int = 64) -> np.ndarray:
    """Return the pixels (count, side, side, 3) uint8 of smooth random images."""
    return np.stack([np.asarray(make_image(seed, (side, side))) for seed in range(count)])


def normalise(pixels: np.ndarray) -> "torch.Tensor":
    """Normalise pixels (n, side, side, 3) uint8 to (n, 3, side, side) float32 by MEAN and STD, in a straightforward
    way, as a reference."""
    import torch

    scaled = (pixels.astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
    return torch.from_numpy(scaled.transpose(0, 3, 1, 2).copy())
