"""Tests of `bench`, which compares ways to join frozen encoders."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import THINGS, by_colour, features_of, make_run, make_stage, run_command

from pipeline.errors import UsageError
from pipeline.metrics.retrieval import Bootstrap, recall_sum
from pipeline.models.bench import METHODS, Bench, Measured, compare_methods, line_of, mutual_alignment, summarise
from pipeline.models.linear.tuning import PairArrays
from pipeline.models.linear.views import ImageView, TextView
from pipeline.storage.features import write_features
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import shard_path


@pytest.fixture(scope="module")
def bench() -> Bench:
    """Make a bench of two encoders, whose vectors are noisy linear views of the same hidden vectors, with 60 pairs in
    each split."""
    rng = np.random.default_rng(0)
    maps = rng.standard_normal((2, 6, 12))
    splits = {}
    for split in ("train", "dev", "test"):
        x, y = (rng.standard_normal((60, 6)) @ maps + 0.5 * rng.standard_normal((2, 60, 12))).astype(np.float32)
        splits[split] = PairArrays({"eyes": x}, {"words": y}, np.arange(60))
    text = TextView.from_vectors(splits["train"].sentences, {"words": ("l2",)})
    return Bench(ImageView(("eyes",), (12,), ("l2",)), text, splits)


@pytest.fixture(scope="module")
def measured(bench: Bench) -> list[Measured]:
    return list(compare_methods(bench, METHODS, [40], [0]))


def test_every_method_ranks_far_better_than_chance_with_and_without_correction(measured: list[Measured]) -> None:
    """Checks that the sum of the six recalls in percent is greater than 100. Random ranks would have a sum of 53."""
    assert [(one.method, one.hubness) for one in measured] == [
        (method, hubness) for method in METHODS for hubness in ("none", "auto")
    ]
    for one in measured:
        assert recall_sum(one.ranks) > 100, (one.method, one.hubness)
        line = line_of(one)
        recalls = [value for name, value in line.items() if "recall@" in name]
        assert len(recalls) == 6 and line["sum"] == pytest.approx(recall_sum(one.ranks)) == pytest.approx(sum(recalls))


def test_a_draw_has_distinct_pairs_and_depends_on_the_seed(bench: Bench) -> None:
    first, again, other = (bench.draw(20, seed).features["eyes"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first, axis=0)) == 20 and not np.array_equal(first, other)


def test_rows_have_the_mean_over_seeds_and_the_difference_from_the_first(bench: Bench) -> None:
    measured = list(compare_methods(bench, {name: METHODS[name] for name in ("procrustes", "csa")}, [30, 500], [0, 1]))
    assert {one.pairs for one in measured} == {30, 60}  # There are only 60 pairs, so 60 replaces the number 500.
    rows = {row.name: row.cells for row in summarise(measured, Bootstrap(50, 0))}
    assert list(rows) == ["procrustes", "procrustes, hubness: auto", "csa", "csa, hubness: auto"]
    sums = {
        method: [
            recall_sum(one.ranks) for one in measured if (one.method, one.hubness, one.pairs) == (method, "none", 30)
        ]
        for method in ("procrustes", "csa")
    }
    cell = rows["csa"][30]
    assert (cell.mean, cell.deviation) == pytest.approx((np.mean(sums["csa"]), np.std(sums["csa"], ddof=1)))
    assert rows["procrustes"][30].minus is None
    assert cell.minus is not None
    assert cell.minus["difference"] == pytest.approx(np.mean(sums["csa"]) - np.mean(sums["procrustes"]))
    assert cell.minus["ci95"][0] < cell.minus["difference"] < cell.minus["ci95"][1]


def test_mutual_alignment_is_the_share_of_common_neighbours() -> None:
    rng = np.random.default_rng(0)
    sides = rng.standard_normal((2, 30, 4))
    units = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides]
    shares = []
    for i in range(30):
        near = [
            set(sorted((j for j in range(30) if j != i), key=lambda j, u=unit, i=i: -float(u[i] @ u[j]))[:5])
            for unit in units
        ]
        shares.append(len(near[0] & near[1]) / 5)
    assert mutual_alignment(sides[0], sides[1], 5) == pytest.approx(np.mean(shares))
    assert mutual_alignment(sides[0], sides[0], 5) == 1


def test_the_command_writes_a_table_and_a_page(
    measured: list[Measured], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path / "run", images=48, held_out="dev+test")
    manifest = Manifest(run / "manifest")
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        ids = np.arange(rows.first_image, rows.last_image)
        features = np.concatenate([features_of(THINGS[i % 8])["colour"] for i in ids])
        features += np.random.default_rng(number).normal(0, 0.1, features.shape).astype(np.float32)
        write_features(shard_path(run / "features/colour", number), features, ids, by_colour(run), {})
    make_stage("encode_sentences", run)
    output = tmp_path / "bench"
    options = ["--method", "ncca", "--method", "asif", "--pairs", 30, "--seed", 0, "--output", output]
    said = run_command("bench", run, *options)
    with (output / "bench.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], line["hubness"], line["pairs"]) for line in lines] == [
        ("ncca", "none", "30"), ("ncca", "auto", "30"), ("asif", "none", "30"), ("asif", "auto", "30"),
    ]  # fmt: skip
    heading, first = (line.rsplit(None, 1) for line in said.splitlines()[:2])
    assert heading == ["Sum of recalls by pairs", lines[0]["pairs"]] and "bench.html" in said
    assert first == ["ncca", f"{float(lines[0]['sum']):.1f}"]
    page = (output / "bench.html").read_text()
    assert "asif, hubness: auto" in page and "<svg" in page and "colour, tfidf" in page
    with pytest.raises(UsageError, match=r"The method cka is unknown\. Choose from ncca"):
        run_command("bench", run, "--method", "cka")
    before = (output / "bench.csv").read_bytes()
    with pytest.raises(UsageError, match="bench.csv already exists. Name another folder with --output."):
        run_command("bench", run, *options)
    assert (output / "bench.csv").read_bytes() == before
    with pytest.raises(UsageError, match="eyes"):
        run_command("bench", run, "--encoder", "eyes", "--output", tmp_path / "other")

    def interrupt_after(count: int) -> Iterator[Measured]:
        yield from measured[:count]
        raise KeyboardInterrupt

    cut = tmp_path / "cut"
    for count in (0, 3):  # A bench without any measurement can be started again in the same folder.
        monkeypatch.setattr("pipeline.models.bench.compare_methods", lambda *_, count=count: interrupt_after(count))
        with pytest.raises(AssertionError, match="Aborted"):
            run_command("bench", run, *options[:-1], cut)
        said = f"{cut / 'bench.csv'} has the 3 finished measurements. A bench cannot be continued."
        assert (said in caplog.text) == (count == 3)
    assert len((cut / "bench.csv").read_text().splitlines()) == 4
    with pytest.raises(UsageError, match="has the measurements of a bench that did not finish. A bench cannot be"):
        run_command("bench", run, *options[:-1], cut)
