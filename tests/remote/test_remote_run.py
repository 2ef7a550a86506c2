"""Collections in a bucket and behind a web server: the same manifest and the same features as from disk."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from servers import FaultyServer, S3Server

from pipeline.collections.inventory import describe_state
from pipeline.config.loading import load
from pipeline.errors import UnreachableError
from pipeline.remote.paths import place
from pipeline.run import Run
from pipeline.run.runner import run_stage
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

pytestmark = pytest.mark.slow


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
        run_stage(run, declared()[name], names, **({"processes": 0} if name == "ingest" else {}))
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
