"""Tests of proposals: the boxes of each method, the selection of regions, and the counts of refused boxes."""

import numpy as np
import pytest
import torch
from pictures import make_image
from torchvision.models import get_model
from torchvision.ops import box_iou, nms

from pipeline.compute.workers import Failure
from pipeline.encoders.detectors import build_detector, detect
from pipeline.errors import InputError
from pipeline.foreign.box_formats import parse_boxes
from pipeline.images.boxes import (
    NONE,
    Candidates,
    Selection,
    overlaps,
    propose_windows,
    search_selectively,
    select,
    suppress,
    tidy,
    window_grid,
)

SELECTION = Selection(iou=0.5, count=19, fill=True)
DETECTOR = "fasterrcnn_mobilenet_v3_large_320_fpn"


def random_candidates(seed: int, count: int, size: tuple[int, int] = (100, 80)) -> Candidates:
    rng = np.random.default_rng(seed)
    corners = rng.random((count, 2, 2)) * size
    return Candidates(np.hstack([corners.min(1), corners.max(1)]).astype(np.float32), rng.random(count, np.float32))


def test_overlaps_and_suppression_equal_those_of_torchvision() -> None:
    a = random_candidates(0, 60)
    b = random_candidates(1, 200)
    expected = box_iou(torch.from_numpy(a.boxes), torch.from_numpy(b.boxes)).numpy()
    np.testing.assert_allclose(overlaps(a.boxes, b.boxes), expected, atol=1e-5)
    for iou in (0.0, 0.3, 0.7, 1.0):
        kept = nms(torch.from_numpy(b.boxes), torch.from_numpy(b.scores), iou).numpy()
        assert suppress(b, iou, 1000).tolist() == kept.tolist()
        assert suppress(b, iou, 5).tolist() == kept[:5].tolist()


def test_bad_boxes_are_clipped_or_refused_with_a_reason() -> None:
    boxes = [
        [10, 10, 30, 30],
        [-5, 10, 30, 90],  # This box extends beyond three sides of the image.
        [30, 10, 10, 30],  # This box has x2 < x1.
        [200, 10, 230, 30],  # This box is outside the image.
        [10, 10, 10, 30],  # This box has no width.
        [10, 10, 12, 30],  # This box is narrower than the smallest side.
        [np.nan, 10, 12, 30],
        [10, 10, 30, np.inf],
    ]
    kept, counts = tidy(Candidates(np.array(boxes), np.ones(len(boxes))), (100, 80), 4)
    assert kept.boxes.tolist() == [[10, 10, 30, 30], [0, 10, 30, 80]]
    assert counts == {"clipped": 1, "wrong-order": 1, "outside": 1, "too-small": 2, "not-finite": 2}
    assert tidy(NONE, (1, 1), 1)[0].boxes.shape == (0, 4)


@pytest.mark.parametrize("size", [(100, 80), (1, 1), (1, 20000), (20000, 1), (7, 3)])
def test_windows_lie_inside_and_cover_the_image(size: tuple[int, int]) -> None:
    proposed = propose_windows(size)
    windows = proposed.boxes
    assert len(windows) < 2000 and set(tidy(proposed, size, 0)[1]) <= {"too-small"}
    regions, _ = select(proposed, size, SELECTION)
    assert (regions.boxes[:, 2:] > regions.boxes[:, :2]).all()
    assert (windows >= 0).all() and (windows <= np.float32([*size, *size])).all()
    assert (windows[:, 2:] > windows[:, :2]).all()
    square = window_grid(size, 0.5, 1.0)
    assert len(square) == 9  # There are 3 x 3 positions, and neighbours overlap by half a side.
    np.testing.assert_allclose([square[:, :2].min(0), square[:, 2:].max(0)], [(0, 0), size], rtol=1e-5)
    np.testing.assert_allclose((square[0, :2] + square[0, 2:]) / 2, np.array(size) / 2, rtol=1e-5)


def test_regions_are_the_whole_image_then_the_best_then_windows() -> None:
    given = random_candidates(3, 12)
    regions, counts = select(given, (100, 80), SELECTION)
    assert regions.boxes[0].tolist() == [0, 0, 100, 80] and regions.scores[0] == 1
    assert len(regions.boxes) == 20 and regions.boxes.dtype == np.float32
    chosen, _ = tidy(given, (100, 80), 4)
    kept = nms(torch.from_numpy(chosen.boxes), torch.from_numpy(chosen.scores), 0.5).numpy()
    assert np.array_equal(regions.boxes[1 : 1 + len(kept)], chosen.boxes[kept])
    assert (np.diff(regions.scores[1:]) <= 0).all() and counts["filled"] == 19 - len(kept)
    among = overlaps(regions.boxes[1:], regions.boxes[1:])
    assert among[~np.eye(19, dtype=bool)].max() <= 0.5


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return get_model(DETECTOR, weights=None, weights_backbone=None, num_classes=5).state_dict()


