"""`run` and `migrate`: a whole run by Snakemake, with one line of progress, and what to do next at its end."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import click

from pipeline.compute import runtime
from pipeline.errors import JointspaceError, RejectLimitError, UsageError, meant
from pipeline.printable import counted
from pipeline.run import Run
from stages.commands import FILE, json_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from pydantic import JsonValue

JOBS = re.compile(r"(\w+) {2,}(\d+)$")
"""A line of Snakemake's table of jobs, of which the last is their total."""
DONE = re.compile(r"Finished jobid: \d+ \(Rule: (\w+)\)")
RULE = re.compile(r"(?:local)?rule (\w+):")
FAILED = re.compile(r"Error in rule (\w+)")
REFUSED = re.compile(r"^\w+(Exception|Error)\b", flags=re.M)
"""Where Snakemake begins to say why it runs nothing."""
LOCKED = re.compile(r"^LockException:", flags=re.M)
"""The line with which Snakemake says that another run has locked the folder."""
BAD_OPTION = re.compile(r"^\S+: error: (.+)$", flags=re.M)
"""The line with which Snakemake refuses an option, after its list of all options."""
MISSING_EXECUTOR = re.compile(r"--executor.*invalid choice: '(slurm|cluster-generic)'")
"""The executors of Snakemake that an extra of this distribution installs, which has the first word of their names."""
RUNS_NOTHING = re.compile(r"-[a-zA-Z]*n[a-zA-Z]*|--dry-?run|--unlock")
"""Options of Snakemake with which it makes nothing, also together with other short options (-np)."""
STATUS = re.compile(r"non-zero exit status (\d+)")
LOOK_SECONDS = 0.2
"""Between two looks at the log."""
PATIENCE_SECONDS = 60
"""How long Snakemake may take to end its jobs once it was told to."""


