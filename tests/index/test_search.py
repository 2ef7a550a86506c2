"""Searches of a synthetic index whose results are known."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic_run import build_bundle, features_of, make_run, run_command

from pipeline.errors import InputError, RejectLimitError, UsageError
from pipeline.index.search import Searcher
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.index_shard import IndexShard
from pipeline.storage.manifest import Manifest
from pipeline.storage.stored_index import open_index
from pipeline.text.vocabulary import KnownTerms
from stages.index.search import command

# The images of dogs, by their distance to "dog". The vector of image i deviates by 0.01 i towards the next thing.
DOGS = ["dog-0.png", "dog-8.png", "dog-16.png"]


@pytest.fixture(scope="module")
def euclidean_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bundle(make_run(tmp_path_factory.mktemp("run"), "cca"), model="cca")


@pytest.fixture
def bundle(run: Path) -> Path:
    return run / "bundle"


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_images_for_a_sentence(bundle: Path, euclidean_index: Path, metric: str) -> None:
    bundle = euclidean_index if metric == "euclidean" else bundle
    hits = Searcher(open_index(bundle)).images("the dog", 5)
    assert [hit.row["path"] for hit in hits[:3]] == DOGS
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert IndexShard(bundle).card.metric == metric
    best = [0, -(0.08**2)] if metric == "euclidean" else [1, 1 / (1 + 0.08**2) ** 0.5]
    assert scores[:2] == pytest.approx(best, rel=1e-4)


def test_sentences_for_an_image(bundle: Path) -> None:
    hits = Searcher(open_index(bundle)).sentences(features_of("horse"), 6)
    assert {hit.row["text"] for hit in hits} == {"a horse"} | {f"the big horse number {i}" for i in (3, 11, 19)}


def test_unknown_words_are_named(bundle: Path) -> None:
    searcher = Searcher(open_index(bundle))
    with pytest.raises(InputError, match=r"none of the words of 'the purple unicorn' \(purple, unicorn\)"):
        searcher.images("the purple unicorn", 3)
    with pytest.raises(InputError, match="only stop words and punctuation"):
        searcher.images("the big", 3)
    assert searcher.images("a purple dog", 1)[0].row["path"] == "dog-0.png"


def test_unknown_words_beside_stop_words_are_named(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The test acts as if the vocabulary contained the stop word of the query.
    monkeypatch.setattr(KnownTerms, "knows", lambda self, text: True)
    with pytest.raises(InputError, match=r"only stop words and words .* not know \(unknown words: unicorn\)\. Try"):
        Searcher(open_index(bundle)).images("the unicorn", 3)


def test_an_empty_condition_is_refused(bundle: Path) -> None:
    for condition in ("", " "):
        with pytest.raises(UsageError, match="condition of --where is empty"):
            run_command("search", "--index", bundle, "a dog", "--where", condition)


def test_ignored_words_are_named_with_the_results(bundle: Path, tmp_path: Path) -> None:
    searcher = Searcher(open_index(bundle))
    assert searcher.unknown_words("The purple dog and a big unicorn, a unicorn") == ["purple", "and", "unicorn"]
    assert searcher.unknown_words("the dog") == searcher.unknown_words("the big") == []

    def search(*arguments: object) -> tuple[str, str]:
        result = CliRunner().invoke(command, ["--index", str(bundle), "--top-k", "1", *map(str, arguments)])
        unanswered = isinstance(result.exception, RejectLimitError)
        assert unanswered == ("--queries" in arguments or "--batch" in arguments), result.output
        assert unanswered or result.exit_code == 0, result.output
        lines = result.stderr.splitlines(keepends=True)
        return result.stdout, "".join(line for line in lines if not line.startswith("This index does not say where"))

    told = "The search ignored these words, which the model does not know: purple, unicorn\n"
    table, said = search("a purple dog, a unicorn")
    assert said == told and table.split()[0::2] == ["1", "dog-0.png"]
    listed, said = search("a purple dog, a unicorn", "--json")
    assert said == told and [hit["path"] for hit in json.loads(listed)] == ["dog-0.png"]
    assert (
        search("a dog, a horsse")[1]
        == "The search ignored these words, which the model does not know: horsse (horse?)\n"
    )
    assert search("a dog")[1] == search("the dog", "--json")[1] == ""
    queries = tmp_path / "queries.txt"
    queries.write_bytes(b"\xef\xbb\xbfa purple dog\r\n\r\na dog\n  \na unicorn")
    printed = search("--queries", queries, "--json")[0]
    assert printed == search("--batch", queries)[0]
    answers = [json.loads(line) for line in printed.splitlines()]
    assert [answer.get("unknown") for answer in answers] == [["purple"], [], None]
    assert "none of the words of 'a unicorn'" in answers[2]["error"] and "results" not in answers[2]
    assert answers[1]["results"] == json.loads(search("a dog", "--json")[0]) and answers[1]["query"] == "a dog"
    tables = [table.splitlines() for table in search("--queries", queries)[0].split("\n\n")]
    assert [table[0] for table in tables] == ["a purple dog", "a dog", "a unicorn"]
    assert "none of the words of 'a unicorn'" in tables[2][1] and tables[1][1:] == search("a dog")[0].splitlines()
    with pytest.raises(RejectLimitError, match=r"1 of 3 queries of .*queries\.txt could not be answered") as failure:
        run_command("search", "--index", bundle, "--queries", queries)
    assert failure.value.exit_code == 3
    queries.write_bytes(b"\xff")
    with pytest.raises(InputError, match="queries.txt: line 1 is not UTF-8"):
        run_command("search", "--index", bundle, "--queries", queries)
    with pytest.raises(InputError, match=r"\(horsse \(horse\?\), unicorn\)\. Try other words"):
        searcher.images("the horsse, a unicorn", 1)


def test_query_of_zeros_is_refused_and_other_queries_are_answered(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = Searcher(open_index(bundle))
    embed = searcher.model.embed_sentences
    monkeypatch.setattr(searcher.model, "embed_sentences", lambda form: embed(form) * (embed(form)[:, :1] > 0))
    refused, answered = searcher.batch(["a cat", "a dog"], 2)
    assert "is zero" in refused.error and refused == [] and len(answered) == 2 and answered.error is None
    with pytest.raises(InputError, match="is zero"):
        searcher.images("a cat", 2)


@pytest.mark.parametrize(("sentence", "weight"), [(None, 0.5), ("a cat", 0.0), ("a cat", 0.3), ("a cat", 1.0)])
def test_images_are_ranked_by_their_products_with_the_sum(run: Path, sentence: str | None, weight: float) -> None:
    stored = Embeddings(Manifest(run / "manifest"), run / "embeddings/ncca").read("images", np.arange(24))
    images = stored.astype(float)
    query = np.eye(8)[0] if sentence is None else (1 - weight) * np.eye(8)[0] + weight * np.eye(8)[1]
    scores = images @ (query / np.linalg.norm(query))
    hits = Searcher(open_index(run / "bundle")).similar(features_of("dog"), 24, sentence, weight)
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[::-1], atol=1e-5)
    np.testing.assert_allclose(scores[[hit.row["image_id"] for hit in hits]], [hit.score for hit in hits], atol=1e-5)


def test_a_dog_less_dog_plus_cat_is_a_cat(run: Path) -> None:
    searcher = Searcher(open_index(run / "bundle"))
    hits = searcher.analogy(features_of("dog"), ["dog"], ["cat"], 3, 0)
    assert [hit.row["path"] for hit in hits] == ["cat-1.png", "cat-9.png", "cat-17.png"]
    assert hits[0].score == pytest.approx(1, abs=1e-3)
    both = searcher.analogy(features_of("dog"), [], ["cat"], 6, 0)
    assert {hit.row["path"].partition("-")[0] for hit in both} == {"dog", "cat"}
    middle = searcher.analogy(features_of("dog"), ["dog"], ["cat"], 1, 3)
    assert middle[0].row["path"] == "cat-9.png"  # This image is between a dog and a cat.
    with pytest.raises(InputError, match="cancel each other out"):
        searcher.analogy(features_of("dog"), ["dog"], [], 3, 0)


def test_errors_of_the_words_are_raised_before_the_photo_is_encoded(run: Path) -> None:
    searcher = Searcher(open_index(run / "bundle"))

    def photograph() -> None:
        raise AssertionError("encoded")

    for error, said, ask in (
        (InputError, "the words of 'unicorn'", lambda: searcher.analogy(photograph, ["dog"], ["unicorn"], 3, 0)),
        (InputError, "No words change", lambda: searcher.analogy(photograph, [], [], 3, 0)),
        (InputError, "the words of 'unicorn'", lambda: searcher.similar(photograph, 3, "unicorn")),
        (UsageError, "no column 'price'", lambda: searcher.similar(photograph, 3, where="price < 3")),
        (UsageError, "no column 'price'", lambda: searcher.sentences(photograph, 3, "price < 3")),
    ):
        with pytest.raises(error, match=said):
            ask()


def test_photo_of_the_index_finds_images_with_the_same_regions(run: Path) -> None:
    folder = run / "regions"
    photograph = run / "data" / "horse-3.png"
    found = json.loads(run_command("search", "--index", folder, "--image", photograph, "--similar", "--json"))
    assert {hit["path"] for hit in found[:3]} == {"horse-3.png", "horse-11.png", "horse-19.png"}
    with pytest.raises(UsageError, match="Words cannot be added to a photo with the model dvsa"):
        run_command("search", "--index", folder, "--image", photograph, "--text", "a dog")


def test_a_search_by_words_does_not_import_torch(bundle: Path) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from stages.index.search import command\n"
        f"result = CliRunner().invoke(command, ['--index', {str(bundle)!r}, 'dog'], catch_exceptions=False)\n"
        "assert result.exit_code == 0, result.output\n"
        "print([name for name in ('torch', 'torchvision', 'h5py', 'sklearn') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
