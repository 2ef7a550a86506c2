"""Figures as files: every number stands where the axes say, and what is drawn again is the same file."""

import re

import numpy as np

from pipeline.report.figures import draw_sweep

ROWS = [
    {
        "chosen": chosen, "auxiliary_folds": weak, "target_folds": folds,
        "test_image_to_sentence_recall@10": 90 - folds * 10 + weak if chosen else 0,
        "test_sentence_to_image_recall@10": 20 + folds * weak,
    }
    for chosen in (False, True) for weak in (2, 0) for folds in (4, 1, 2)
]  # fmt: skip


def read_axes(svg: str) -> list[list[np.ndarray]]:
    """The points (n, 2) of every line of each pair of axes, in the units of its ticks; all share the first one's y."""
    found, up = [], None
    for axes in svg.split('<g id="axes_')[1:]:
        ticks = re.findall(r'"([xy])tick_.*?<use [^>]*x="([\d.]+)" y="([\d.]+)".*?<!-- ([\d.]+) -->', axes, re.S)
        x, y = ([tick for tick in ticks if tick[0] == axis] for axis in "xy")
        across = np.polyfit([float(tick[1]) for tick in x], [float(tick[3]) for tick in x], 1)
        up = np.polyfit([float(tick[2]) for tick in y], [float(tick[3]) for tick in y], 1) if up is None else up
        paths = re.findall(
            r'<path d="([^"]+)" clip-path="[^"]+" style="fill: none; stroke: #(?!b0b0b0)', axes
        )  # the grid
        points = [np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", path), float) for path in paths]
        found.append([np.stack([np.polyval(across, p[:, 0]), np.polyval(up, p[:, 1])], axis=1) for p in points])
    return found


def test_every_chosen_combination_stands_where_the_axes_say() -> None:
    svg = draw_sweep(ROWS, "ncca", 100).decode()
    (images, images_weak), (sentences, sentences_weak) = read_axes(svg)
    np.testing.assert_allclose(images, [(100, 80), (200, 70), (400, 50)], atol=0.1)
    np.testing.assert_allclose(images_weak, [(100, 82), (200, 72), (400, 52)], atol=0.1)
    np.testing.assert_allclose(sentences, [(100, 20), (200, 20), (400, 20)], atol=0.1)
    np.testing.assert_allclose(sentences_weak, [(100, 22), (200, 24), (400, 28)], atol=0.1)
    assert "2 folds of weak text" in svg and "0 folds" not in svg


def test_the_same_curve_is_the_same_svg() -> None:
    first, again = (draw_sweep(ROWS, "ncca", 100) for _ in range(2))
    assert first == again and first.lstrip().startswith(b"<?xml")
