"""Tests which show that `plan` estimates a run from measurements on this machine, and that `doctor` inspects the
machine.
"""

import json
from functools import cache
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from synthetic_colours import draw
from synthetic_run import ingest

from pipeline.run import machine
from stages.operations.plan import doctor
from stages.operations.plan import plan as command


def test_plan_estimates_the_hours_and_bytes_of_a_collection_that_does_not_exist(tmp_path: Path) -> None:
    values = {
        "name": "planned", "results_root": str(tmp_path), "demo": {"generate": False}, "models": ["ncca"],
        "encoders": [
            {"name": "net", "architecture": "squeezenet1_1", "weights": "untrained", "resize": 64, "crop": 64}
        ],
        "text": {"size": 300}, "fit": {"dimensions": [64]}, "shard_size": 1000,
        "extract": {"decode_workers": 0, "storage": "float16"},
    }  # fmt: skip
    path = tmp_path / "my plan.yaml"
    path.write_text(yaml.safe_dump(values))

    def planned(*arguments: str) -> dict:
        result = CliRunner().invoke(command, [str(path), "--sample", "8", "--json", *arguments])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    plan = planned("--photos", "1e6", "--captions-per-photo", "2")
    speed = plan["speeds"]["net"]
    assert speed["dim"] == 512 and speed["images_per_second"] > 0
    assert plan["hours"]["net"] == pytest.approx(1e6 / speed["images_per_second"] / 3600)
    width = 512 + 300
    chunks = 8
    assert plan["disk"]["features"] == 2 * 1_000_000 * 512
    assert plan["disk"]["embeddings"] == plan["disk"]["indexes"] == 4 * 64 * 3_000_000
    assert plan["disk"]["moments"] == 2 * width**2 * (chunks + 1)
    assert plan["memory"]["build-index"] > 3 * 4 * 64 * 3_000_000 and plan["not_measured"] == []
    twice = planned("--photos", "2e6", "--captions-per-photo", "2")
    assert twice["disk"]["features"] == 2 * plan["disk"]["features"] and twice["memory"]["fit"] == plan["memory"]["fit"]
    path.write_text(yaml.safe_dump({**values, "data_root": str(tmp_path / "photos")}))
    missing = CliRunner().invoke(command, [str(path)])
    assert missing.exit_code and f"jointspace plan '{path}' --photos 1000" in str(missing.exception)
    names = draw(tmp_path / "photos", 8, 0)
    (tmp_path / "photos/captions.tsv").write_text("".join(f"{name}\t0\ta picture\n" for name in names[:4]))
    (tmp_path / "photos/broken.png").write_text("not a photo")
    counted = CliRunner().invoke(command, [str(path), "--sample", "16"])
    assert counted.exit_code == 0 and "photos per second (the collection's), 512 dimensions" in counted.stdout
    assert planned()["disk"]["embeddings"] == 4 * 64 * (9 + 4)
    (tmp_path / "photos/broken.png").unlink()
    ingest(tmp_path / "planned", tmp_path / "photos", values)
    assert planned()["speeds"]["net"]["dim"] == 512


@pytest.mark.parametrize("decoded", [True, False])
def test_doctor_says_that_avif_needs_pillow_and_no_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: bool
) -> None:
    assert "AVIF" not in machine.EXTRAS["heif"][1]
    monkeypatch.setattr("PIL.features.check", lambda name: decoded and name == "avif")
    remedies = [finding.remedy for finding in machine.examine(tmp_path) if finding.what == "AVIF photos"]
    assert remedies == ([] if decoded else ["pip install 'Pillow>=11.3'"])


def test_doctor_reports_the_machine_and_missing_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The function reads the lists of all installed distributions, so its result is cached for this test.
    distributions = cache(machine.metadata.packages_distributions)
    monkeypatch.setattr(machine.metadata, "packages_distributions", distributions)
    result = CliRunner().invoke(doctor, ["--disk", str(tmp_path / "not/yet")])
    for word in ("CPU", "BLAS", "torch", "faiss", "memory", "disk", "[cluster]"):
        assert word in result.output
    monkeypatch.setattr(machine, "REQUIRED_LIBRARIES", ("numpy", "no-such-thing"))
    monkeypatch.setattr(machine, "EXTRAS", {"extra": ("no-such-extra", "a purpose")})
    missing = {finding.what: finding for finding in machine.examine(tmp_path)}
    assert missing["libraries"].mark == "MISS" and missing["libraries"].remedy == "pip install no-such-thing"
    assert missing["[extra]"].remedy.startswith("pip install 'jointspace[extra]'")
    assert CliRunner().invoke(doctor, ["--disk", str(tmp_path)]).exit_code == 1
