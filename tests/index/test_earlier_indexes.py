"""Indexes of an earlier version, which fixtures/make_indexes.py has built with the code of the git commit 868ca75c."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import run_command

import jointspace
from pipeline.errors import InputError, IntegrityError
from pipeline.index.search import Searcher
from pipeline.storage.card import MeasuredIndexes
from pipeline.storage.index_shard import IndexShard, IndexWriter
from pipeline.storage.json_files import CHECK
from pipeline.storage.stored_index import open_index

FIXTURES = Path(__file__).parent / "fixtures/868ca75c"
DOGS = ["dog-0.png", "dog-8.png"]


def found(index: Path, *options: object) -> list[str]:
    """Return the paths of the two best photos that `jointspace search` finds in an index for the query `a dog`."""
    return [hit["path"] for hit in json.loads(run_command("search", "--index", index, "--json", *options, "a dog"))][:2]


@pytest.mark.parametrize(("name", "shards"), [("one", 1), ("two", 2), ("regions", 1)])
def test_an_earlier_index_opens_and_its_files_are_intact(name: str, shards: int) -> None:
    index = open_index(FIXTURES / name)
    index.check()
    Searcher(index).open()
    assert len(index.shards) == shards
    assert [index.table(modality).num_rows for modality in ("images", "sentences")] == [16, 32]
    if name != "regions":
        assert (index.card.images.count, index.card.sentences.count) == (16, 32)


@pytest.mark.parametrize("path", ["one", "two/00", "two/01", "regions"])
def test_the_card_is_read_without_loss(path: str) -> None:
    stored = json.loads((FIXTURES / path / "card.json").read_text())
    assert jointspace.load(FIXTURES / path).card == stored


@pytest.mark.parametrize("name", ["one", "two"])
def test_an_earlier_index_is_searched(name: str) -> None:
    assert sorted(found(FIXTURES / name)) == DOGS
    searcher = Searcher(open_index(FIXTURES / name))
    (hits,) = searcher.nearest("sentences", searcher.embed_sentence("a dog"), 4)
    assert [" dog" in hit.row["text"] for hit in hits] == [True] * 4


def test_an_earlier_multi_vector_index_is_searched_by_one_of_its_items() -> None:
    searcher = Searcher(open_index(FIXTURES / "regions"))
    hits = searcher.nearest("images", searcher.gallery("sentences").item(0), 16)[0]
    assert len(hits) == 16 and all(np.diff([hit.score for hit in hits]) <= 0)


def test_photos_are_added_to_an_earlier_index(tmp_path: Path) -> None:
    index = shutil.copytree(FIXTURES / "two/00", tmp_path / "index")
    (index / "added/2nd-try").mkdir(parents=True)  # This folder belongs to the user.
    before = open_index(index).card.images.count
    run_command("add", index, FIXTURES / "two/01")
    added = open_index(index)
    assert added.card.images.count == 16 > before
    assert sorted(found(index)) == DOGS
    assert json.loads((index / "card.json").read_text()) == json.loads((FIXTURES / "two/00/card.json").read_text())


@pytest.mark.parametrize("name", ["one", "two", "regions"])
def test_photos_are_removed_from_an_earlier_index(name: str, tmp_path: Path) -> None:
    index = shutil.copytree(FIXTURES / name, tmp_path / "index")
    former = json.loads((FIXTURES / (f"{name}/00" if name == "two" else name) / "card.json").read_text())
    run_command("remove", index, "dog-0.png")
    assert "dog-0.png" not in [path for path in open_index(index).table("images")["path"].to_pylist()]
    card = json.loads((index / ("00/card.json" if name == "two" else "card.json")).read_text())
    counted = "regions" if name == "regions" else "images"
    assert card[counted]["count"] < former[counted]["count"]
    assert card["inputs"].pop("bundle") == former["fingerprint"]
    changed = {CHECK, "fingerprint", "files", "images", "sentences", "regions", "words"}
    assert {key: card[key] for key in card if key not in changed} == {
        key: former[key] for key in former if key not in changed
    }
    assert card[counted].keys() == former[counted].keys()
    if name != "regions":
        assert found(index)[0] == "dog-8.png"
    open_index(index).check()


def test_an_earlier_index_refuses_unknown_words() -> None:
    with pytest.raises(InputError, match="none of the words"):
        jointspace.load(FIXTURES / "one").search("zyx")


def test_a_multi_vector_model_does_not_fit_an_index_of_single_vectors(tmp_path: Path) -> None:
    regions = IndexShard(FIXTURES / "regions")
    single = IndexShard(FIXTURES / "one")
    writer = IndexWriter(tmp_path / "forged")
    writer.link(regions, but={"regions.faiss", "words.faiss", "fragments.safetensors"})
    for name in ("images", "sentences"):
        writer.add(f"{name}.faiss", single.map(f"{name}.faiss"))
    measured = MeasuredIndexes(kind="global").model_copy(
        update={"images": single.card.images, "sentences": single.card.sentences}
    )
    writer.commit(measured, regions.card, but=["regions", "words", "score"], dim=single.card.dim)
    searcher = Searcher(open_index(tmp_path / "forged"))
    searcher.model.sentence_view = "tokens"
    with pytest.raises(IntegrityError, match="says that its model has (several vectors|one vector) per item, but"):
        searcher.images("a dog", 2)
