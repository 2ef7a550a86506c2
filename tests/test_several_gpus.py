"""Tests which show that the jobs on a machine with several GPUs use all of its cores, and use no core twice."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from workflow import RESULTS, TINY, run_as_printed

from pipeline.compute import device
from pipeline.config.loading import load
from pipeline.config.names import Config
from pipeline.errors import UsageError
from pipeline.run import run as opened_run
from pipeline.run import runner
from pipeline.run.run import Run
from stages.catalogue import declared

STAGES = declared()


def decoders_of_processes(
    monkeypatch: pytest.MonkeyPatch, cores: int, gpus: int, shards: int = 100, decode_workers: int | None = None
) -> list[int]:
    """Return the number of decoders of each process that makes `shards` shards of `extract`, on a machine with `cores`
    cores and `gpus` GPUs. `decode_workers` is the value of the key `extract.decode_workers`.
    """
    settings = load().model_dump()
    settings["extract"]["decode_workers"] = decode_workers
    run = Run(Path("nowhere"), Config(**settings))
    monkeypatch.setenv("OMP_NUM_THREADS", str(cores))
    monkeypatch.setattr(opened_run, "find_gpu", lambda name: torch.device("cuda") if gpus else None)
    monkeypatch.setattr(runner, "visible_gpus", lambda: [f"GPU-{number}" for number in range(gpus)])
    environments = runner._environments(run, STAGES["extract"], shards)
    if len(environments) < 2:
        return [run.decoders]
    assert [each.get(device.VISIBLE_DEVICES) for each in environments] == [f"GPU-{n}" for n in range(len(environments))]
    assert sum(int(each["OMP_NUM_THREADS"]) for each in environments) <= max(cores, len(environments))
    counts = []
    for each in environments:
        with monkeypatch.context() as process:
            for name, value in each.items():
                process.setenv(name, value)
            counts.append(run.decoders)
    return counts


@pytest.mark.parametrize(
    ("cores", "gpus", "decoders"),
    [
        (16, 1, [14]), (16, 2, [7, 7]), (16, 4, [4, 4, 3, 3]), (16, 8, [2, 2, 2, 2, 2, 2, 1, 1]),
        (32, 1, [30]), (32, 2, [15, 15]), (32, 4, [8, 8, 7, 7]), (32, 8, [4, 4, 4, 4, 4, 4, 3, 3]),
        (64, 1, [62]), (64, 2, [31, 31]), (64, 4, [16, 16, 15, 15]), (64, 8, [8, 8, 8, 8, 8, 8, 7, 7]),
    ],
)  # fmt: skip
def test_the_decoders_of_all_gpus_use_all_cores_but_two(
    monkeypatch: pytest.MonkeyPatch, cores: int, gpus: int, decoders: list[int]
) -> None:
    found = decoders_of_processes(monkeypatch, cores, gpus)
    assert found == decoders and sum(found) == cores - 2


def test_each_process_has_a_decoder_and_few_shards_need_few_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoders_of_processes(monkeypatch, cores=4, gpus=8) == [1] * 8
    assert decoders_of_processes(monkeypatch, cores=16, gpus=8, shards=2) == [7, 7]
    assert decoders_of_processes(monkeypatch, cores=16, gpus=8, shards=1) == [14]
    assert decoders_of_processes(monkeypatch, cores=16, gpus=4, decode_workers=6) == [2, 2, 1, 1]
    assert decoders_of_processes(monkeypatch, cores=16, gpus=4, decode_workers=0) == [0] * 4
    assert decoders_of_processes(monkeypatch, cores=16, gpus=0) == [2]


def test_a_number_of_decoders_in_the_environment_is_shared_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOINTSPACE_DECODERS", "6")
    assert decoders_of_processes(monkeypatch, cores=16, gpus=4) == [2, 2, 1, 1]
    assert decoders_of_processes(monkeypatch, cores=16, gpus=1) == [6]
    for value in ("-1", "many"):
        monkeypatch.setenv("JOINTSPACE_DECODERS", value)
        with pytest.raises(UsageError, match="JOINTSPACE_DECODERS must be a number of processes"):
            decoders_of_processes(monkeypatch, cores=16, gpus=4)


@pytest.mark.parametrize(
    ("cores", "gpus", "options", "threads", "requested"),
    [
        (64, 4, ["gpu=4"], 64, 4), (64, 4, ["gpu=2"], 64, 2), (16, 4, [], 16, 4), (64, 1, ["gpu=1"], 64, 1),
        (64, 0, [], 16, 1), (64, 0, ["gpu=1"], 16, 1),
    ],
)  # fmt: skip
def test_one_job_of_extract_uses_all_gpus_and_cores_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, gpus: int, options: list[str], threads: int,
    requested: int,
) -> None:  # fmt: skip
    """Snakemake plans `threads` threads and `requested` GPUs for the job of `extract`, if it is called with `options`
    as its resources. Without a GPU, these are the numbers that the stage declares.
    """
    devices = tmp_path / "dev"
    devices.mkdir()
    for number in range(gpus):
        (devices / f"nvidia{number}").touch()
    monkeypatch.setattr(device, "DEVICE_FOLDER", str(devices))
    monkeypatch.delenv(device.VISIBLE_DEVICES, raising=False)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    limits = ["--resources", *options] if options else []
    planned = run_as_printed(
        tmp_path, "all", "-n", "--configfile", "tiny.yaml", "--cores", str(cores), *limits
    ).stdout.split("\n\n")
    (extract,) = (job for job in planned if re.search("^rule extract:", job, re.MULTILINE))
    assert f"threads: {threads}\n" in extract and f"gpu={requested}" in extract
    (fit, *_) = (job for job in planned if re.search("^rule fit:", job, re.MULTILINE))
    assert f"threads: {STAGES['fit'].threads}\n" in fit and "gpu=1" in fit


def test_a_queue_gives_one_gpu_to_each_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine seems to have four GPUs, and the job of `extract` gets one GPU. The queue is a command that writes
    the threads and GPUs of the job into a file, and then fails.
    """
    monkeypatch.setattr(device, "may_have_gpu", lambda: True)
    monkeypatch.setenv(device.VISIBLE_DEVICES, "0,1,2,3")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    output = f"{RESULTS}/features/squeezenet-untrained/part-00000.json"
    queue = [output, "--configfile", "tiny.yaml", "--cores", "64", "--jobs", "1", "--rerun-triggers", "mtime"]
    planned = run_as_printed(tmp_path, *queue, "-n").stdout
    for inputs in re.findall(r"^    input: (.*)$", planned, re.MULTILINE):
        for path in inputs.split(", "):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
    submit = "echo {threads} {resources.gpu} > submitted; false"
    queue += ["--executor", "cluster-generic", "--cluster-generic-submit-cmd", submit]
    result = run_as_printed(tmp_path, *queue, check=False)
    assert (tmp_path / "submitted").read_text().split() == ["16", "1"], result.stdout + result.stderr
