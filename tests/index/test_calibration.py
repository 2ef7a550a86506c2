"""Tests of likely matches: their coverage for indexes of any size, and the texts of an index, a search and the page
about them."""

import json
import math
import pickle
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic_run import run_command

import jointspace
from pipeline.errors import IntegrityError
from pipeline.index.calibration import BACKGROUND, Calibration, Judgement, compare
from pipeline.index.search import Searcher
from pipeline.serve.answers import list_images
from pipeline.storage.index_shard import IndexShard, IndexWriter
from pipeline.storage.stored_index import open_index
from stages.index.search import command


def pairs(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return random vectors (count, 12) of `count` images, the vectors (2 * count, 12) of two captions for each image,
    which are the image's vector with noise, and the row (2 * count,) of each caption's image. The vectors do not have
    unit length."""
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((count, 12)).astype(np.float32)
    owners = np.repeat(np.arange(count), 2)
    noise = rng.uniform(0.3, 1.5, (len(owners), 1)) * rng.standard_normal((len(owners), 12))
    return images, (images[owners] + noise).astype(np.float32), owners


def standard_scores(images: np.ndarray, sentences: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Return the score (m,) of each of m captions with its image, standardised by the mean and deviation of the
    caption's scores with all other images. `owners` (m,) has the row of the image of each caption."""
    scores = []
    for sentence, owner in zip(sentences.astype(float), owners, strict=True):
        others = np.delete(images, owner, axis=0) @ sentence
        scores.append((images[owner] @ sentence - others.mean()) / others.std())
    return np.array(scores)


SEARCHED = "In 90% of searches, the photo that you are looking for (if it is in the collection)"


@pytest.mark.parametrize("coverage", ["0.9", "0.8", "0.95", "0.7", "0.99", "0.5", "1"])
@pytest.mark.parametrize("count", [2, 9, 10, 11, 20, 25, 30, 50, 100])
def test_leave_one_out_misses_the_allowed_number_of_captions(count: int, coverage: str) -> None:
    images, sentences, owners = pairs(50, 4)
    sentences = sentences[:count]
    owners = owners[:count]
    scores = standard_scores(images, sentences, owners)
    lines = []
    for left_out in range(count):
        others = np.arange(count) != left_out
        calibration = Calibration.fit(images, sentences[others], owners[others], "inner_product", float(coverage))
        lines.append(calibration.score)
    assert np.sum(scores < np.array(lines) - 1e-5) == math.floor((1 - Fraction(coverage)) * count)


@pytest.mark.parametrize(("metric", "coverage"), [("inner_product", 0.9), ("euclidean", 0.5)])
def test_a_larger_index_has_the_same_likely_photos(metric: str, coverage: float) -> None:
    calibration = Calibration.fit(*pairs(400, 0), metric, coverage)
    images, sentences, owners = pairs(400, 1)
    crowd = np.concatenate([images, pairs(1600, 2)[0]])
    meant_is_likely = []
    for gallery in (images, crowd):
        scores = compare(sentences, gallery, metric)
        right = []
        likely = []
        for sentence, row, owner in zip(sentences, scores, owners, strict=True):
            count = calibration.judge(sentence[None], np.sort(row)[::-1], len(row), (4, 0)).likely
            right.append(np.sum(row > row[owner]) < count)
            likely.append(count)
        meant_is_likely.append(right)
    assert meant_is_likely[0] == meant_is_likely[1]
    # The calibration was computed from other images and captions, so its coverage is only approximate.
    assert np.mean(right) == pytest.approx(coverage, abs=0.06)
    assert np.mean(likely) < 0.9 * len(crowd)


def test_caption_is_compared_with_the_background_without_its_own_photo() -> None:
    images, sentences, owners = pairs(60, 3)
    nearness = [
        np.sort(np.delete(images, owner, axis=0) @ sentence)[-10:].mean()
        for sentence, owner in zip(sentences.astype(float), owners, strict=True)
    ]
    scores = standard_scores(images, sentences, owners)
    calibration = Calibration.fit(images, sentences, owners, "inner_product", 0.8)
    assert calibration.score == pytest.approx(np.sort(scores)[23], rel=1e-4)  # The line may miss 24 of 121 captions.
    assert calibration.nearness == pytest.approx(np.quantile(nearness, 0.05), rel=1e-4)
    assert calibration.judge(0.01 * sentences[:1], [], 60, (4, 0)).off_topic
    assert not calibration.judge(9 * sentences[:1], [], 60, (4, 1)).off_topic
    assert calibration.judge(9 * sentences[:1], [], 60, (4, 2)).warning.endswith("2 of its 4 words are unknown.")
    assert Calibration.fit(images, sentences[:5], owners[:5], "inner_product", 0.9).score < -1e30, (
        "five captions are too few to miss one"
    )


def test_remarks_count_the_likely_photos() -> None:
    remarks = {
        (0, 0, 0): "There are no results.",
        (0, 5, 3): "None of these results is a likely match. In 90% of searches, the right photo scores higher.",
        (1, 5, 1): f"{SEARCHED} is this one.",
        (2, 5, 2): f"{SEARCHED} is among these 2.",
        (
            5,
            5,
            6,
        ): "All of these are likely matches, and the index has about 1 more. A longer query may tell them apart.",
        (5, 5, 5): f"All of these are likely matches. {SEARCHED} is among them.",
        (1, 2, None): f"{SEARCHED} is this one.",
        (1, 1, None): "All of these are likely matches, and there may be more.",
    }
    for (likely, shown, expected), remark in remarks.items():
        assert Judgement(likely, shown, expected, 0.9, far=False, words=2, unknown=0).remark == remark


@pytest.mark.parametrize(("words", "unknown", "far", "off"), [(4, 2, False, True), (4, 1, False, False),
    (5, 2, False, False),
    (0, 0, False, False), (3, 0, True, True), (1, 1, True, True)])  # fmt: skip
def test_query_is_out_of_domain_by_its_unknown_words_or_by_its_distance(
    words: int, unknown: int, far: bool, off: bool
) -> None:
    assert Judgement(1, 5, 1, 0.9, far, words, unknown).off_topic == off


def test_search_reports_the_likely_matches(calibrated: Path, tmp_path: Path) -> None:
    index = jointspace.load(calibrated / "bundle")
    answer = index.search("a dog", k=6, match_text=False)
    judged = answer.judgement
    assert (judged.likely, judged.shown, judged.off_topic) == (3, 6, False) and "among these 3" in judged.remark
    assert pickle.loads(pickle.dumps(answer)).judgement == judged
    assert index.search("a dog", k=2, match_text=False).judgement.remark.startswith(
        "All of these are likely matches, and the index has about 1"
    )
    remarks = [
        index.search("a dog", k=number, where="path != 'dog-0.png'", match_text=False).judgement.remark
        for number in (1, 2, 3)
    ]
    assert remarks[0] == remarks[1] == "All of these are likely matches, and there may be more."
    assert remarks[2].endswith("is among these 2.")
    only = index.search("a dog", k=2, where="path = 'dog-0.png'", match_text=False)
    assert only.judgement.remark.endswith("is among them.")
    assert index.search("a dog", k=6, where="path = 'cat-1.png'").judgement.remark.startswith("None of these results")
    assert "1 of its 2 words" in index.search("unicorn dog").judgement.warning
    assert index.search(["a dog", "a zebra"], k=6, match_text=False)[0].judgement == judged
    assert jointspace.load(calibrated / "several").search("a dog", k=6, match_text=False).judgement == judged
    assert index.search(vector=index.embed_text("a dog")).judgement is None
    encoded = index._searcher._forms.encoders["tfidf"].encode(["a dog"]).toarray()[0]
    by_vector = index.search(text_vector=encoded, k=6).judgement
    assert by_vector == replace(judged, words=0, unknown=0)  # A query by a text vector has no words to count.

    arguments = ("--index", calibrated / "bundle", "--top-k", 6, "--no-match-text")
    lines = run_command("search", *arguments, "a dog").splitlines()
    assert len(lines) == 7 and lines[3] == f"----  {judged.remark}"
    hits = json.loads(run_command("search", *arguments, "--json", "a dog"))
    assert [hit["likely"] for hit in hits] == 3 * [True] + 3 * [False]
    (tmp_path / "queries.txt").write_text("a dog\nunicorn dog\n")
    told = run_command("search", *arguments, "--queries", tmp_path / "queries.txt", "--json").splitlines()
    assert [json.loads(line)["off_topic"] for line in told] == [False, True]
    shown = list_images("ncca", answer, {}, [None] * 6, 0.0)
    assert (shown.likely, shown.remark, shown.warning) == (3, judged.remark, None)


def test_photos_with_the_words_of_the_query_are_likely_matches(calibrated: Path) -> None:
    """The texts of nine photos have the word "dog", although only three of these photos are near the query."""
    answer = jointspace.load(calibrated / "bundle").search("a dog", k=12)
    things = [hit.row["path"].partition("-")[0] for hit in answer]
    assert answer.judgement.likely == 9 and things[:9] == ["dog"] * 9 and "dog" not in things[9:]
    assert [bool(hit.matches) for hit in answer] == [True] * 9 + [False] * 3
    number = jointspace.load(calibrated / "bundle").search("dog number 64", k=1)
    assert number[0].row["path"] == "dog-64.png" and number.judgement.warning is None
    plain = jointspace.load(calibrated / "bundle").search("dog 64 64", k=1, match_text=False)
    assert "of its 3 words are unknown" in plain.judgement.warning


def test_index_without_a_calibration_is_reported_once(calibrated: Path, tmp_path: Path) -> None:
    bundle = IndexShard(calibrated / "bundle")

    def rewrite(name: str, background: np.ndarray | None, **changes: object) -> Path:
        writer = IndexWriter(tmp_path / name)
        writer.link(bundle, but={BACKGROUND})
        if background is not None:
            import safetensors.numpy

            writer.add(BACKGROUND, safetensors.numpy.save({"images": background}))
        kept = {key: value for key, value in changes.items() if value != "gone"}
        writer.commit(source=bundle.card, but=changes, **kept)
        return tmp_path / name

    for name, value in (("old", "gone"), ("silent", None)):
        former = rewrite(name, None, calibration=value)
        assert Searcher(open_index(former)).images("a dog", 3).judgement is None
        result = CliRunner().invoke(command, ["--index", str(former), "a dog"])
        said = rf"until you write captions for 50 of its photos with `\S*jointspace calibrate {re.escape(str(former))} "
        assert re.search(said, result.stderr)
        assert result.stderr.count("\n") == 1 and "----" not in result.stdout
    with pytest.raises(IntegrityError, match="does not fit the model of the index"):
        Searcher(open_index(rewrite("narrow", np.ones((8, 3), np.float32)))).images("a dog", 3).judgement  # noqa: B018
