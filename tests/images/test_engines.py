"""Engines: torch's features by other libraries, and the choice between them."""

import threading
from collections import Counter

import numpy as np
import pytest
import torch
from pictures import make_encoder, make_image, make_pixels

from pipeline.errors import UsageError
from pipeline.images import engines, extraction
from pipeline.images.boxes import Candidates
from pipeline.images.engines import engine_encoder, export_program
from pipeline.images.extraction import ExtractionPlan, Extractor, choose_plan
from pipeline.images.networks import NetworkEncoder
from pipeline.images.preparation import PreparedImage
from pipeline.images.regions import RegionExtractor, choose_region_plan
from pipeline.images.warping import WholeImages
from pipeline.precision import fast_at_bfloat16
from pipeline.specs.engines import ENGINES, EngineSpec

CPU = torch.device("cpu")
REAL = [(spec, precision) for spec in ENGINES for precision in spec.precisions]
MANY = 10**6


@pytest.mark.parametrize(("spec", "precision"), REAL, ids=lambda one: getattr(one, "name", one))
def test_features_are_those_of_torch(spec: EngineSpec, precision: str) -> None:
    for module in spec.modules:
        pytest.importorskip(module)
    encoder, pixels = make_encoder(), make_pixels(5)
    with torch.inference_mode():
        expected = encoder(torch.from_numpy(pixels)).numpy()
    plan = ExtractionPlan(CPU, getattr(torch, precision), 4, spec.name)
    if precision == "bfloat16" and not fast_at_bfloat16(CPU):
        with pytest.raises(UsageError, match="cannot compute"):
            list(Extractor(encoder, plan)(pixels))
        return
    blocks = list(Extractor(encoder, plan)(pixels))
    found = np.concatenate(blocks)
    assert found.dtype == np.float32 and [len(block) for block in blocks] == [4, 1]
    cosine = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosine.min() > 0.999
    if precision == "float32":
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("spec", ENGINES, ids=lambda spec: spec.name)
def test_an_engine_takes_pictures_of_several_sizes(spec: EngineSpec) -> None:
    for module in spec.modules:
        pytest.importorskip(module)
    encoder = make_encoder()
    computed = engine_encoder(encoder.optimised(CPU, torch.float32), spec.name, "float32")
    for side in (64, 96, 64):
        pixels = torch.from_numpy(np.random.default_rng(side).integers(0, 256, (3, side, side, 3), np.uint8))
        with torch.inference_mode():
            found, expected = computed(pixels), encoder(pixels)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize(("spec", "precision"), REAL, ids=lambda one: getattr(one, "name", one))
