"""The same vectors, of images or of sentences, made by the run and imported, give the same evaluation."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from made_up import run_command
from workflow import NETWORK, planned, snakemake

from pipeline.errors import UsageError
from pipeline.run import Run

pytestmark = pytest.mark.slow
EYES = {"name": "eyes", **NETWORK}
CONFIG = {
    "name": "extracted", "data_root": "data", "models": ["ncca"], "encoders": [EYES], "shard_size": 20,
    "demo": {"train": 40, "dev": 10, "test": 10, "weak": 0},
    "fit": {"dimensions": [8], "image_ridge": [1], "text_ridge": [1], "eigenvalue_power": [1]},
    "evaluate": {"bootstrap": 5, "protocols": ["all-sentences"]},
}  # fmt: skip


def run_all(folder: Path, **more: object) -> tuple[Path, dict[str, float]]:
    """The folder of the run, and the recalls and mean ranks of its summary."""
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**CONFIG, **more}))
    snakemake(folder, "all", "--configfile", "tiny.yaml")
    assert planned(folder) == set()
    run = folder / "results" / str(more.get("name", CONFIG["name"]))
    found = {
        f"{one['split']} {direction} {name}": one[direction][name]
        for one in json.loads((run / "evaluation/summary.json").read_text())
        for direction in ("image_to_sentence", "sentence_to_image")
        for name in ("recall@1", "recall@5", "recall@10", "mean_rank")
    }
    return run, found


def test_imported_features_are_evaluated_like_those_that_were_extracted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    extracted, expected = run_all(tmp_path)
    run = Run(extracted)
    features = np.concatenate([run.features.open("eyes", n)["features"][:] for n in range(run.manifest.n_shards)])
    paths = run.manifest.images["path"].to_pylist()
    order = np.random.default_rng(0).permutation(len(paths))
    names = [paths[i] for i in order]
    np.save(tmp_path / "f.npy", features[order])
    (tmp_path / "f.txt").write_text("".join(f"{name}\n" for name in names))
    vectors = pa.array(list(features[order].astype(np.float32)))
    pq.write_table(pa.table({"vector": vectors, "file": names}), tmp_path / "f.parquet")
    photograph = tmp_path / "data" / paths[0]
    for name, made_by in (("f.npy", "eyes"), ("f.parquet", None)):
        given = {"name": "given", "kind": "imported", "path": str(tmp_path / name), "made_by": made_by}
        roots = {} if made_by else {"image_view": {"normalise": ["sqrt", "l2"]}}  # what is taken of eyes by default
        imported, found = run_all(tmp_path, name=f"of-{name}", encoders=[given], query_encoders=[EYES], **roots)
        assert found == pytest.approx(expected) and len(found) == 16
        assert not (imported / "features/eyes").exists()
        ask = ("search", "--index", imported / "index/ncca", "--top", 1, "--image", photograph)
        if made_by:
            assert run_command(*ask)
        else:
            assert not (imported / "encoders").exists()
            with pytest.raises(UsageError, match="has no encoder given, whose features were imported"):
                run_command(*ask)
