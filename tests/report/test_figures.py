"""Figures as files: what is drawn again is the same file."""

from pipeline.report.curves import draw_sweep


def test_the_same_curve_is_the_same_svg() -> None:
    recalls = {f"test_{way}_recall@10": 50 for way in ("image_to_sentence", "sentence_to_image")}
    rows = [{"chosen": True, "auxiliary_folds": weak, "target_folds": n, **recalls} for weak in (0, 2) for n in (1, 2)]
    first, again = (draw_sweep(rows, "ncca", 100) for _ in range(2))
    assert first == again and first.lstrip().startswith(b"<?xml") and b"2 folds of weak text" in first
