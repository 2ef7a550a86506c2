"""Searching a made-up bundle whose answers are known."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from made_up import build_bundle, features_of, make_run, run_command

from pipeline.errors import InputError
from pipeline.index.search import Searcher
from pipeline.storage.bundle import Bundle
from stages.index.search import command

# The images of things 0 and 1 by closeness to "dog": image i is 0.01 i off its axis, towards the next thing's.
DOGS = ["dog-0.png", "dog-8.png", "dog-16.png"]


@pytest.fixture(scope="module", params=["ncca", "cca"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bundle(make_run(tmp_path_factory.mktemp("run"), request.param), model=request.param)


def test_images_for_a_sentence(bundle: Path) -> None:
    hits = Searcher(Bundle(bundle)).images("the dog", 5)
    assert [hit.row["path"] for hit in hits[:3]] == DOGS
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    euclidean = Bundle(bundle).card["metric"] == "euclidean"
    assert scores[0] == pytest.approx(0 if euclidean else 1)
    assert scores[1] == pytest.approx(-(0.08**2) if euclidean else 1 / (1 + 0.08**2) ** 0.5, rel=1e-4)


def test_sentences_for_an_image(bundle: Path) -> None:
    hits = Searcher(Bundle(bundle)).sentences(features_of("horse"), 6)
    assert {hit.row["text"] for hit in hits} == {"a horse"} | {f"the big horse number {i}" for i in (3, 11, 19)}


def test_unknown_words_are_named(bundle: Path) -> None:
    searcher = Searcher(Bundle(bundle))
    with pytest.raises(InputError, match=r"no word of 'the purple unicorn' is in the vocabulary \(purple, unicorn\)"):
        searcher.images("the purple unicorn", 3)
    with pytest.raises(InputError, match="it has only stop words"):
        searcher.images("the big", 3)
    assert searcher.images("a purple dog", 1)[0].row["path"] == "dog-0.png"


def test_words_that_nothing_is_searched_for_are_named_with_the_answer(bundle: Path, tmp_path: Path) -> None:
    searcher = Searcher(Bundle(bundle))
    assert searcher.unknown_words("The purple dog and a big unicorn, a unicorn") == ["purple", "and", "unicorn"]
    assert searcher.unknown_words("the dog") == searcher.unknown_words("the big") == []

    def search(*arguments: object) -> tuple[str, str]:
        result = CliRunner().invoke(command, ["--index", str(bundle), "--top", "1", *map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result.stdout, result.stderr

    told = "not in the vocabulary, so ignored: purple, unicorn\n"
    table, said = search("a purple dog, a unicorn")
    assert said == told and table.split()[0::2] == ["1", "dog-0.png"]
    listed, said = search("a purple dog, a unicorn", "--json")
    assert said == told and [hit["path"] for hit in json.loads(listed)] == ["dog-0.png"]
    assert search("a dog, a hors")[1] == "not in the vocabulary, so ignored: hors (horse?)\n"
    assert search("a dog")[1] == search("the dog", "--json")[1] == ""
    (tmp_path / "batch.txt").write_text("a purple dog\na dog\na unicorn\n")
    answers = [json.loads(line) for line in search("--batch", tmp_path / "batch.txt")[0].splitlines()]
    assert [answer.get("unknown") for answer in answers] == [["purple"], [], None]
    assert "no word of 'a unicorn'" in answers[2]["error"]
    with pytest.raises(InputError, match=r"in the vocabulary \(hors \(horse\?\), unicorn\); use other words"):
        searcher.images("the hors, a unicorn", 1)


def test_the_command_prints_a_table_or_json(bundle: Path) -> None:
    lines = run_command("search", "--index", bundle, "--top", 2, "a dog").splitlines()
    assert [line.split()[0::2] for line in lines] == [["1", "dog-0.png"], ["2", "dog-8.png"]]
    values = json.loads(run_command("search", "--index", bundle, "--top", 2, "--json", "a dog"))
    assert [(value["rank"], value["image_id"], value["path"]) for value in values] == [
        (1, 0, "dog-0.png"),
        (2, 8, "dog-8.png"),
    ]


def test_a_query_of_zeros_is_refused_and_costs_no_other_answer(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searcher = Searcher(Bundle(bundle))
    embed = searcher.embed_sentence
    monkeypatch.setattr(searcher, "embed_sentence", lambda text: embed(text) * ("cat" not in text))
    refused, answered = searcher.batch(["a cat", "a dog"], 2)
    assert isinstance(refused, InputError) and len(answered) == 2
    monkeypatch.setattr(searcher, "embed_image", lambda features: np.zeros((1, embed("a dog").shape[1]), np.float32))
    for ask in (lambda: searcher.images("a cat", 2), lambda: searcher.similar(features_of("dog"), 2)):
        with pytest.raises(InputError, match="is zero"):
            ask()


def test_a_sentence_needs_no_torch(bundle: Path) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from stages.index.search import command\n"
        f"result = CliRunner().invoke(command, ['--index', {str(bundle)!r}, 'dog'], catch_exceptions=False)\n"
        "assert result.exit_code == 0, result.output\n"
        "print([name for name in ('torch', 'torchvision', 'h5py', 'sklearn') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
