"""Names that a file of somebody else gives: plain ones are taken, and what leads out is refused by the file's name."""

from pathlib import Path

import pytest

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.card import CARD
from pipeline.storage.files import inside
from pipeline.storage.json_files import to_json
from pipeline.storage.parsers import load_carried_parser

WRONG = [
    "", "/etc/passwd", "..", "../x", "a/../x", "a//b", "a/", "./a", "a/./b", "a\\b", "..\\x", "C:x", "c:/x", "a\0b",
    None, 3, ["a"], {"a": 1}, "\ud800", "x" * 300,
]  # fmt: skip


@pytest.mark.parametrize("name", WRONG, ids=repr)
def test_any_other_is_refused_by_the_files_name(name: object, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"^the/card\.json names .{1,400}; get it anew$"):
        inside(tmp_path, name, Path("the/card.json"))


@pytest.mark.parametrize("link", ["k", "k/l", "k/l/file"])
def test_no_part_of_it_may_be_a_link(link: str, tmp_path: Path) -> None:
    (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path)  # which does not even lead out
    with pytest.raises(IntegrityError, match=f"card names 'k/l/file', but .*/{link} is a link"):
        inside(tmp_path, "k/l/file", "card")


INDEX = {
    "factory": "Flat", "metric": "inner_product", "dim": 1, "count": 0, "bytes": 0, "nprobe": None, "efSearch": None,
    "k_factor": None, "recall@10": 1.0, "queries": 1, "queries_per_second": 1.0, "latency_ms": 1.0,
    "build_seconds": 1.0,
}  # fmt: skip
SOUND = {
    "model": "ncca", "registered": "ncca", "metric": "inner_product", "dim": 1, "inputs": {"parser": "p"},
    "fingerprint": "f", "splits": [], "data_root": "/", "encoders": {}, "images": INDEX, "sentences": INDEX,
}  # fmt: skip
"""A card that has all that a card has."""
MANIFEST = {
    "fingerprint": "m", "root": "/", "shard_size": 4, "shards": 1, "counts": {}, "splits": {"train": 4}, "rejects": "",
    "contents": ["c"],
}  # fmt: skip


def forge(folder: Path, name: str) -> Path:
    """A bundle whose card names `name`, an empty file."""
    nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    folder.mkdir(parents=True)
    (folder / CARD).write_bytes(to_json({**SOUND, "files": {name: {"bytes": 0, "sha256": nothing}}}))
    return folder


@pytest.mark.parametrize("name", ["../secret", "k/../../secret", "k/secret"])
def test_a_foreign_card_opens_no_file_outside(name: str, tmp_path: Path) -> None:
    bundle = forge(tmp_path / "bundle", name)
    (tmp_path / "secret").touch()
    (bundle / "k").symlink_to(tmp_path)
    with pytest.raises(IntegrityError, match="card.json names '"):
        Bundle(bundle).check()


@pytest.mark.parametrize("name", ["../secret", "k/secret"])
def test_no_bundle_is_written_outside_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new/k").symlink_to(tmp_path)
    (tmp_path / "secret").write_text("precious")
    writer = BundleWriter(tmp_path / "new")
    with pytest.raises(IntegrityError, match="names"):
        writer.add(name, b"evil")
    assert (tmp_path / "secret").read_text() == "precious"


def carry(tmp_path: Path, listed: list[str], package: str | None = None) -> Bundle:
    """A bundle with spaCy's files `listed` in its card."""
    writer = BundleWriter(tmp_path / "bundle")
    for name in listed:
        writer.add(name, b"part of a pipeline")
    told = {"engine": "spacy", "package": package, "max_words": 9, "spacy": "3.8"}
    writer.commit({**SOUND, "parse": told})
    return Bundle(tmp_path / "bundle")


def test_spacy_is_given_no_file_that_the_card_does_not_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    monkeypatch.setattr("pipeline.storage.parsers.load_parser", loaded.append)
    bundle = carry(tmp_path, ["parser/config.cfg", "parser/vocab/strings.json"])
    load_carried_parser(bundle.folder, bundle.card)
    (bundle.folder / "parser/vocab/more").write_text("unlisted")
    with pytest.raises(IntegrityError, match="parser/vocab/more is not in the card"):
        load_carried_parser(bundle.folder, bundle.card)
    assert loaded == [str(bundle.folder / "parser/")]


@pytest.mark.parametrize("package", ["../evil", "/tmp/evil", "evil", "a b", "", "no-such-package-anywhere"])
def test_a_card_names_a_package_and_no_folder(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.storage.parsers.load_parser", lambda name: pytest.fail(f"loads {name}"))
    bundle = carry(tmp_path, [], package)
    (tmp_path / "evil").mkdir()
    (bundle.folder / "evil").mkdir()
    with pytest.raises(UsageError, match="install it"):
        load_carried_parser(bundle.folder, bundle.card)
