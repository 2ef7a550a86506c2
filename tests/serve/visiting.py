"""The application over the made-up run, as its tests visit it."""

from pathlib import Path

import numpy as np
from fastapi.testclient import TestClient
from made_up import THINGS, features_of

from pipeline.images.decode import ImageLimits, decode
from pipeline.serve.app import build_app
from pipeline.serve.gallery import Gallery
from pipeline.serve.limits import Limits

PIXELS = ImageLimits(max_pixels=1_000_000, min_side=8, max_aspect=20)
LIMITS = Limits(5, 20, 0, 100, 10_000, 5, 4)


def colour_of(thing: int) -> tuple[int, ...]:
    """In which made_up paints its photographs."""
    return tuple(int(c) for c in np.random.default_rng(thing).integers(256, size=3))


def see(data: bytes) -> dict[str, np.ndarray]:
    """An encoder that knows things by their colours."""
    pixel = decode(data, PIXELS).getpixel((0, 0))
    return features_of(THINGS[[colour_of(thing) for thing in range(8)].index(pixel)])


def make_client(gallery: Gallery, limits: Limits = LIMITS, **more: object) -> TestClient:
    app = build_app({"ncca": gallery, "other": gallery}, limits, 2, ["testserver"])
    return TestClient(app, **more)


def photograph(run: Path, name: str = "dog-0.png") -> dict:
    return {"photograph": (name, (run / "data" / name).read_bytes())}