@pytest.mark.parametrize(("layer", "flip"), [("average", True), ("fc7", False)])
def test_regions_of_a_map_are_those_of_torch(spec: EngineSpec, precision: str, layer: str, flip: bool) -> None:
    """Of photographs of several sizes, more and fewer than one compiled graph was made from."""
    for module in spec.modules:
        pytest.importorskip(module)
    if precision == "bfloat16" and not fast_at_bfloat16(CPU):
        pytest.skip("this processor emulates bfloat16")
    encoder = make_encoder("alexnet", layer=layer, flip=flip, side=128)
    images = [make_photograph(*size) for size in ((128, 128), (192, 128), (128, 352), (192, 128))]
    found, expected = (
        np.concatenate(RegionExtractor(encoder, ExtractionPlan(CPU, dtype, 4, engine), WholeImages(128, 32, 4))(images))
        for dtype, engine in ((getattr(torch, precision), spec.name), (torch.float32, "torch"))
    )
    cosine = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert len(found) == 12 and cosine.min() > 0.998
    if precision == "float32":
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def make_photograph(width: int, height: int) -> PreparedImage:
    """With three regions."""
    boxes = np.float32([[0, 0, width, height], [8, 16, width // 2, height - 9], [40.5, 3, width, height // 3]])
    regions, pixels = Candidates(boxes, np.ones(3, np.float32)), np.asarray(make_image(width, (width, height)))
    return PreparedImage(regions, pixels, (width, height), Counter(), 0.0, 0.0)


def right(program, precision, threads):
    """An engine: torch itself."""
    module, lock = program.module(), threading.Lock()

    def compute(pixels: np.ndarray) -> np.ndarray:
        with lock, torch.no_grad():
            return module(torch.from_numpy(pixels)).numpy()

    return compute


def wrong(program, precision, threads):
    """Its features stand in another order."""
    compute = right(program, precision, threads)
    return lambda pixels: compute(pixels)[:, ::-1]


def failing(program, precision, threads):
    raise NotImplementedError("an operation that it does not know")


def crashing(program, precision, threads):
    def compute(pixels: np.ndarray) -> np.ndarray:
        raise MemoryError

    return compute


def empty(program, precision, threads):
    """Its features are no numbers."""
    compute = right(program, precision, threads)
    return lambda pixels: compute(pixels) * np.float32("nan")


def make_short() -> NetworkEncoder:
    """Of few layers, which are exported in a moment."""
    return make_encoder("alexnet")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Engines of this file, and the seconds of an image that each, and torch, takes."""
    specs = [
        EngineSpec(name=one.__name__, place=f"{__name__}:{one.__name__}", modules=("json",), extra="serve")
        for one in (right, wrong, failing, crashing, empty)
    ]
    specs.append(EngineSpec(name="missing", place="no_such_module:x", modules=("no_such_module",), extra="serve"))
    seconds = {"torch": 1.0, "right": 0.5, "wrong": 0.1, "failing": 0.1, "crashing": 0.1, "empty": 0.1}
    for module in (extraction, engines):
        monkeypatch.setattr(module, "ENGINES", tuple(specs))
    monkeypatch.setattr(extraction, "_seconds", lambda encoder, extractor: seconds[extractor.plan.engine])
    monkeypatch.setattr(extraction, "fast_at_bfloat16", lambda device: False)
    return seconds


def test_auto_takes_the_fastest_that_agrees(known: dict[str, float]) -> None:
    encoder = make_short()
    assert choose_plan(encoder, "cpu", "auto", 4, "auto", MANY).described == {"precision": "float32", "engine": "right"}
    known["right"] = 2.0
    assert choose_plan(encoder, "cpu", "auto", 4, "auto", MANY).engine == "torch"


@pytest.mark.parametrize("engine", ["auto", "right"])
def test_what_was_compiled_to_be_tried_extracts(
    known: dict[str, float], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, other = make_short(), make_encoder("alexnet", seed=1)
    plan, compiled = choose_plan(encoder, "cpu", "auto", 4, engine, MANY), []
    monkeypatch.setattr(engines, "export_program", lambda *given: compiled.append(given) or export_program(*given))
    expected = (
        np.concatenate(list(Extractor(one, ExtractionPlan(CPU, torch.float32, 4))(make_pixels(3))))
        for one in (encoder, other)
    )
    for one, features in zip((encoder, other), expected, strict=True):
        found = np.concatenate(list(Extractor(one, plan)(make_pixels(3))))
        np.testing.assert_allclose(found, features, rtol=1e-3, atol=1e-4 * np.abs(features).max())
        assert bool(compiled) == (one is other)  # a plan of one encoder has not compiled another


def test_maps_are_computed_by_the_fastest_that_agrees(known: dict[str, float]) -> None:
    view, encoder = WholeImages(96, 32, 2.5), make_short()
    hardware = "cpu", "auto", 4
    assert choose_region_plan(encoder, view, MANY, 5, *hardware, "auto").engine == "right"
    assert choose_region_plan(encoder, view, extraction.PAYS - 1, 5, *hardware, "auto").engine == "torch"
    assert choose_region_plan(encoder, view, MANY, 5, *hardware, "torch").engine == "torch"
    assert choose_region_plan(encoder, view, 1, 5, *hardware, "right").engine == "right"
    with pytest.raises(UsageError, match=r"cosine of 0\.\d+ to torch's"):
        choose_region_plan(encoder, view, 1, 5, *hardware, "wrong")
    known["right"] = 2.0
    assert choose_region_plan(encoder, view, MANY, 5, *hardware, "auto").engine == "torch"


def test_auto_tries_nothing_for_a_few_images(known: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "_try", lambda *_: pytest.fail("an engine was tried"))
    assert choose_plan(make_short(), "cpu", "auto", 4, "auto", extraction.PAYS - 1).engine == "torch"
    assert choose_plan(make_short(), "cpu", "bfloat16", 4, "auto", MANY).engine == "torch"  # none computes it


def test_a_named_engine_that_cannot_be_used_is_refused(known: dict[str, float]) -> None:
    encoder = make_short()
    assert choose_plan(encoder, "cpu", "auto", 4, "right").engine == "right"
    for engine, precision, said in (
        ("wrong", "auto", r"cosine of 0\.\d+ to torch's; set extract.engine to auto"),
        ("empty", "auto", "cosine of nan to torch's"),
        ("failing", "auto", r"cannot compute the encoder in float32 \(NotImplementedError: an operation"),
        ("missing", "auto", r"missing needs no_such_module; pip install 'jointspace\[serve\]'"),
        ("right", "bfloat16", "right does not compute in bfloat16"),
        ("rihgt", "auto", "unknown engine rihgt; did you mean right"),
    ):
        with pytest.raises(UsageError, match=said):
            choose_plan(encoder, "cpu", precision, 4, engine)