class _Dashed(click.Command):
    """A command of which everything that follows two dashes is `further`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:at])
        ctx.params["further"] += tuple(args[at + 1 :])
        return rest


@click.command("run", cls=_Dashed, context_settings={"ignore_unknown_options": True})
@click.argument("config_path", metavar="[CONFIG]", required=False, type=FILE)
@click.argument("further", nargs=-1, type=click.UNPROCESSED, metavar="[-- SNAKEMAKE OPTIONS...]")
@click.option("--cores", type=click.IntRange(min=1), help="Cores of this machine to use. [default: all]")
@json_option
def run(config_path: Path | None, further: tuple[str, ...], cores: int | None, as_json: bool) -> None:
    """Run everything that CONFIG asks for (by default, the demo); finished work is kept.

    Pass Snakemake options and targets after `--`, e.g. `-- --keep-going`; this also shows Snakemake's output.
    """
    if config_path is not None and str(config_path).startswith("-"):
        config_path, further = None, (str(config_path), *further)
    run_workflow(config_path, further, cores, as_json)


@click.command("migrate")
@click.argument("old")
@click.argument("new")
@click.argument("config_path", metavar="[CONFIG]", required=False, type=FILE)
@click.option(
    "--images", type=click.IntRange(min=50), default=1000, show_default=True, help="Photos that both encoders see."
)
@click.option("--cores", type=click.IntRange(min=1), help="Of this machine, for the run. [default: all]")
def migrate(old: str, new: str, config_path: Path | None, images: int, cores: int | None) -> None:
    """Run CONFIG with its encoder NEW at once, on features mapped from those of OLD.

    A sample of the photos is encoded to fit the map; answers that rest on mapped features say so (`mapped_from`). The
    next `jointspace run CONFIG` extracts the rest and remakes everything.
    """
    from pipeline.config import loading

    config = loading.load(config_path)
    inputs = {encoder.name: encoder.spec.reads for encoder in config.encoders}
    encoders = [name for name, reads in inputs.items() if reads == "pixels"]
    if new not in inputs:
        raise UsageError(
            f"the configuration has no encoder {new}; {meant(new, encoders)}add it to `encoders`, and to the models"
            " that are to use it"
        )
    if new not in encoders:
        raise UsageError(
            f"encoder {new} cannot encode a sample of the photos, because its features are imported or pooled from"
            f" regions. Make the features of all photos without `migrate`: {_run_command(config_path)}"
        )
    if old == new:
        raise UsageError(
            f"OLD and NEW are both {new}; name the encoder that the run has, then the one that replaces it"
        )
    opened = Run(Path(config.results_root) / config.name, config)
    if not opened.layout.features(old).part(0).exists():
        there = sorted(path.name for path in opened.layout.features(old).folder.parent.glob("*") if path.name != new)
        raise UsageError(
            f"{opened.root} has no features of {old}; {meant(old, there)}it has {', '.join(there) or 'none'}"
        )
    run_workflow(config_path, cores=cores, changes={"extract": {"mapped": {new: old}, "mapping_images": images}})


def _run_command(config_path: Path | None) -> str:
    """Return the command that runs a configuration; without one, the demo."""
    return shlex.join(["jointspace", "run", *([str(config_path)] if config_path else [])])


class RunFailure(JointspaceError):
    """A run that has failed, with the exit code of the stage that did."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run_workflow(
    config_path: Path | None,
    further: "Sequence[str]" = (),
    cores: int | None = None,
    as_json: bool = False,
    changes: "Mapping[str, JsonValue] | None" = None,
) -> None:
    """Run the workflow by the configuration in `config_path`, with `changes` laid over it, and print what it has made.
    Raises UsageError for what is not there, RunFailure where a job fails, and RejectLimitError where `ingest` has left
    warnings."""
    import yaml

    from pipeline.config import loading
    from pipeline.config.registry import allow, named_places
    from pipeline.run.reading.requirements import require_all
    from pipeline.run.reading.results import closing_lines, results_of, warnings_of
    from pipeline.storage.batch import publish_text
    from pipeline.storage.locks import hold
    from stages.catalogue import declared

    values = loading.merge(loading.read_mapping(config_path) if config_path else {}, changes or {})
    allow(named_places(values))
    chosen = loading.validate(values, config_path or loading.default_path())
    folder = Path(chosen.results_root) / chosen.name
    root = Path(chosen.data_root)
    if not (chosen.demo.generate or root.exists()):
        beside = (str(one) for one in root.parent.glob("*") if one.is_dir())
        raise UsageError(f"data_root {root} does not exist; {meant(str(root), beside)}correct it in {config_path}")
    require_all(Run(folder, chosen), declared())
    words = [sys.executable, "-m", "snakemake", "-s", str(find_snakefile()), "--cores", str(cores or runtime.threads())]
    log, changed = folder / "run.log", folder / "changes.yaml"
    with hold(log):
        files = [config_path] if config_path else []
        if changes:
            publish_text(changed, yaml.safe_dump(changes))
            files.append(changed)
        words += further  # before the files of the configuration, of which Snakemake takes any number
        words += ["--configfile", *map(str, files)] if files else []
        code = _watch(words, log, shown=bool(further))
    if code:
        raise _explain(log, code, _run_command(config_path))
    if as_json:
        click.echo(json.dumps(results_of(folder)))
    elif not further:
        click.echo("\n".join(closing_lines(folder)))
    if (warnings := warnings_of(folder)) and not any(map(RUNS_NOTHING.fullmatch, further)):
        raise RejectLimitError(f"the run is done with {counted(len(warnings), 'warning')}, first: {warnings[0]}")


def find_snakefile() -> Path:
    """The Snakefile of the checkout, or of the installed distribution."""
    from pipeline.config.loading import default_path

    return default_path().parents[1] / "Snakefile"


def _watch(words: list[str], log: Path, shown: bool) -> int:
    """Run a command whose output goes into `log`, and report its progress, or, if `shown`, its output; returns its exit
    code. It has a session of its own, so that it is told once to end when this process is."""

    def interrupt(number: int, frame: "FrameType | None") -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup has the latter ignored
                signal.signal(number, interrupt)
    with open(log, "wb") as output, closing(_Progress(log.parent / "benchmarks", shown)) as progress:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which may be ignored here
        )  # fmt: skip
        try:
            for line in _follow(log, process):
                if shown:
                    click.echo(line, nl=False, err=True)
                else:
                    progress.read(line)
        except BaseException:
            _end(process, signal.SIGINT)
            raise
        return process.wait()


