"""Judged queries: measures are compared with results by hand, with the rules of TREC and with scikit-learn, and the
command `evaluate-queries` is run on an index."""

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score
from synthetic_run import build_bundle, make_run, run_command

from pipeline.errors import InputError
from pipeline.foreign.trec import read_qrels, read_topics
from pipeline.metrics.judged import mean_difference, measure_queries
from pipeline.metrics.retrieval import Bootstrap

pytest.importorskip("ir_measures", reason="the extra `judged` is not installed")


def measured(grades: dict[str, int], ranking: list[str]) -> dict[str, float]:
    values = measure_queries({"q": grades}, {"q": ranking})
    return {name: value.item() for name, value in values.items()}


def test_measures_by_hand() -> None:
    # The photos a and b, with the grades 1 and 3, are found at the ranks 2 and 4 of 5. The photo e, with the grade 2,
    # is not found.
    values = measured({"a": 1, "b": 3, "c": 0, "d": -1, "e": 2}, ["x", "a", "d", "b", "c"])
    gain = 1 / math.log2(3) + 3 / math.log2(5)
    ideal = 3 + 2 / math.log2(3) + 1 / math.log2(4)
    assert values == pytest.approx({"nDCG@10": gain / ideal, "AP": (1 / 2 + 2 / 4) / 3, "R@10": 2 / 3})


def test_measures_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    names = [f"photo {number}.jpg" for number in range(40)]
    for _ in range(20):
        grades = rng.integers(0, 4, len(names)) * (rng.random(len(names)) < 0.4)
        scores = rng.permutation(len(names)).astype(float)
        ranking = [names[row] for row in np.argsort(-scores)]
        values = measured(dict(zip(names, grades.tolist(), strict=True)), ranking)
        # scikit-learn takes the grade as the gain, as TREC and jointspace do.
        assert values["nDCG@10"] == pytest.approx(ndcg_score([grades], [scores], k=10))
        assert values["AP"] == pytest.approx(average_precision_score(grades > 0, scores))
        found = np.isin(ranking[:10], np.array(names)[grades > 0])
        assert values["R@10"] == pytest.approx(found.sum() / (grades > 0).sum())


def test_order_decides_and_not_the_names_of_photos() -> None:
    assert measured({"a": 1}, ["a", "z"])["AP"] == measured({"z": 1}, ["z", "a"])["AP"] == 1


def test_negative_grades_and_queries_without_relevant_photos_or_results() -> None:
    assert measured({"a": -2, "b": 1}, ["a", "b"]) == measured({"a": 0, "b": 1}, ["a", "b"])
    assert set(measured({"a": 0, "b": -1}, ["a", "b"]).values()) == {0}
    values = measure_queries({"one": {"a": 1}, "two": {"a": 1}}, {"two": ["a"], "unknown": ["a"]})
    assert values["AP"].tolist() == [0, 1]


def test_ids_of_queries_may_have_any_characters() -> None:
    values = measure_queries({"q\0a": {"a": 1}, "q\0b": {"b": 1}, "": {"a": 1}}, {"q\0a": ["a"], "q\0b": ["b", "a"]})
    assert values["AP"].tolist() == [1, 1, 0]


def test_paired_interval_agrees_with_the_normal_interval_of_the_differences() -> None:
    rng = np.random.default_rng(1)
    first = rng.random(200)
    gain = rng.normal(0.05, 0.1, 200)
    for values, reference, tolerance in ((first, np.zeros(200), 0.01), (first + gain, first, 0.003)):
        found = mean_difference(values, reference, Bootstrap(2000, 0))
        differences = values - reference
        assert found["difference"] == pytest.approx(differences.mean())
        margin = 1.96 * differences.std() / math.sqrt(200)
        ends = [differences.mean() - margin, differences.mean() + margin]
        assert found["ci95"] == pytest.approx(ends, abs=tolerance)


def test_files_are_read_with_spaces_and_tabs(tmp_path: Path) -> None:
    path = tmp_path / "qrels"
    path.write_text("\ufeffq1 0 a.jpg 2\r\n\nq1\t0\tmy photo.jpg\t-1\nq2 Q0 a.jpg 0\nq1 0 a.jpg 2\n", encoding="utf-8")
    assert read_qrels(path) == {"q1": {"a.jpg": 2, "my photo.jpg": -1}, "q2": {"a.jpg": 0}}
    path.write_text("q1\ta dog\n\n 12 \t two\tcats \n")
    assert read_topics(path) == {"q1": "a dog", "12": "two\tcats"}


