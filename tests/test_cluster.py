"""Beyond one machine: jobs through a submit script, and how many jobs a large collection is."""

import inspect
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import warm
import yaml
from warm import ROOT

from pipeline.config import default_path, merge, read_mapping, validate
from pipeline.storage.atomic import to_json
from pipeline.storage.manifest import FINGERPRINTS, table_file
from stages.catalogue import declared

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


def snakemake(folder: Path, *arguments: str) -> str:
    result = warm.snakemake(folder, "-s", ROOT / "Snakefile", *arguments)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-5000:]
    return result.stdout + result.stderr


def run_by(folder: Path, profile: dict, rules: str) -> None:
    """Run a workflow of its own in `folder` by a profile of Snakemake."""
    (folder / "Snakefile").write_text(rules)
    (folder / "profile").mkdir()
    (folder / "profile/config.yaml").write_text(yaml.safe_dump(profile))
    snakemake(folder, "all", "-s", "Snakefile", "--profile", "profile")


def test_what_may_use_a_gpu_asks_for_one() -> None:
    without = {"evaluate"}  # Its rule leaves out --through-index, for which the command uses one.
    for name, stage in ((name, stage) for name, stage in declared().items() if name not in without):
        source = Path(inspect.getfile(stage.function)).read_text()
        words = r"(settings|config|run)\.device|run\.gpu|(read_generator|restore_model|read_study)"
        uses = bool(re.search(words, source))
        assert uses == stage.gpu, name


def test_profiles_hold_options_of_snakemake() -> None:
    help_text = subprocess.run([sys.executable, "-m", "snakemake", "--help"], capture_output=True, text=True).stdout
    known = set(re.findall(r"--([a-z-]+)", help_text))
    profiles = sorted((ROOT / "profiles").glob("*/config.yaml"))
    assert {path.parent.name for path in profiles} >= {"local", "gpu", "slurm", "kubernetes"}
    for path in profiles:
        assert yaml.safe_load(path.read_text()).keys() <= known, path


def profile_of(name: str) -> dict:
    return yaml.safe_load((ROOT / f"profiles/{name}/config.yaml").read_text())


@pytest.mark.parametrize(
    "name", sorted({path.parent.name for path in (ROOT / "profiles").glob("*/config.yaml")} - {"default"})
)
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


def dask_profile(name: str) -> dict:
    """The section `cluster.options` of a profile, which the configuration accepts."""
    values = merge(read_mapping(default_path()), read_mapping(ROOT / f"profiles/dask/{name}.yaml"))
    assert validate(values).scheduler == name
    return values["cluster"]["options"]


def test_slurm_accepts_the_profile_for_dask() -> None:
    jobqueue = pytest.importorskip("dask_jobqueue")
    with jobqueue.SLURMCluster(**dask_profile("slurm"), scheduler_options={"dashboard_address": None}) as cluster:
        script = cluster.job_script()
    assert {"#SBATCH -p batch", "#SBATCH --mem=4G", "#SBATCH -t 04:00:00"} <= set(script.splitlines())
    assert "--nthreads 1 --memory-limit 4.00GiB" in script and ". /shared/venv/bin/activate" in script


def test_the_operator_of_dask_accepts_the_profile_for_kubernetes() -> None:
    """By the schema that the operator gives Kubernetes."""
    package = pytest.importorskip("dask_kubernetes")
    charts = Path(package.__file__).parent / "operator/deployment/helm/dask-kubernetes-operator/crds"
    crd = yaml.safe_load((charts / "daskcluster.yaml").read_text())
    schema = next(one for one in crd["spec"]["versions"] if one["name"] == "v1")["schema"]["openAPIV3Schema"]
    spec = yaml.safe_load((ROOT / dask_profile("kubernetes")["custom_cluster_spec"]).read_text())
    assert (spec["kind"], spec["apiVersion"]) == (crd["spec"]["names"]["kind"], f"{crd['spec']['group']}/v1")
    validator = pytest.importorskip("jsonschema").Draft7Validator(schema)
    assert not list(validator.iter_errors(spec))
    spec["spec"]["worker"]["replicas"] = "many"
    assert list(validator.iter_errors(spec))


GPU_JOBS = """
from pathlib import Path
import time
rule all:
    input: expand("alone-{n}", n=range(4))
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
"""


def test_jobs_with_a_gpu_run_at_once_in_a_cluster(tmp_path: Path) -> None:
    """By the profile for SLURM, through another executor: four jobs that end only when all of them have started."""
    profile = {name: profile_of("slurm")[name] for name in ("jobs", "cores", "resources", "set-resource-scopes")}
    submit = f"echo {{resources.gpu}} >> asked && {ROOT}/profiles/cluster/submit"
    profile |= {"executor": "cluster-generic", "cluster-generic-submit-cmd": submit}
    profile |= {"seconds-between-status-checks": 1, "latency-wait": 10}
    run_by(tmp_path, profile, GPU_JOBS)
    assert (tmp_path / "asked").read_text().split() == ["1"] * 4


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
    # demo, ingest, encoder, vocabulary, fit, index, report; each shard: features, moments; embed; evaluate
    assert len(logs) == 7 + 2 * 2 + 2, sorted(log.name for log in logs)


def fake_manifest(run: Path, shards: int, shard_size: int) -> None:
    """What Snakemake reads of a manifest of that many shards, half of their images with sentences."""
    manifest, images = run / "manifest", shards * shard_size
    (manifest / "shards").mkdir(parents=True)
    (manifest / "rejects.jsonl").touch()
    record = dict.fromkeys((*FINGERPRINTS, "content"), "0" * 64)
    for number in range(shards):
        ends = [number * shard_size, (number + 1) * shard_size]
        rows = {"images": ends, "sentences": [end // 2 for end in ends], "documents": [0, 0], "boxes": [0, 0]}
        files = {table_file(number, name): {"bytes": 1, "sha256": "0" * 64} for name in ("images", "sentences")}
        value = {"shard": number, **record, "rows": rows, "files": files}
        (manifest / f"shards/{number:05d}.json").write_bytes(to_json(value))
    splits = {"train": images // 2 - 2000, "dev": 1000, "test": 1000, "weak": images // 2}
    kept = {"given": images, "kept": images, "rejected": 0, "duplicate": 0}
    about = {"fingerprint": "1", "version": 3, "root": "/", "shard_size": shard_size, "shards": shards, "rejects": "0"}
    about["contents"] = ["0" * 64] * shards
    about |= {"counts": {"images": kept, "sentences": kept}, "splits": splits}
    (manifest / "manifest.json").write_bytes(to_json(about))


def dry_run(folder: Path, shards: int) -> Counter[str]:
    """The jobs of `config/million.yaml`, by rule, for a faked manifest of that many shards."""
    config = yaml.safe_load((ROOT / "config/million.yaml").read_text())
    (folder / "million").mkdir(parents=True)
    (folder / "million/00000.tar").touch()
    fake_manifest(folder / "results/million", shards, config["shard_size"])
    output = snakemake(
        folder, "all", "-n", "--configfile", str(ROOT / "config/million.yaml"),
        "--profile", str(ROOT / "profiles/cluster"),
    )  # fmt: skip
    return Counter(re.findall(r"^(?:rule|checkpoint) (\w+):", output, flags=re.M))


def test_jobs_do_not_grow_with_the_shards(tmp_path: Path) -> None:
    """A million images, and 164 millions."""
    few, many = dry_run(tmp_path / "few", 62), dry_run(tmp_path / "many", 10_000)
    assert few["extract"] == 16 and many["extract"] == 64 and few.keys() == many.keys()
    assert few.total() < 200 and many.total() < 600


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
