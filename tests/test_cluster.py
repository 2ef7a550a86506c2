"""Tests of jobs on other machines: through a submit script, and as jobs of Kubernetes."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from workflow import ROOT, TINY, run_as_printed

SMALL = {
    **{key: TINY[key] for key in ("encoders", "fit")},
    "name": "small", "models": ["ncca"], "shard_size": 64, "demo": {"train": 70, "dev": 10, "test": 10, "weak": 0},
    "evaluate": {"bootstrap": 10, "splits": ["test"], "protocols": ["all-sentences"]}, "index": {"splits": ["test"]},
}  # fmt: skip


@pytest.mark.slow
def test_the_cluster_path_runs_end_to_end(tmp_path: Path) -> None:
    """Every job is submitted with profiles/cluster/submit, and runs in a separate process. The jobs exchange nothing
    but files.
    """
    tmp_path = tmp_path / "a b'c"
    tmp_path.mkdir()
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    submit = f"{ROOT}/profiles/cluster/submit {{threads}} {{resources.mem_mb}} {{resources.runtime}} {{resources.gpu}}"
    run_as_printed(
        tmp_path, "all", "--configfile", "small.yaml", "--profile", str(ROOT / "profiles/cluster"),
        "--cluster-generic-submit-cmd", submit, "--seconds-between-status-checks", "1",
    )  # fmt: skip
    results = tmp_path / "results/small"
    assert json.loads((results / "index/ncca/card.json").read_text())
    assert "<html" in (results / "report/index.html").read_text()
    logs = list((tmp_path / "cluster-logs").iterdir())
    # Seven jobs are demo, ingest, encoder, vocabulary, fit, index and report. Each of two shards has two jobs, for
    # features and moments. The last two jobs are embed and evaluate.
    assert len(logs) == 7 + 2 * 2 + 2, sorted(log.name for log in logs)


def test_a_kubernetes_job_requests_the_resources_of_its_rule(tmp_path: Path) -> None:
    """The scripts of profiles/kubernetes call another program in place of kubectl. This program stores the job that is
    submitted, and reports every job as failed.
    """
    (tmp_path / "kubectl").write_text('#!/bin/sh\nif [ "$1" = create ]; then cat > made.yaml; else echo Failed; fi\n')
    (tmp_path / "kubectl").chmod(0o755)
    (tmp_path / "job.sh").touch()
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment |= {f"JOINTSPACE_{name}": name.lower() for name in ("IMAGE", "CLAIM", "MOUNT")}

    def run(name: str, *arguments: str) -> str:
        command = [str(ROOT / "profiles/kubernetes" / name), *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    name = run("submit", "8", "32000", "60", "1", "job.sh").strip()
    made = yaml.safe_load((tmp_path / "made.yaml").read_text())
    assert made["metadata"]["name"] == name and made["spec"]["activeDeadlineSeconds"] == 3600
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": 8, "memory": "32000M", "nvidia.com/gpu": 1}
    assert container["command"] == ["bash", str(tmp_path / "job.sh")]
    assert run("status", name).strip() == "failed"
