"""`ingest` whose images are inspected by Dask's workers: the bytes of a manifest that one process makes."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_up import ingest, write_config

from pipeline.collections import inspection
from pipeline.storage.json_files import read_json

pytestmark = pytest.mark.slow
IMAGES, BLOCK = 24, 4


@pytest.fixture
def root(tmp_path: Path, photograph) -> Path:
    """Photographs of which one is broken, and one is a photograph of another block once more."""
    folder = tmp_path / "data" / "images"
    folder.mkdir(parents=True)
    for number in range(IMAGES):
        (folder / f"{number:02d}.jpg").write_bytes(photograph(3 if number == 20 else number))
    (folder / "09.jpg").write_bytes(b"no photograph")
    (folder.parent / "captions.tsv").write_text("".join(f"{n:02d}.jpg\t0\tA dog .\n" for n in range(IMAGES)))
    return folder.parent


def refuse(look: object, wanted: Iterator, processes: int) -> Iterator:
    """In the place of `isolated_map` in this process, which is to inspect nothing."""
    assert not list(wanted)
    yield from ()


def configured(run: Path, root: Path, **how: str) -> Path:
    """The run, with the configuration that workers read."""
    run.mkdir()
    write_config(run, {"data_root": str(root), "demo": {"generate": False}, **how})
    return run


def files(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "manifest").rglob("*") if path.is_file()}


def test_a_lost_worker_costs_its_block(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(inspection, "BLOCK", BLOCK)
    ingest(configured(tmp_path / "alone", root), root)
    parts, written = tmp_path / "shared/manifest.parts", []

    def kill_half_way() -> None:
        while len(list(parts.glob("*.json"))) < 2:
            time.sleep(0.02)
        written.extend(path.stat().st_mtime_ns for path in sorted(parts.glob("*.json"))[:2])
        os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)

    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        killer = threading.Thread(target=kill_half_way, daemon=True)
        killer.start()
        monkeypatch.setattr(inspection, "isolated_map", refuse)
        ingest(configured(tmp_path / "shared", root, scheduler=cluster.scheduler_address), root)
        killer.join(10)
    assert len(written) == 2, "no worker was killed"
    assert files(tmp_path / "shared") == files(tmp_path / "alone")
    counts = read_json(tmp_path / "shared/manifest/manifest.json")["counts"]["images"]
    assert counts == {"given": IMAGES, "kept": IMAGES - 2, "rejected": 1, "duplicate": 1}
