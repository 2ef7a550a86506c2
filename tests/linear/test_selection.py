"""Tests of the photos that `suggest` chooses: the greedy rule is compared with a naive loop, and invariants and the
command are tested."""

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import ingest, make_run, run_command, write_feature_shards

import jointspace
from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.models.linear import selection
from pipeline.models.linear.selection import choose_photos, choose_representatives
from pipeline.run.layout import Layout
from pipeline.storage.manifest import Manifest


def choose_naively(features: np.ndarray, count: int, known: np.ndarray | None = None) -> list[int]:
    """Choose `count` rows of `features` like `choose_representatives`, but compute the gains of all rows in every step.
    The further rows `known` count as chosen from the start. Return the row numbers in the order of the choice."""
    z = features - features.mean(axis=0)
    products = np.maximum(z @ z.T, 0)
    first = np.zeros(len(z))
    for row in features[:0] if known is None else known:
        first = np.maximum(first, z @ (row - features.mean(axis=0)))
    chosen: list[int] = []
    for _ in range(count):
        best = np.vstack([first, products[chosen]]).max(axis=0)
        gains = [-1 if row in chosen else np.maximum(products[row], best).sum() for row in range(len(z))]
        chosen.append(int(np.argmax(gains)))
    return chosen


def test_rows_are_those_of_a_naive_loop() -> None:
    features = np.random.default_rng(0).normal(size=(60, 12)).astype(np.float32)
    assert choose_representatives(features, 20).tolist() == choose_naively(features.astype(float), 20)


def test_chosen_rows_complement_captioned_rows() -> None:
    features = np.random.default_rng(8).normal(size=(60, 12)).astype(np.float32)
    known = features[[3, 7, 11]] * 2
    chosen = choose_representatives(features, 20, known=known).tolist()
    assert chosen == choose_naively(features.astype(float), 20, known.astype(float))
    assert chosen != choose_representatives(features, 20).tolist()
    captioned = np.arange(0, 60, 2)
    photos = choose_photos({"a": features}, 30, captioned=captioned)
    assert sorted(np.concatenate(photos)) == list(range(1, 60, 2))
    with pytest.raises(UsageError, match="cannot choose 31 of 30 photos without captions"):
        choose_photos({"a": features}, 31, captioned=captioned)


def test_each_group_of_photos_is_represented() -> None:
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(6), [100, 50, 20, 10, 5, 5])
    features = 5 * np.eye(6, 30)[groups] + 0.1 * rng.normal(size=(len(groups), 30))
    assert sorted(groups[choose_representatives(features.astype(np.float32), 6)]) == list(range(6))


def test_rotated_and_shifted_features_choose_the_same_rows() -> None:
    rng = np.random.default_rng(2)
    features = rng.normal(size=(80, 10))
    rotation = np.linalg.qr(rng.normal(size=(10, 10)))[0]
    moved = features @ rotation + 3
    first, second = (choose_representatives(x.astype(np.float32), 15).tolist() for x in (features, moved))
    assert first == second


def test_equal_features_and_a_choice_of_all_rows_are_allowed() -> None:
    assert sorted(choose_representatives(np.ones((12, 4), np.float32), 12)) == list(range(12))


def test_large_collections_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MAX_COMPARED", 20)
    features = np.random.default_rng(3).normal(size=(100, 5)).astype(np.float32)
    samples = [choose_representatives(features, 10, seed) for seed in (0, 0, 1)]
    assert all(len(np.unique(rows)) == 10 for rows in samples)
    assert samples[0].tolist() == samples[1].tolist() != samples[2].tolist()
    assert len(np.unique(choose_representatives(features, 30))) == 30


def test_tenths_are_random_and_no_photo_is_chosen_twice() -> None:
    features = np.random.default_rng(4).normal(size=(200, 8)).astype(np.float32)
    chosen = choose_photos({"a": features}, 100, seed=5)
    assert [len(rows) for rows in chosen] == [80, 10, 10]
    assert len(np.unique(np.concatenate(chosen))) == 100
    assert chosen.dev.tolist() == choose_photos({"a": features[:, ::-1]}, 100, seed=5).dev.tolist()
    assert chosen.dev.tolist() != choose_photos({"a": features}, 100, seed=6).dev.tolist()


