"""Photographs in tars on an S3 server, from there to an index; jobs, workers and the server are killed on the way."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from servers import S3Server

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TARS, EACH = map(int, os.environ.get("JOINTSPACE_TARS", "20x100").split("x"))
"""Tars, and photographs in each; `JOINTSPACE_TARS=200x100` tries more."""
SIDE = 32
CONFIG = {
    "demo": {"generate": False},
    "collection": {"format": "webdataset"},
    "encoders": [
        {"name": "tiny", "architecture": "squeezenet1_1", "weights": "untrained", "resize": SIDE, "crop": SIDE}
    ],
    "models": ["cca"],
    "shard_size": max(512, TARS * EACH // 8),
    "fit": {"dimensions": [4], "image_ridge": [1], "text_ridge": [1], "eigenvalue_power": [1]},
    "evaluate": {"bootstrap": 0, "splits": ["test"], "protocols": ["all-sentences"]},
    "index": {"candidates": ["Flat"]},
    "remote": {"scratch_gb": 0.001 * TARS},
    "device": "cpu",
}


def write_tars(folder: Path) -> int:
    """One photograph of each tar is that of the tar before it; returns their bytes."""
    folder.mkdir()
    for number in range(TARS):
        with tarfile.open(folder / f"{number:05d}.tar", "w") as tar:
            for i in range(EACH):
                seed = number * EACH + i if i or not number else (number - 1) * EACH + 1
                pixels, data = np.random.default_rng(seed).integers(256, size=(SIDE // 8, SIDE // 8, 3)), io.BytesIO()
                Image.fromarray(pixels.astype(np.uint8)).resize((SIDE, SIDE)).save(data, "JPEG")
                text = f"a {'red' if pixels[0, 0, 0] > 127 else 'blue'} thing number {seed % 7}".encode()
                for suffix, content in (("jpg", data.getvalue()), ("txt", text)):
                    member = tarfile.TarInfo(f"{number}-{i}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return sum(path.stat().st_size for path in folder.iterdir())


class Commands:
    """Commands on a run in `folder`, which has its own folder for temporary files."""

    def __init__(self, folder: Path, data_root: str, environment: dict[str, str]) -> None:
        self.folder, self.run = folder, folder / "results/run"
        self.scratch = folder / "tmp"
        self.scratch.mkdir(parents=True)
        (folder / "run.yaml").write_text(yaml.safe_dump({**CONFIG, "name": "run", "data_root": data_root}))
        self.environment = {**os.environ, **environment, "PYTHONPATH": str(ROOT), "TMPDIR": str(self.scratch)}

    def start(self, *words: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "stages.cli", "--quiet", *words, "--config", "run.yaml"]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, start_new_session=True)

    def do(self, *words: str) -> None:
        assert self.start(*words, "--run", "results/run").wait() == 0

    def interrupt(self, until: Callable[[], bool], act: Callable[[subprocess.Popen], None], *words: str) -> int:
        """Start a command, and do something to it as soon as `until` holds; returns its exit code."""
        process = self.start(*words, "--run", "results/run")
        while process.poll() is None and not until():
            time.sleep(0.02)
        assert process.poll() is None, "it was too fast to be interrupted"
        act(process)
        return process.wait()

    def fetched(self) -> int:
        """Objects that living and dead jobs have fetched."""
        return sum(path.read_text().count("\n") for path in self.scratch.rglob("fetched.jsonl"))

    def snakemake(self) -> None:
        words = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "all", "--cores", "2"]
        words += ["--quiet", "all", "--configfile", "run.yaml", "--rerun-triggers", "input", "params"]
        subprocess.run(words, cwd=self.folder, env=self.environment, check=True)

    def results(self) -> dict[str, bytes]:
        """The manifest's tables, features and index, without where the collection is."""
        patterns = ("manifest/shards/*.parquet", "manifest/rejects.jsonl", "features/tiny/*.h5", "index/cca/*.faiss")
        files = [path for pattern in patterns for path in self.run.glob(pattern)]
        return {path.relative_to(self.run).as_posix(): path.read_bytes() for path in files}


def children(process: subprocess.Popen) -> list[int]:
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def kill(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGKILL)


def test_a_bucket_is_as_good_as_a_disk_whatever_dies(s3_process: S3Server, tmp_path: Path) -> None:
    size, took = write_tars(tmp_path / "data"), {}
    here = Commands(tmp_path / "here", str(tmp_path / "data"), {})
    there = Commands(tmp_path / "there", "s3://photos", s3_process.environment)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in s3_process.environment.items():
            patched.setenv(name, value)
        s3_process.put_folder("photos", tmp_path / "data")

        def restart(_: subprocess.Popen) -> None:
            s3_process.kill()
            s3_process.start(photos=tmp_path / "data")

        begun = time.monotonic()
        assert there.interrupt(lambda: there.fetched() >= TARS // 4, kill, "ingest") != 0
        assert there.interrupt(lambda: there.fetched() >= TARS // 2, restart, "ingest") == 0
        took["ingest"] = time.monotonic() - begun
    counts = json.loads((there.run / "manifest/manifest.json").read_text())["counts"]["images"]
    assert counts == {"given": TARS * EACH, "kept": TARS * (EACH - 1) + 1, "rejected": 0, "duplicate": TARS - 1}
    there.do("prepare-encoder", "tiny")
    shards, begun = there.run / "features/tiny", time.monotonic()
    assert there.interrupt(lambda: any(shards.glob("*.h5.json")), kill, "extract", "tiny") != 0

    def kill_worker(process: subprocess.Popen) -> None:
        os.kill(children(process)[-1], signal.SIGKILL)

    made = len(list(shards.glob("*.h5.json")))
    assert there.interrupt(lambda: len(list(shards.glob("*.h5.json"))) > made, kill_worker, "extract", "tiny") == 0
    took["extract"] = time.monotonic() - begun
    there.snakemake()
    here.snakemake()
    assert here.results() == there.results() and any(name.endswith(".faiss") for name in here.results())
    left = [path for path in there.scratch.glob("jointspace-*/*") if path.is_dir()]
    assert left == []
    print(json.dumps({"images": TARS * EACH, "tars": TARS, "bytes": size, **{k: round(v, 1) for k, v in took.items()}}))