@pytest.mark.parametrize(
    "line", ["q1 0 b.jpg", "q1 0 b.jpg high", "q1 0 b.jpg 1001", "q1 0 b.jpg -1001", "q1", "q1 0 a.jpg 1"]
)
def test_wrong_judgements_are_refused_with_their_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "qrels"
    path.write_text(f"q1 0 a.jpg 2\n{line}\n")
    with pytest.raises(InputError, match=r"qrels, line 2( is not a judgement|: )"):
        read_qrels(path)


@pytest.mark.parametrize("line", ["a dog", "q2\t ", "\ta dog", "q1\ta cat"])
def test_wrong_queries_are_refused_with_their_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "topics"
    path.write_text(f"q1\ta dog\n{line}\n")
    with pytest.raises(InputError, match=r"topics, line 2: "):
        read_topics(path)


def test_empty_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n \n")
    for read in (read_topics, read_qrels):
        with pytest.raises(InputError, match=r"empty has no (query|judgement)"):
            read(tmp_path / "empty")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an index of 24 photos, in which photo i shows thing i mod 8 (0 is a dog and 1 is a cat)."""
    return build_bundle(make_run(tmp_path_factory.mktemp("run")))


def evaluate(folder: Path, topics: str, qrels: str, *arguments: object) -> str:
    (folder / "topics.tsv").write_text(topics)
    (folder / "qrels").write_text(qrels)
    return run_command("evaluate-queries", *arguments, "--queries", folder / "topics.tsv", "--qrels", folder / "qrels")


def test_command_measures_an_index(index: Path, tmp_path: Path) -> None:
    # The three dogs are found first for q1. q2 has two relevant photos: a cat, and a photo that is not in the index.
    topics = "q1\ta dog\nq2\ta cat\n"
    qrels = "q1 0 dog-0.png 1\nq1 0 id:8 1\nq1 0 dog-16.png 1\nq2 0 cat-1.png 1\nq2 0 missing.png 2\n"
    value = json.loads(evaluate(tmp_path, topics, qrels, index, index, "--json"))
    assert value["queries"] == ["q1", "q2"]
    first, second = value["results"]
    assert first["queries"]["R@10"] == [1, 0.5]
    assert first["queries"]["nDCG@10"][0] == pytest.approx(1)
    assert first["measures"]["R@10"]["mean"] == 0.75 and first["measures"]["R@10"]["minus_first"] is None
    assert second["measures"]["R@10"]["minus_first"] == {"difference": 0, "ci95": [0, 0]}
    text = evaluate(tmp_path, topics, qrels, index)
    assert text.startswith("2 of 2 queries have judgements.") and "R@10     0.750 (" in text


def test_command_counts_what_it_cannot_use(index: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    topics = "q1\ta dog\nq2\tzzz\nq3\ta cat\nq4\ta bird\n"
    qrels = "q1 0 dog-0.png 1\nq2 0 gone.png 1\nq4 0 dog-0.png 0\nq5 0 dog-0.png 1\n"
    with caplog.at_level(logging.WARNING):
        value = json.loads(evaluate(tmp_path, topics, qrels, index, "--json", "--no-match-text"))
    assert value["queries"] == ["q1", "q2", "q4"]
    assert value["results"][0]["queries"]["R@10"] == [1, 0, 0]
    assert "1 of 2 judged photos are treated as not found, because" in caplog.text
    assert "For example, 'gone.png'" in caplog.text
    assert "query q2 counts as 0, because " in caplog.text
    assert "3 of 4 queries have judgements." in evaluate(tmp_path, topics, qrels, index)


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        ("q1 0 gone.png 1\n", "has none of the 1 judged photos. For example, 'gone.png'"),
        ("other 0 dog-0.png 1\n", "Use the same ids of queries in both files"),
        ("q1 0 dog-0.png 1\nq1 0 id:0 2\n", "'id:0' has two grades for the query 'q1'"),
    ],
)
def test_command_refuses_judgements_of_other_photos_and_queries(
    qrels: str, message: str, index: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(tmp_path, "q1\ta dog\n", qrels, index)
