"""Figures by matplotlib: what they draw, and that what is drawn again is the same file."""

from pipeline.report.figures import draw_sweep, to_svg

ROWS = [
    {
        "chosen": chosen, "auxiliary_folds": weak, "target_folds": folds,
        "test_image_to_sentence_recall@10": 90 - folds * 10 + weak if chosen else 0,
        "test_sentence_to_image_recall@10": 20 + folds * weak,
    }
    for chosen in (False, True) for weak in (2, 0) for folds in (4, 1, 2)
]  # fmt: skip


def test_every_chosen_combination_stands_over_its_number_of_images() -> None:
    images, sentences = draw_sweep(ROWS, "ncca", 100).axes
    for axes, plain, weak in ((images, [80, 70, 50], [82, 72, 52]), (sentences, [20, 20, 20], [22, 24, 28])):
        drawn = [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines]
        assert drawn == [([100, 200, 400], plain), ([100, 200, 400], weak)]
    assert [text.get_text() for text in images.get_legend().get_texts()] == ["2 folds of weak text"]


def test_the_same_curve_is_the_same_svg() -> None:
    first, again = (to_svg(draw_sweep(ROWS, "ncca", 100)) for _ in range(2))
    assert first == again and first.lstrip().startswith(b"<?xml")
