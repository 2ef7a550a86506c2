"""Collections in a bucket and behind a web server: the same manifest and the same features as from disk."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from made_up_everything import EXCLUDED, FORMS, check_everything, everything, write
from PIL import Image
from servers import FaultyServer, S3Server

from pipeline.collections.watching import describe_state
from pipeline.config import load
from pipeline.errors import UnreachableError, UsageError
from pipeline.remote.paths import place
from pipeline.remote.scratch import Scratch
from pipeline.run import Run
from pipeline.run.runner import make
from stages.catalogue import declared

TARS, EACH = 3, 6
CONFIG = {
    "demo": {"generate": False},
    "encoders": [{"name": "tiny", "architecture": "squeezenet1_1", "weights": "untrained", "resize": 32, "crop": 32}],
    "models": ["cca"],
    "shard_size": 8,
    "remote": {"scratch_gb": 0.001},
    "extract": {"decode_workers": 1},
}


def jpeg(seed: int) -> bytes:
    data = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(256, size=(32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(data, "JPEG")
    return data.getvalue()


def write_tars(folder: Path) -> Path:
    """Photographs with sentences; the first of the second tar is that of the first, and one is broken."""
    folder.mkdir(parents=True)
    for number in range(TARS):
        with tarfile.open(folder / f"shard-{number:03d}.tar", "w") as tar:
            for i in range(EACH):
                seed = number * EACH + i if (number, i) != (1, 0) else 0
                image = jpeg(seed) if (number, i) != (2, 3) else b"no image"
                for suffix, data in (
                    ("jpg", image),
                    ("txt", f"thing {seed} is {'red' if seed % 2 else 'blue'}".encode()),
                ):
                    member = tarfile.TarInfo(f"{number}-{i}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return folder


def start(folder: Path, name: str, data_root: str, **changes: Any) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    values = {**CONFIG, "name": name, "data_root": data_root, "results_root": str(folder), **changes}
    path.write_text(yaml.safe_dump(values))
    run = Run(folder / name, load(path))
    run.root.mkdir()
    run.layout.config.write_text(path.read_text())
    return run


def make_all(run: Run, *steps: tuple[str, tuple[str, ...]]) -> Run:
    for name, names in steps:
        make(run, declared()[name], names, **({"processes": 0} if name == "ingest" else {}))
    return run


def tables(run: Run) -> dict[str, bytes]:
    """The tables of the manifest, which know nothing of where the collection is, and the rejects."""
    folder = run.layout.manifest.path
    files = [*folder.glob("shards/*.parquet"), folder / "rejects.jsonl"]
    return {path.name: path.read_bytes() for path in files}


WEB = {"format": "webdataset", "reject_limit": 1}
STEPS = (("ingest", ()), ("prepare_encoder", ("tiny",)), ("extract", ("tiny",)))


def test_tars_in_a_bucket_make_what_they_make_on_disk(s3: S3Server, tmp_path: Path) -> None:
    data = write_tars(tmp_path / "data/photos")
    s3.put_folder("tars", data.parent)
    here = make_all(start(tmp_path, "here", str(data), collection=WEB), *STEPS)
    there = make_all(start(tmp_path, "there", "s3://tars/photos", collection=WEB), *STEPS)
    assert tables(here) == tables(there)
    count = json.loads(there.layout.manifest.commit.read_text())["counts"]["images"]
    assert count == {"given": TARS * EACH, "kept": TARS * EACH - 2, "rejected": 1, "duplicate": 1}
    for number in range(here.manifest.n_shards):
        one, other = (run.layout.features("tiny").shard(number) for run in (here, there))
        assert one.read_bytes() == other.read_bytes()
    assert there.manifest.objects.keys() == {f"shard-{n:03d}.tar" for n in range(TARS)} and not here.manifest.objects
    row = there.manifest.pick([0])[0]
    read = there.photographs.read(row["path"], row["offset"], row["size"])
    assert read == jpeg(0)


@pytest.mark.parametrize("form", FORMS)
def test_all_objects_of_a_bucket_are_accounted_for(form: str, s3: S3Server, tmp_path: Path) -> None:
    s3.put_folder(f"all-{form}", write(tmp_path / "data", everything()))
    settings = {"format": form, "exclude": EXCLUDED, "reject_limit": 1, "default_split": "gallery"}
    make_all(start(tmp_path, "run", f"s3://all-{form}", collection=settings), STEPS[0])
    check_everything(tmp_path / "run", form)


def test_parquet_with_photographs_in_a_bucket(s3: S3Server, tmp_path: Path) -> None:
    images = [{"bytes": jpeg(number), "path": None} for number in range(9)]
    (tmp_path / "data").mkdir()
    table = pa.table({"image": images, "sentence": [f"thing {number}" for number in range(9)]})
    pq.write_table(table, tmp_path / "data/train.parquet", row_group_size=4)
    s3.put_folder("hub", tmp_path / "data")
    collection = {"format": "parquet", "default_split": "train"}
    here = make_all(start(tmp_path, "here", str(tmp_path / "data"), collection=collection), *STEPS)
    there = make_all(start(tmp_path, "there", "s3://hub", collection=collection), *STEPS)
    assert tables(here) == tables(there) and here.manifest.images.num_rows == 9
    assert there.layout.features("tiny").shard(0).read_bytes() == here.layout.features("tiny").shard(0).read_bytes()


def test_a_tar_that_changes_after_ingest_stops_extraction_and_reruns_ingest(s3: S3Server, tmp_path: Path) -> None:
    data = write_tars(tmp_path / "data")
    s3.put_folder("changed", data)
    run = make_all(start(tmp_path, "run", "s3://changed", collection=WEB), *STEPS[:2])
    before = describe_state(place("s3://changed"), "webdataset", {}, run.scratch)
    tar = (data / "shard-001.tar").read_bytes()
    s3.put("changed", {"shard-001.tar": tar[:600] + b"????" + tar[604:]})
    with pytest.raises(UnreachableError, match=r"s3://changed/shard-001\.tar is not what it was .* run ingest again"):
        make_all(Run(run.root), STEPS[2])
    assert describe_state(place("s3://changed"), "webdataset", {}, run.scratch) != before


def test_a_table_in_a_bucket_with_images_and_features_beside_it(s3: S3Server, tmp_path: Path) -> None:
    names = [f"images/{i}.jpg" for i in range(10)]
    table = pa.table({"file": names, "sentence": [f"a thing {i}" for i in range(10)], "year": list(range(10))})
    vectors = np.random.default_rng(0).normal(size=(10, 5)).astype(np.float32)
    features = pa.table({"file": names, "embedding": list(vectors)})
    data = tmp_path / "data"
    (data / "images").mkdir(parents=True)
    for i, name in enumerate(names):
        (data / name).write_bytes(jpeg(i))
    pq.write_table(table, data / "list.parquet")
    (tmp_path / "made").mkdir()
    pq.write_table(features, tmp_path / "made/clip.parquet")
    s3.put_folder("listed", data)
    s3.put_folder("listed-features", tmp_path / "made")

    def begun(name: str, root: str, path: str) -> Run:
        given = [{"name": "given", "kind": "imported", "path": path}]
        collection = {"format": "table", "files": {"table": "list.parquet"}}
        run = start(tmp_path, name, root, collection=collection, encoders=given)
        return make_all(run, ("ingest", ()), ("import_features", ("given",)))

    here = begun("here", str(data), str(tmp_path / "made/clip.parquet"))
    there = begun("there", "s3://listed", "s3://listed-features/clip.parquet")
    assert tables(here) == tables(there)
    assert [row["path"] for row in there.manifest.images.to_pylist()] == names
    for number in range(here.manifest.n_shards):
        one, other = (run.layout.features("given").shard(number) for run in (here, there))
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.usefixtures("impatient")
def test_tars_behind_a_web_server_that_fails_now_and_then(web: FaultyServer, tmp_path: Path) -> None:
    data = write_tars(tmp_path / "data")
    web.objects = {path.name: path.read_bytes() for path in data.iterdir()}
    here = make_all(start(tmp_path, "here", str(data), collection=WEB), STEPS[0])
    web.faults = ["503", "cut", "503", "", "", "cut"]
    files = {"divided": "shard-{000..002}.tar"}
    there = make_all(start(tmp_path, "there", web.root, collection={**WEB, "files": files}), STEPS[0])
    assert tables(here) == tables(there)
    assert not web.faults
    with pytest.raises(UsageError, match="a web server lists nothing"):
        make_all(start(tmp_path, "unnamed", web.root, collection=WEB), STEPS[0])


@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_gone_rejects_no_photograph(web: FaultyServer, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("file,sentence\na.jpg,a thing\nb.jpg,another\n")
    web.objects = {"a.jpg": jpeg(0)}
    changes = {"collection": {"format": "table", "files": {"table": str(tmp_path / "list.csv")}, "reject_limit": 1}}
    web.faults = ["503"] * 10_000
    run = start(tmp_path, "gone", web.root, **changes)
    with pytest.raises(UnreachableError, match=r"a\.jpg cannot be reached"):
        make_all(run, STEPS[0])
    assert not run.layout.manifest.commit.exists()
    web.faults = []
    make_all(run, STEPS[0])
    (reject,) = run.manifest.rejects[:1]
    assert reject["file"] == "b.jpg" and reject["reason"].startswith("missing")


def test_state_of_a_folder_in_a_bucket_follows_its_objects(s3: S3Server, scratch: Scratch) -> None:
    s3.put("state", {"images/a.jpg": b"a", "captions.tsv": b"a.jpg\t0\tA thing\n", "other.bin": b"x"})
    first = describe_state(place("s3://state"), "folder", {}, scratch)
    s3.put("state", {"other.bin": b"y"})
    assert describe_state(place("s3://state"), "folder", {}, scratch) == first and first.startswith("2 files")
    s3.put("state", {"images/a.jpg": b"b"})
    assert describe_state(place("s3://state"), "folder", {}, scratch) != first