class _Progress:
    """One line that says how much of the run is done and how long the rest will take: by the seconds that a job of each
    rule has taken before, as `benchmarks` has them, or by the number of jobs where a rule has none."""

    def __init__(self, benchmarks: Path, hidden: bool) -> None:
        from tqdm import tqdm

        form = "{desc}: {percentage:3.0f}%|{bar:30}|{postfix} [{elapsed}<{remaining}]"
        self._bar = tqdm(desc="starting", total=1, bar_format=form, disable=True if hidden else None)
        self._benchmarks, self._jobs, self._weights, self._ended = benchmarks, {}, {}, 0

    def read(self, line: str) -> None:
        """A line of Snakemake's output, or an empty one while there is none."""
        if found := RULE.match(line):
            self._bar.set_description_str(found[1].replace("_", "-"), refresh=False)
        elif found := DONE.match(line):
            self._ended += 1
            self._bar.set_postfix_str(f"{self._ended} of {sum(self._jobs.values())} jobs", refresh=False)
            self._bar.update(self._weights.get(found[1], 0))
        elif not self._weights and (found := JOBS.match(line)):
            if found[1] not in ("all", "total"):
                self._jobs[found[1]] = int(found[2])
            elif found[1] == "total":
                self._weights = self._weigh()
                self._bar.total = sum(self._weights[rule] * count for rule, count in self._jobs.items())
        self._bar.refresh()

    def _weigh(self) -> dict[str, float]:
        from pipeline.storage.records import read_benchmarks

        recorded = read_benchmarks(self._benchmarks)
        before = {rule: median(job.seconds for job in jobs) for rule, jobs in recorded.items()}
        return before if self._jobs.keys() <= before.keys() else dict.fromkeys(self._jobs, 1.0)

    def close(self) -> None:
        self._bar.close()


def _follow(log: Path, process: "subprocess.Popen") -> "Iterator[str]":
    """The lines of `log` as they are written, until the process has ended; an empty one whenever there is none."""
    with open(log, encoding="utf-8", errors="replace") as file:
        while True:
            ended = process.poll() is not None
            yield from iter(file.readline, "")
            if ended:
                return
            yield ""
            time.sleep(LOOK_SECONDS)


def _end(process: "subprocess.Popen", number: int) -> None:
    """Tell a process and its children to end, and see that they do."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
        try:
            process.wait(PATIENCE_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _explain(log: Path, code: int, again: str) -> RunFailure:
    """What went wrong, in the words of the stage that failed, or of Snakemake."""
    text = log.read_text(encoding="utf-8", errors="replace")
    stage, said = FAILED.search(text), re.findall(r"^jointspace: (.+)$", text, flags=re.M)
    if LOCKED.search(text):
        return RunFailure(
            "this folder is locked by another run, or by one that was killed. If no other run is working here, remove"
            f" the lock: {again} -- --unlock",
            code,
        )
    if refused := BAD_OPTION.search(text) if stage is None else None:
        executor = MISSING_EXECUTOR.search(refused[1])
        remedy = f" Install it: pip install 'jointspace[{executor[1].partition('-')[0]}]'." if executor else ""
        return RunFailure(f"Snakemake does not accept the options after --: {refused[1]}.{remedy}", code)
    if stage is None:
        at = max((match.start() for match in REFUSED.finditer(text)), default=text.rstrip().rfind("\n") + 1)
        reason = " ".join(text[at:].split()) or "no output"
        return RunFailure(f"Snakemake ended with exit code {code} ({reason}); see {log}", code)
    status = STATUS.findall(text)
    reason = said[-1] if said else f"it ended without a message; resume with: {again}"
    return RunFailure(f"{stage[1].replace('_', '-')}: {reason} (details: {log})", int(status[-1]) if status else code)
