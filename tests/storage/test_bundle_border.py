"""Bundles: nothing outside of their folder."""

from pathlib import Path

import pytest

from pipeline.errors import IntegrityError
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.card import CARD
from pipeline.storage.json_files import to_json

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
