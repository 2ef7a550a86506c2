"""Beyond one machine: jobs through a submit script, and how many jobs a large collection is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.plan.needs import NEEDS
from stages.cli import COMMANDS

ROOT = Path(__file__).parents[1]
ENCODER = {"name": "untrained", "architecture": "squeezenet1_1", "weights": "untrained", "resize": 64, "crop": 64}
SMALL = {
    "name": "small",
    "encoders": [ENCODER],
    "models": ["ncca"],
    "shard_size": 64,
    "demo": {"train": 70, "dev": 10, "test": 10, "weak": 0},
    "fit": {"dimensions": [8], "image_ridge": [1], "text_ridge": [1], "eigenvalue_power": [1]},
    "evaluate": {"bootstrap": 10, "splits": ["test"], "protocols": ["all-sentences"]},
    "index": {"splits": ["test"]},
}
SHARDS = 20
RULE = re.compile(r"^(?:rule|checkpoint) (\w+):.*?(?=^\S|\Z)", flags=re.M | re.S)


def snakemake(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]
    return result.stdout + result.stderr


def test_every_rule_says_what_it_needs_and_is_timed() -> None:
    text = (ROOT / "Snakefile").read_text()
    rules = {match[1]: match[0] for match in RULE.finditer(text) if "    shell:" in match[0]}
    assert len(rules) > 20
    for name, body in rules.items():
        assert name in NEEDS, f"put {name} into pipeline/plan/needs.py"
        assert "    resources:\n        **RESOURCES,\n" in body, name
        assert "    benchmark:\n" in body, name


def test_what_may_use_a_gpu_asks_for_one() -> None:
    text = (ROOT / "Snakefile").read_text()
    # These rules leave out the options, --through-index and perplexities, for which their commands use one.
    without = {"evaluate", "evaluate_boxes"}
    for match in RULE.finditer(text):
        if (command := re.search(r"{JOINTSPACE} ([\w-]+)", match[0])) and match[1] not in without:
            source = (ROOT / COMMANDS[command[1]].replace(".", "/")).with_suffix(".py").read_text()
            uses = bool(re.search(r"(settings|configured)\.device|read_(gpu|study|generator)\(", source))
            assert uses == (NEEDS[match[1]].gpu is not None), match[1]


def test_profiles_hold_options_of_snakemake() -> None:
    help_text = subprocess.run([sys.executable, "-m", "snakemake", "--help"], capture_output=True, text=True).stdout
    known = set(re.findall(r"--([a-z-]+)", help_text))
    profiles = sorted((ROOT / "profiles").glob("*/config.yaml"))
    assert {path.parent.name for path in profiles} >= {"local", "gpu", "slurm", "kubernetes"}
    for path in profiles:
        assert yaml.safe_load(path.read_text()).keys() <= known, path


def profile_of(name: str) -> dict:
    return yaml.safe_load((ROOT / f"profiles/{name}/config.yaml").read_text())


@pytest.mark.parametrize("name", sorted(path.parent.name for path in (ROOT / "profiles").glob("*/config.yaml")))
def test_gpus_are_counted_in_one_machine_and_not_in_a_cluster(name: str) -> None:
    """Where an executor submits jobs, a limit on GPUs is one of each submission, else of all jobs together."""
    profile = profile_of(name)
    limits = dict(limit.split("=") for limit in profile["resources"])
    scopes = dict(scope.split("=") for scope in profile.get("set-resource-scopes", ()))
    if "executor" in profile:
        assert limits["gpu"] == "1" and scopes == {"gpu": "local"}
        assert profile["executor"] == "slurm" or "{resources.gpu}" in profile["cluster-generic-submit-cmd"]
    else:
        assert "gpu" not in scopes and limits.get("gpu") == {"gpu": "1", "local": None}[name]


GPU_JOBS = """
from pathlib import Path
import time
rule all:
    input: expand("alone-{n}", n=range(4)), expand("grouped-{n}", n=range(3))
rule alone:
    output: "alone-{n}"
    resources: gpu=1
    run:
        Path(f"started-{wildcards.n}").touch()
        end = time.monotonic() + 120
        while len(list(Path().glob("started-*"))) < 4:
            assert time.monotonic() < end, "the others wait for this one"
            time.sleep(0.1)
        Path(output[0]).touch()
