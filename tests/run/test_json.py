"""Commands that answer for programs: the same facts as JSON."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_up import make_run, make_stage

from pipeline.storage.verify import examine
from stages.cli import cli


def test_verify_tells_what_is_wrong(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    make_stage("build_index", run, "ncca")
    for damaged in (False, True):
        if damaged:
            (run / "models" / "ncca" / "model.safetensors").write_bytes(b"cut")
        result = CliRunner().invoke(cli.get_command(None, "verify"), [str(run), "--json"])
        value, expected = json.loads(result.stdout.splitlines()[0]), examine(run)
        assert (result.exit_code != 0) == damaged and value["checked"] == expected.checked
        assert [fault["path"] for fault in value["faults"]] == [str(fault.path) for fault in expected.faults]
        assert any(path.endswith("model.safetensors") for path in [one["path"] for one in value["faults"]]) == damaged


def test_doctor_tells_each_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.plan.machine import Finding

    found = [Finding("torch", "2.4"), Finding("free disk", "1 MB", "MISS", "make room")]
    monkeypatch.setattr("pipeline.plan.machine.examine", lambda folder: found)
    result = CliRunner().invoke(cli.get_command(None, "doctor"), ["--folder", str(tmp_path), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout) == [
        {"what": "torch", "found": "2.4", "mark": "ok", "remedy": None},
        {"what": "free disk", "found": "1 MB", "mark": "MISS", "remedy": "make room"},
    ]
