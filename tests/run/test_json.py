"""Commands that answer for programs: the same facts as JSON."""

import json
from pathlib import Path

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