rule grouped:
    output: "grouped-{n}"
    resources: gpu=1
    group: "together"
    shell: "mkdir busy && sleep 0.3 && rmdir busy && touch {output}"
"""


def test_jobs_with_a_gpu_run_at_once_in_a_cluster(tmp_path: Path) -> None:
    """By the profile for SLURM, through another executor: four jobs that end only when all of them have started; and
    a group of three, which asks for one GPU and uses it in turn."""
    limit = re.search(r"^if workflow\.remote_exec:\n.+\n", (ROOT / "Snakefile").read_text(), flags=re.M)[0]
    (tmp_path / "Snakefile").write_text(limit + GPU_JOBS)
    profile = {name: profile_of("slurm")[name] for name in ("jobs", "cores", "resources", "set-resource-scopes")}
    submit = f"echo {{resources.gpu}} >> asked && {ROOT}/profiles/cluster/submit"
    profile |= {"executor": "cluster-generic", "cluster-generic-submit-cmd": submit}
    profile |= {"group-components": ["together=3"], "seconds-between-status-checks": 1, "latency-wait": 10}
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile/config.yaml").write_text(yaml.safe_dump(profile))
    snakemake(tmp_path, "all", "-s", "Snakefile", "--profile", "profile")
    assert (tmp_path / "asked").read_text().split() == ["1"] * 5


@pytest.mark.slow
def test_the_cluster_path_runs_end_to_end(tmp_path: Path) -> None:
    """Every job through profiles/cluster/submit, each in a process of its own that nothing but files ties to us."""
    tmp_path = tmp_path / "a b'c"
    tmp_path.mkdir()
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    submit = f"{ROOT}/profiles/cluster/submit {{threads}} {{resources.mem_mb}} {{resources.runtime}} {{resources.gpu}}"
    snakemake(
        tmp_path, "all", "--configfile", "small.yaml", "--profile", str(ROOT / "profiles/cluster"),
        "--cluster-generic-submit-cmd", submit, "--seconds-between-status-checks", "1",
    )  # fmt: skip
    results = tmp_path / "results/small"
    assert json.loads((results / "index/ncca/card.json").read_text())
    assert "<html" in (results / "report/index.html").read_text()
    logs = list((tmp_path / "cluster-logs").iterdir())
    # demo, ingest, plan, encoder, vocabulary, fit, index, report; each shard: features, moments; embed; evaluate
    assert len(logs) == 8 + 2 * 2 + 2, sorted(log.name for log in logs)


def test_a_million_images_are_a_few_hundred_submissions(tmp_path: Path) -> None:
    """Counted on a third of the shards, whose number each term but the last is proportional to."""
    config = yaml.safe_load((ROOT / "config/million.yaml").read_text())
    manifest = tmp_path / "results/million/manifest"
    (tmp_path / "million").mkdir()
    (tmp_path / "million/00000.tar").touch()
    (manifest / "shards").mkdir(parents=True)
    for name in ("rejects.jsonl", *(f"{table}.parquet" for table in ("images", "sentences", "documents", "boxes"))):
        (manifest / name).touch()
    for number in range(SHARDS):
        (manifest / f"shards/{number:05d}.json").touch()
    images = SHARDS * config["shard_size"]
    counts = {"images": {"kept": images}, "sentences": {"kept": images}}
    splits = {"train": images // 2 - 2000, "dev": 1000, "test": 1000, "weak": images // 2}
    (manifest / "manifest.json").write_text(json.dumps({"shards": SHARDS, "counts": counts, "splits": splits}))
    output = snakemake(
        tmp_path, "all", "-n", "--configfile", str(ROOT / "config/million.yaml"),
        "--profile", str(ROOT / "profiles/cluster"),
    )  # fmt: skip
    groups = re.findall(r"Group job (\w+)", output)
    alone = re.findall(r"^(?:rule|checkpoint) (\w+):", output, flags=re.M)
    assert {name: groups.count(name) for name in set(groups)} == {"shard": SHARDS, "embed": 3, "evaluate": 1}
    assert alone.count("extract") == SHARDS
    rest = len(alone) - SHARDS + 4
    assert rest < 20
    assert 2 * -(-1_000_000 // config["shard_size"]) + rest < 200


def test_a_kubernetes_job_asks_for_what_its_rule_says(tmp_path: Path) -> None:
    """Against a kubectl that keeps what it is given."""
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