@pytest.mark.parametrize("count", [9, 41])
def test_impossible_counts_are_refused(count: int) -> None:
    with pytest.raises(UsageError, match=f"cannot choose {count} of 40 photos"):
        jointspace.suggest(np.random.default_rng(0).normal(size=(40, 4)), count)


def test_encoders_count_equally() -> None:
    rng = np.random.default_rng(6)
    first, second = rng.normal(size=(2, 50, 6))
    scaled = jointspace.suggest({"a": first, "b": 100 * second}, 20)
    assert scaled.train.tolist() == jointspace.suggest({"a": first, "b": second}, 20).train.tolist()


def make_partly_captioned_run(run: Path, captioned: int) -> Path:
    """Make a run of 40 photos with features. The first `captioned` photos in the order of their names have a caption.
    Return the folder of the photos."""
    photos = make_run(run, images=40) / "data"
    names = sorted(path.name for path in photos.iterdir())
    if captioned:
        (photos / "captions.tsv").write_text("".join(f"{name}\ta thing\n" for name in names[:captioned]))
    ingest(run, photos, {"collection": {"default_split": "gallery"}})
    write_feature_shards(Manifest(run / "manifest"), Layout(run).features("colour").folder)
    return photos


def test_photos_with_captions_are_not_suggested(tmp_path: Path) -> None:
    photos = make_partly_captioned_run(tmp_path / "run", 8)
    text = run_command("suggest", tmp_path / "run", "--count", 32, "-o", tmp_path / "lists")
    assert "8 photos have captions already and are not suggested." in text
    lines = (tmp_path / "lists/captions.tsv").read_text().splitlines()
    assert sorted(line.rstrip("\t") for line in lines) == sorted(path.name for path in photos.glob("*.png"))[8:]


def test_command_writes_lists_that_init_reads(tmp_path: Path) -> None:
    run = tmp_path / "run"
    photos = make_partly_captioned_run(run, 0)
    text = run_command("suggest", run, "--count", 20, "-o", photos)
    assert f"each line of {photos / 'captions.tsv'}" in text
    lines = (photos / "captions.tsv").read_text().splitlines()
    splits = dict(line.split("\t") for line in (photos / "splits.tsv").read_text().splitlines())
    assert sorted(splits.values()) == ["dev"] * 2 + ["test"] * 2 + ["train"] * 16
    assert [line.partition("\t")[0] for line in lines] == list(splits) and all(line.endswith("\t") for line in lines)
    (photos / "captions.tsv").write_text("".join(f"{line}a thing in a picture\n" for line in lines[1:]))
    seen = json.loads(run_command("init", photos, "--json", "-o", tmp_path / "new.yaml"))
    assert seen["splits"] == {"train": 15, "dev": 2, "test": 2, "gallery": 21}
    with pytest.raises(UsageError, match=r"splits\.tsv exists already"):
        run_command("suggest", run, "-o", photos)


def test_command_reads_a_file_of_vectors(tmp_path: Path) -> None:
    vectors = np.random.default_rng(7).normal(size=(30, 5)).astype(np.float32)
    np.save(tmp_path / "images.npy", vectors)
    names = [f"my photos/{number}.jpg" for number in range(30)]
    (tmp_path / "images.txt").write_text("\n".join(names) + "\n")
    run_command("suggest", tmp_path / "images.npy", "-n", 10, "-o", tmp_path / "lists")
    listed = (tmp_path / "lists/splits.tsv").read_text().splitlines()
    chosen = jointspace.suggest(vectors, 10)
    assert listed == [f"{names[row]}\t{split}" for split, rows in chosen._asdict().items() for row in rows]
    with pytest.raises(UsageError, match="is not the folder of a run"):
        run_command("suggest", tmp_path, "-o", tmp_path / "more")
    (tmp_path / "images.txt").write_text("\n".join(["a\tb.jpg", *names[1:]]) + "\n")
    with pytest.raises(InputError, match="has a tab or a line end, so the photo cannot be in the list"):
        run_command("suggest", tmp_path / "images.npy", "-n", 10, "-o", tmp_path / "more")
    vectors[3] = np.nan
    np.save(tmp_path / "images.npy", vectors)
    with pytest.raises(IntegrityError, match="images.npy: vectors row 3 is not finite"):
        run_command("suggest", tmp_path / "images.npy", "-n", 10, "-o", tmp_path / "more")