def test_a_detector_has_the_classes_of_its_weights(weights: dict) -> None:
    network = build_detector(DETECTOR, weights, "w.pt")
    pixels = np.array(make_image(2, (90, 70)))
    images = [pixels, Failure("truncated"), pixels[:1, :1], pixels]
    for stage in ("detections", "rpn"):
        found = list(detect(network, images, torch.device("cpu"), stage, 1))
        assert len(found) == 4 and len(found[1].boxes) == 0
        assert np.array_equal(found[0].boxes, found[3].boxes)
        assert (np.diff(found[0].scores) <= 0).all()
        assert not set(tidy(found[0], (90, 70), 0)[1]) - {"too-small", "clipped"}
    proposals = list(detect(network, [pixels], torch.device("cpu"), "rpn", 1))[0]
    images, _ = network.transform([torch.from_numpy(pixels).permute(2, 0, 1) / 255])
    with torch.inference_mode():
        plain = network.rpn(images, network.backbone(images.tensors))[0][0].numpy()
    height, width = images.image_sizes[0]
    plain = plain * np.float32([90 / width, 70 / height] * 2)
    np.testing.assert_allclose(np.sort(proposals.boxes, 0), np.sort(plain, 0), atol=1e-3)


def test_only_a_detector_in_tf32_lets_a_gpu_round_its_products(weights: dict) -> None:
    """Checks the settings of torch that allow TF32, with and without `in_tf32`. The settings are checked while the
    network computes, and after the computation, when the former settings must be restored."""
    network = build_detector(DETECTOR, weights, "w.pt")
    seen = []
    pixels = np.array(make_image(2, (90, 70)))

    def read() -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    network.backbone.register_forward_hook(lambda *_: seen.append(read()))
    before = read()
    for in_tf32 in (False, True):
        list(detect(network, [pixels], torch.device("cpu"), "rpn", 1, in_tf32))
    assert seen == [("highest", False), ("high", True)] and read() == before


XML = b"""<annotation><filename>7.jpg</filename>
<object><name>12</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40</ymax></bndbox></object>
<object><name>13</name><scene>1</scene><nobndbox>1</nobndbox></object></annotation>"""
COCO = b"""{"images": [{"id": 5, "file_name": "7.jpg"}], "categories": [{"id": 3, "name": "dog"}],
"annotations": [{"image_id": 5, "category_id": 3, "bbox": [1, 2, 29, 38]}]}"""
RESULTS = b'[{"image_id": "7.jpg", "category_id": 3, "bbox": [1, 2, 29, 38], "score": 0.5}]'
TABLE = b"file\tx1\ty1\tx2\ty2\tscore\tlabel\n7.jpg\t1\t2\t30\t40\t0.5\tdog\n"


@pytest.mark.parametrize(
    ("source", "data", "score", "label"),
    [("a.xml", XML, 1, "12"), ("a.json", COCO, 1, "dog"), ("b.json", RESULTS, 0.5, "3"), ("a.tsv", TABLE, 0.5, "dog")],
)
def test_boxes_of_each_format_are_read(source: str, data: bytes, score: float, label: str) -> None:
    assert list(parse_boxes(data, source)) == [("7.jpg", (1, 2, 30, 40), score, label)]


@pytest.mark.parametrize(
    ("source", "data", "where"),
    [
        ("a.csv", TABLE, ""),
        ("a.xml", XML[:-20], ""),
        ("a.xml", b"<!DOCTYPE a [<!ENTITY b 'c'>]><annotation/>", ""),
        ("a.xml", XML.replace(b"<xmax>30</xmax>", b""), "object 0"),
        ("a.xml", b"<annotation/>", ""),
        ("a.json", b"{}", ""),
        ("a.json", b'[{"bbox": [1, 2]}]', "annotation 0"),
        ("a.tsv", TABLE.replace(b"30", b"x"), "row 2"),
        ("a.tsv", TABLE[10:], "file"),
        ("a.tsv", b"file\tx1\n\xff", "line 2"),
    ],
)
def test_unreadable_boxes_name_the_file_and_the_row(source: str, data: bytes, where: str) -> None:
    with pytest.raises(InputError, match=f"{source}.*{where}"):
        list(parse_boxes(data, source))


def test_selective_search_finds_a_block() -> None:
    pytest.importorskip("cv2.ximgproc", reason="OpenCV's contributed modules are not installed")
    pixels = np.full((120, 160, 3), 200, np.uint8)
    pixels[30:80, 40:110] = (200, 30, 30)
    found = search_selectively(pixels)
    assert np.abs(found.boxes - [40, 30, 110, 80]).max(axis=1).min() <= 3
    assert (found.boxes >= 0).all() and (found.boxes <= [160, 120, 160, 120]).all()
    assert (np.diff(found.scores) < 0).all()
