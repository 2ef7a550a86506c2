"""Tests of the commands `apply`, `add` and `remove`: photos that the model has never seen are indexed in its joint
space.
"""

import hashlib
import json
import re
import shlex
import shutil
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import yaml
from synthetic_colours import COLOURS, CONFIG, draw
from synthetic_run import retell, run_command

from pipeline.errors import InputError, IntegrityError, JointspaceError, UsageError
from pipeline.index.search import Searcher
from pipeline.run.reading.application import refresh_additions
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.index_changes import link_shard, photos_of
from pipeline.storage.index_shard import IndexShard
from pipeline.storage.locks import hold
from pipeline.storage.manifest import Manifest
from pipeline.storage.stored_index import open_index
from stages.catalogue import declared


@pytest.fixture(scope="module")
def applied(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Apply the index of the run `colours` to 24 photos without captions, in shards of 16. Return the folder that has
    the photos in `photos` and the run that `apply` makes in `out`.
    """
    folder = tmp_path_factory.mktemp("applied")
    draw(folder / "photos" / "2021", 24, 1)
    (folder / "photos" / "note.txt").write_text("not a caption")
    (folder / "photos" / "broken.jpg").write_bytes(b"no photograph")
    apply(colours, folder / "photos", folder / "out")
    return folder


def apply(source: Path, photos: Path, output: Path, *options: str) -> str:
    """Apply the index `bundle` of the run `source` to the folder `photos`, with the run of `apply` in `output`, and
    return the output of the command. `options` are further options of the command.
    """
    small = output.with_name("small.yaml")
    small.write_text(yaml.safe_dump({"shard_size": 16, "extract": CONFIG["extract"]}))
    return run_command("apply", source / "bundle", photos, "--output", output, "--config", small, *options)


def test_photos_without_captions_are_found_by_words(applied: Path) -> None:
    searcher = Searcher(open_index(applied / "out"))
    searcher.open()
    for colour in COLOURS:
        found = searcher.images(f"a {colour} picture", 6)
        assert {hit.row["path"].split("/")[1].partition("-")[0] for hit in found} == {colour}
    with pytest.raises(UsageError, match="has no captions. Search for similar photos"):
        searcher.sentences({"eye": np.ones((1, 512), np.float32)}, 3)


def test_the_card_says_what_the_model_was_trained_on(colours: Path, applied: Path) -> None:
    card = IndexShard(applied / "out").card
    trained = IndexShard(colours / "bundle").card
    assert card.trained_on == trained.trained_on
    assert card.trained_on.run == "colours" and card.trained_on.images == 32
    assert (card.name, card.images.count, card.sentences) == ("out", 24, None)
    assert card.images.recall == 1 and card.images.to_json()["queries"] == 40
    assert card.images.measured_with == "captions"
    for key in ("model", "text_encoders/tfidf", "encoders/eye"):
        assert card.inputs[key] == trained.inputs[key]
    assert card.inputs["bundle"] == trained.fingerprint
    assert "sentences.faiss" not in card.files
    IndexShard(applied / "out").check()


def test_an_index_without_captions_anywhere_is_measured_with_phrases(applied: Path, tmp_path: Path) -> None:
    """Neither the index that is applied nor the photos have captions. The recall of the new index is measured with
    photos as queries (`images`). If the key hubness.queries names a file with queries, the recall is measured with
    these queries (`phrases`).
    """
    draw(tmp_path / "others", 30, 6)
    source = applied / "out/index/ncca"
    asked = [f"a {colour} picture of {colour} number {number}" for number in range(8) for colour in COLOURS]
    (tmp_path / "asked.txt").write_text("\n".join([*asked, "zebra"]))
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"hubness": {"queries": str(tmp_path / "asked.txt")}}))
    for output, options, said in (
        ("plain", (), "images"),
        ("asked", ("--config", tmp_path / "own.yaml"), "phrases"),
    ):
        run_command("apply", source, tmp_path / "others", "--output", tmp_path / output, *options)
        card = IndexShard(tmp_path / output / "index/ncca").card.images
        assert card.measured_with == said


def test_apply_makes_the_same_vectors_as_the_run(colours: Path, tmp_path: Path) -> None:
    shutil.copytree(colours / "data", tmp_path / "data")  # The captions are copied, too.
    apply(colours, tmp_path / "data", tmp_path / "out")
    applied = Embeddings(Manifest(tmp_path / "out/manifest"), tmp_path / "out/embeddings/ncca")
    of_run = Embeddings(Manifest(colours / "manifest"), colours / "embeddings/ncca")
    for modality in ("images", "sentences"):
        ids = np.arange(40)
        np.testing.assert_allclose(applied.read(modality, ids), of_run.read(modality, ids), rtol=0, atol=1e-5)
    assert IndexShard(tmp_path / "out").card.sentences.count == 40


def test_a_rerun_makes_only_missing_shards(colours: Path, applied: Path) -> None:
    out = applied / "out"
    made = {path: path.stat().st_mtime_ns for path in out.rglob("shard-*.h5")}
    manifest_inode = (out / "manifest/manifest.json").stat().st_ino
    deleted = out / "features/eye/shard-00001.h5.json"
    deleted.unlink()
    vectors = (out / "index/ncca/images.faiss").read_bytes()
    said = json.loads(apply(colours, applied / "photos", out, "--json"))
    assert (said["bundle"], said["photographs"]) == (str(out), 24)
    assert json.loads(run_command(*said["search"], "--json"))
    again = {path: path.stat().st_mtime_ns for path in out.rglob("shard-*.h5")}
    assert {path for path in made if again[path] != made[path]} == {out / "features/eye/shard-00001.h5"}
    assert (out / "manifest/manifest.json").stat().st_ino == manifest_inode
    assert (out / "index/ncca/images.faiss").read_bytes() == vectors


def test_an_index_is_not_written_over_another(colours: Path, applied: Path, tmp_path: Path) -> None:
    draw(tmp_path / "others", 4, 5)
    index = shutil.copytree(colours / "bundle", tmp_path / "index")
    with pytest.raises(UsageError, match="already contains an index"):
        apply(colours, tmp_path / "others", index)
    with pytest.raises(UsageError, match=f"is the index of {applied / 'photos'}"):
        apply(colours, tmp_path / "others", applied / "out")
    assert "0  near-duplicates" in run_command("audit", applied / "out")
    shutil.copytree(applied / "out", index / "inner")
    run_command("verify", index)


@pytest.fixture(scope="module")
def joined(colours: Path, applied: Path) -> Path:
    """Copy the index of 40 photos, add the index of 24 other photos to the copy, and return the folder of the copy."""
    run_command("add", colours / "bundle", applied / "out", "--copy-to", applied / "joined")
    return applied / "joined"


def test_an_added_index_is_linked_and_searched_together_with_the_first(
    colours: Path, applied: Path, joined: Path
) -> None:
    bundle = open_index(joined)
    bundle.check()
    assert (bundle.card.images.count, bundle.card.sentences.count) == (64, 40)
    assert bundle.table("images")["image_id"].to_pylist() == list(range(64))
    for own, folder in ((".", colours / "bundle"), ("added/00-out", applied / "out/index/ncca")):
        assert (joined / own / "images.faiss").samefile(folder / "images.faiss")
    for colour in COLOURS:
        hits = Searcher(bundle).images(f"a {colour} picture", 16)
        assert {hit.row["path"].rpartition("/")[2].partition("-")[0] for hit in hits} == {colour}
        assert {hit.row["bundle"] for hit in hits} == {0, 1}


def test_photos_are_added_in_place(colours: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The command `add` adds the new photos of a folder. It skips photos that are in the index, and a photo that was
    removed from the index.

    After a change of the model of the index, the photos that were added are embedded again.
    """
    caplog.set_level("INFO")
    index = shutil.copytree(colours / "bundle", tmp_path / "index")
    photos = tmp_path / "photos"
    shutil.copytree(colours / "data", photos)
    draw(photos / "new", 8, 2)
    run_command("add", index, photos)
    run_command("remove", index, "new/red-00.png")
    draw(photos / "newer", 4, 3)
    run_command("add", index, photos)
    assert "8 of 48 photos" in caplog.text and "4 of 51 photos" in caplog.text and "removed 1 photo from" in caplog.text
    assert open_index(index).card.images.count == 51
    open_index(index).check()
    retell(index / "added/00-photos/index/ncca/card.json", "inputs", "model", value="an earlier one")
    assert open_index(index).card.images.count == 40 and "11 photos" in caplog.text
    refresh_additions(declared(), index)
    assert open_index(index).card.images.count == 51
    run_command("remove", index, colours / "data/red-00.png")
    run_command("add", index, colours / "data")
    assert "0 of 39 photos" in caplog.text and open_index(index).card.images.count == 50
    caplog.clear()
    run_command("verify", index)
    assert " 0 files cannot be used" in caplog.text
    vectors = index / "added/00-photos/embeddings/ncca/shard-00000.h5"
    vectors.write_bytes(vectors.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match=f"1 file of {index} cannot be used"):
        run_command("verify", index)


def test_a_second_addition_says_that_nothing_is_new(
    colours: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The index has one of the two photos, so the first call of `add` adds only the other photo. Numbers of shards and
    of queries per second are debug messages.
    """
    caplog.set_level("INFO")
    index = shutil.copytree(colours / "bundle", tmp_path / "index")
    photos = tmp_path / "photos"
    draw(photos, 1, 2)
    shutil.copy(next((colours / "data").glob("*.png")), photos / "known.png")
    for expected in (
        f"added 1 of 2 photos of {photos} to {index}. The index already has the others.",
        f"added 0 of 2 photos of {photos} to {index}. The index already has all of them.",
    ):
        caplog.clear()
        run_command("add", index, photos)
        said = [record.getMessage() for record in caplog.records if record.levelname != "DEBUG"]
        assert said[-1] == f"The command has {expected}"
        assert not [line for line in said if "queries/s" in line or "already made" in line or "are new" in line]


def test_a_stage_says_that_its_outputs_were_kept(
    applied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    run = shutil.copytree(applied / "out", tmp_path / "out")
    run_command("stage", "ingest", "--run", run)
    assert "ingest: The inputs of 1 output are unchanged, so this work was skipped. To repeat the work" in caplog.text


def test_refused_photos_leave_nothing_behind(
    colours: Path, applied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = shutil.copytree(colours / "bundle", tmp_path / "index")
    output = tmp_path / "own"
    output.mkdir()
    (output / "notes.txt").write_text("of the user")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/0.jpg").write_text("no photo")
    before = sorted(tmp_path.rglob("*"))
    for command in (
        ("add", index, tmp_path / "bad"),
        ("add", index, tmp_path / "bad", "--copy-to", tmp_path / "copy"),
        ("apply", index, tmp_path / "bad", "--output", tmp_path / "out"),
        ("apply", index, tmp_path / "bad", "--output", output),
    ):
        caplog.clear()
        with pytest.raises(InputError, match="None of the 1 photos can be used") as refusal:
            run_command(*command)
        assert "rejects.jsonl" not in str(refusal.value)
        assert "0.jpg was rejected: not-an-image" in caplog.text
        assert sorted(tmp_path.rglob("*")) == before


def test_a_refusal_keeps_the_work_of_an_earlier_call(applied: Path, colours: Path, tmp_path: Path) -> None:
    output = shutil.copytree(applied / "out", tmp_path / "out")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/0.jpg").write_text("no photo")
    retell(output / "applied.json", "photographs", value=str(tmp_path / "gone"))
    with pytest.raises(InputError, match="None of the 1 photos can be used"):
        apply(colours, tmp_path / "bad", output)
    assert list(output.rglob("features/eye/shard-*.h5"))


def test_apply_refuses_to_write_an_index_that_is_locked(colours: Path, applied: Path) -> None:
    index = applied / "out/index/ncca"
    before = (index / "card.json").read_bytes()
    with hold(index), pytest.raises(JointspaceError, match=f"{index} is being written by process"):
        apply(colours, applied / "photos", applied / "out")
    assert (index / "card.json").read_bytes() == before


def test_a_locked_addition_is_refreshed_after_its_lock_is_free(joined: Path, tmp_path: Path) -> None:
    index = shutil.copytree(joined, tmp_path / "index")
    root = IndexShard(index).card.data_root
    # The addition now seems to have photos of the run's own collection, so `refresh_additions` removes it.
    retell(index / "added/00-out/card.json", "data_root", value=root)
    thread = Thread(target=refresh_additions, args=(declared(), index))
    with hold(index / "added/00-out"):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and open_index(index).card.images.count == 64
    thread.join(60)
    assert open_index(index).card.images.count == 40


def test_photos_of_an_index_and_of_its_addition_are_read_from_their_folders(joined: Path) -> None:
    bundle = open_index(joined)
    photos = bundle.photographs()
    for row in bundle.table("images").to_pylist():
        assert hashlib.sha256(photos.read(row)).hexdigest() == row["sha256"]


def test_an_index_of_several_shards_is_applied_to_a_webdataset_shard(joined: Path, tmp_path: Path) -> None:
    """The photos have captions, but their split is `gallery`, so that no model learns from them."""
    shutil.copytree(joined, tmp_path / "joined" / "bundle")
    for name in draw(tmp_path / "photos", 12, 4):
        (tmp_path / "photos" / name).with_suffix(".txt").write_text("a picture")
    shutil.make_archive(tmp_path / "shards/photos", "tar", tmp_path / "photos")
    apply(tmp_path / "joined", tmp_path / "shards/photos.tar", tmp_path / "out")
    table = IndexShard(tmp_path / "out").table("images")
    assert table["split"].to_pylist() == ["gallery"] * 12 and IndexShard(tmp_path / "out").card.sentences.count == 12


def test_removed_photos_are_not_added_again(colours: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A removed photo stays removed after its folder has moved, and after the added photos are embedded again. A copy
    of a removed photo is removed too.
    """
    caplog.set_level("INFO")
    index = shutil.copytree(colours / "bundle", tmp_path / "index")
    photos = tmp_path / "photos"
    draw(photos, 8, 2)
    shutil.copy(colours / "data/green-01.png", photos / "a copy.png")
    (photos / "captions.tsv").write_text("a copy.png\ta green picture\na copy.png\tanother caption\nred-00.png\tnew\n")
    run_command("add", index, photos)
    assert "already has their photos with other captions (number of these captions: 1)" in caplog.text
    run_command("remove", index, f"{photos}/red-00.png", f"{colours}/data/green-01.png")
    photos = photos.rename(tmp_path / "moved")
    run_command("add", index, photos)
    assert f"`jointspace add` ignores 2 photos that `jointspace remove` has removed from {index}." in caplog.text
    assert f"added 0 of 7 photos of {photos}" in caplog.text and open_index(index).card.images.count == 46
    (tmp_path / "moved").rename(tmp_path / "photos")
    retell(index / "added/00-photos/index/ncca/card.json", "inputs", "model", value="an earlier one")
    refresh_additions(declared(), index)
    names = [photo.name for photo in photos_of(open_index(index))]
    assert len(names) == 46 and "a copy.png" not in names and names.count("red-00.png") == 1


def test_a_failed_refresh_names_the_command_that_adds_the_photos_again(
    colours: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    index = shutil.copytree(colours / "bundle", tmp_path / "my index")
    photos = tmp_path / "photos"
    draw(photos, 4, 2)
    run_command("add", index, photos)
    retell(index / "added/00-photos/index/ncca/card.json", "inputs", "model", value="an earlier one")
    gone = photos.rename(tmp_path / "gone")
    refresh_additions(declared(), index)
    (command,) = re.findall("To add the photos again, run: jointspace (.*)", caplog.text)
    gone.rename(photos)
    assert open_index(index).card.images.count == 40
    run_command(*shlex.split(command))
    assert open_index(index).card.images.count == 44


def test_an_addition_keeps_only_photos_that_the_index_does_not_have(colours: Path, tmp_path: Path) -> None:
    """The indexed photos are replaced by eight others, while the two additions of the index stay. The eight photos are
    six of the eight photos of the first addition, and both photos of the second.

    `refresh_additions` then keeps the two missing photos of the first addition. It removes the second addition, and an
    addition that has the same photos as the index.
    """
    index = shutil.copytree(colours / "bundle", tmp_path / "index")
    names = draw(tmp_path / "photos", 8, 2)
    draw(tmp_path / "few", 2, 3)
    for added in ("photos", "few"):
        run_command("add", index, tmp_path / added)
    shutil.copytree(tmp_path / "photos", tmp_path / "own", ignore=shutil.ignore_patterns(*names[6:]))
    shutil.copytree(tmp_path / "few", tmp_path / "own/few")
    apply(colours, tmp_path / "own", tmp_path / "out")
    grown = tmp_path / "out/index/ncca"
    shutil.copytree(index / "added", grown / "added")
    link_shard(IndexShard(grown), grown / "added/02-same")
    refresh_additions(declared(), grown)
    assert sorted(Path(photo.root).name for photo in photos_of(open_index(grown))) == ["own"] * 8 + ["photos"] * 2


def test_photos_are_added_to_every_index_of_a_run_and_encoded_once(
    colours: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    indexes = [shutil.copytree(colours / "bundle", tmp_path / "run/index" / name) for name in ("one", "two")]
    shutil.copytree(colours / "manifest", tmp_path / "run/manifest")
    draw(tmp_path / "photos", 4, 2)
    run_command("add", indexes[1], tmp_path / "photos")
    for index in indexes:
        assert f"added 4 of 4 photos of {tmp_path / 'photos'} to {index}" in caplog.text
        names = [photo.name for photo in photos_of(open_index(index)) if photo.root == str(tmp_path / "photos")]
        assert names == ["blue-02.png", "green-01.png", "red-00.png", "white-03.png"]
        run_command("verify", index)
    assert caplog.text.count("limited by") == 1
