"""`run`, `demo` and `migrate`: run the whole workflow with Snakemake, show its progress, and print its results."""

import json
import logging
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
from pipeline.errors import JointspaceError, RejectLimitError, UsageError, did_you_mean, similar_name
from pipeline.printable import counted
from pipeline.run import Run
from stages.commands import CONFIG, FOLDER, PATH, Command, cores_option, json_option, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from pydantic import JsonValue

log = logging.getLogger(__name__)
JOBS = re.compile(r"(\w+) {2,}(\d+)$")
"""Pattern of a line in Snakemake's table of jobs: the name of a rule and the number of its jobs. The last line has the
name `total`."""
DONE = re.compile(r"Finished jobid: \d+ \(Rule: (\w+)\)")
"""Pattern of the line that Snakemake writes when a job of a rule has finished."""
RULE = re.compile(r"(?:local)?rule (\w+):")
"""Pattern of the beginning of the line that Snakemake writes when a job of a rule starts."""
FAILED = re.compile(r"Error in rule (\w+)")
"""Pattern of the words that Snakemake writes when a job of a rule has failed."""
REFUSED = re.compile(r"^\w+(Exception|Error)\b", flags=re.M)
"""Pattern of the first word of the message with which Snakemake ends before it has started a job."""
LOCKED = re.compile(r"^LockException:", flags=re.M)
"""Pattern of the first word of Snakemake's message when another run has locked the folder."""
BAD_OPTION = re.compile(r"^\S+: error: (.+)$", flags=re.M)
"""Pattern of the line in which Snakemake rejects an option, after its list of all options."""
MISSING_EXECUTOR = re.compile(r"--executor.*invalid choice: '(slurm|cluster-generic)'")
"""Pattern of Snakemake's message about a rejected option --executor. Extras of jointspace install the executors that
the pattern matches."""
RUNS_NOTHING = re.compile(r"-[a-zA-Z]*n[a-zA-Z]*|--dry-?run|--unlock")
"""Pattern of the options with which Snakemake runs no job, alone or combined with other short options (-np)."""
STATUS = re.compile(r"non-zero exit status (\d+)")
"""Pattern of the part of Snakemake's message that has the exit code of a failed job."""
POLL_SECONDS = 0.2
"""Number of seconds between two reads of the file with Snakemake's output."""
SHUTDOWN_SECONDS = 60
"""Number of seconds in which Snakemake must end after it was interrupted. After this time, Snakemake and its jobs are
killed."""


class _WorkflowCommand(Command):
    """A command that passes the arguments after `--`, which are for Snakemake, to its parameter `further`. Before `--`,
    only the arguments and options of the command itself are accepted."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        words = " ".join(["jointspace", str(self.name), *(["CONFIG"] if self.name == "run" else [])])
        after = f"Options and targets of Snakemake follow after `--`, as in: {words} -- --keep-going"
        ctx.allow_extra_args = True
        try:
            extra = super().parse_args(ctx, args[:at])
        except click.NoSuchOption as error:
            own = {name.strip("-"): name for option in self.get_params(ctx) for name in option.opts}
            nearest = similar_name(error.option_name.strip("-"), own)
            question = f"Did you mean {own[nearest]}? " if nearest else ""
            raise UsageError(
                f"`jointspace {self.name}` has no option {error.option_name}. {question}{after}"
            ) from error
        if extra:
            raise UsageError(f"`jointspace {self.name}` does not accept the argument {extra[0]}. {after}")
        ctx.params["further"] = tuple(args[at + 1 :])
        return extra

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- SNAKEMAKE OPTIONS...]"]


@click.command("demo", cls=_WorkflowCommand)
@cores_option
@json_option
def demo(further: tuple[str, ...], cores: int | None, as_json: bool) -> None:
    """Draw the demo collection, train on it and index it.

    The results are in results/demo. Finished work is kept. Options and targets of Snakemake follow after `--`, as in
    `run`.
    """
    run_workflow(None, further, cores, as_json)


@click.command("run", cls=_WorkflowCommand)
@click.argument("config_path", metavar="CONFIG", required=False, type=CONFIG)
@cores_option
@json_option
def run(config_path: Path | None, further: tuple[str, ...], cores: int | None, as_json: bool) -> None:
    """Train, evaluate and index as a configuration asks.

    CONFIG is a YAML file such as `init` writes. Finished work is kept. Options and targets of Snakemake follow after
    `--`, e.g. `-- --keep-going`. With them, the command shows the output of Snakemake.
    """
    if config_path is None:
        found = sorted(Path().glob("*.yaml"))
        if found:
            listed = " or ".join(shlex.join(["jointspace", "run", str(path)]) for path in found)
            raise UsageError(f"Give a configuration: {listed}. For the demo, run: jointspace demo")
        log.warning("`jointspace run` without a configuration is called `jointspace demo` now. Use the new name.")
    run_workflow(config_path, further, cores, as_json)


@click.command("migrate", cls=Command, former={"--images": "--sample"})
@click.argument("old")
@click.argument("new")
@click.argument("config_path", metavar="[CONFIG]", required=False, type=CONFIG)
@click.option(
    "--sample", "images", type=click.IntRange(min=50), metavar="N", default=1000, show_default=True,
    help="For a run: number of photos to encode with both encoders.",
)  # fmt: skip
@cores_option
@click.option("--texts", type=PATH, metavar="FILE", help="For files: vectors of captions by the new encoder.")
@click.option("-o", "--output", type=FOLDER, metavar="FOLDER", help="For files: new folder. [default: OLD-migrated]")
def migrate(
    old: str, new: str, config_path: Path | None, images: int, cores: int | None, texts: Path | None,
    output: Path | None,
) -> None:  # fmt: skip
    """Switch a run, or files of vectors, to a new encoder.

    With files: OLD has vectors of the old encoder (.npy, Parquet and other formats, or an index), and NEW has vectors
    of some of the same photos by the new encoder, paired by names or by order. The command prints how much recall is
    kept. It writes a vector in the new space for each vector of OLD: the vector of NEW, or else the mapped vector. It
    also writes the map with which new queries search the old vectors.

    With a run: OLD is the image encoder of the finished run, and NEW is its replacement in CONFIG. The command encodes
    a sample of the photos, fits a map from the features of OLD to the features of NEW, maps the features of the other
    photos, and completes the run with these features. Results that use mapped features have the field `mapped_from`.
    The next `jointspace run CONFIG` encodes the other photos and rebuilds the models and indexes.
    """
    from pipeline.config import loading
    from pipeline.storage.locks import hold

    if not config_path and Path(old).exists() and Path(new).exists():
        output = output or Path(f"{Path(old).stem}-migrated")
        with hold(output):
            _migrate_files(Path(old), Path(new), texts, output)
        return
    missing = [name for name in (old, new) if Path(name).suffix and not Path(name).exists()]
    if missing and not config_path:  # With CONFIG, OLD and NEW name encoders, and may have a dot.
        raise UsageError(
            f"The file {missing[0]} does not exist. Correct the path, or give the names of two encoders and the"
            " configuration of their run: jointspace migrate OLD NEW CONFIG"
        )
    if texts or output:
        raise UsageError(
            "--texts and --output are only for files of vectors. To migrate a run, leave out both options."
        )
    config = loading.load(config_path)
    inputs = {encoder.name: encoder.spec.reads for encoder in config.encoders}
    encoders = [name for name, reads in inputs.items() if reads == "pixels"]
    if new not in inputs:
        raise UsageError(
            f"The configuration has no encoder {new}. {did_you_mean(new, encoders)}Add this encoder to the key"
            " `encoders` and to the models that will use it."
        )
    if new not in encoders:
        raise UsageError(
            f"The encoder {new} cannot encode a sample of the photos, because its features are precomputed or pooled"
            f" from regions. Run without `migrate`: {_run_command(config_path)}"
        )
    if old == new:
        raise UsageError(
            f"OLD and NEW are both {new}. Give the encoder of the finished run, and then the encoder that replaces it."
        )
    opened = Run(Path(config.results_root) / config.name, config)
    if not opened.layout.features(old).part_record(0).exists():
        there = sorted(path.name for path in opened.layout.features(old).folder.parent.glob("*") if path.name != new)
        raise UsageError(
            f"{opened.root} has no features of the encoder {old}. {did_you_mean(old, there)}The run has features of:"
            f" {', '.join(there) or 'no encoder'}."
        )
    run_workflow(config_path, cores=cores, changes={"extract": {"mapped": {new: old}, "mapping_images": images}})


def _migrate_files(old: Path, new: Path, texts: Path | None, output: Path) -> None:
    """Map the vectors in the file `old` to the space of the vectors in the file `new`, print how much recall is kept,
    and write the results to the new folder `output`.

    `texts` is a file of caption vectors by the new encoder, or None. Raises UsageError if `output` exists.
    """
    from pipeline.run.reading.migration import MigrationTask

    if os.path.lexists(output):
        raise UsageError(f"{output} already exists. Name a new folder with --output.")
    task = MigrationTask.open(old, new, texts)
    migration = task.fit(seed=0)
    measure = "recall@10 of captions" if migration.measured_with == "captions" else "10 nearest neighbours"
    say(f"Kept share of the {measure}, by cross-validation on {counted(migration.rows, 'row')} with both vectors:")
    say(f"  {migration.kept['gallery']:6.1%}  new queries, old vectors mapped to the new space")
    say(f"  {migration.kept['queries']:6.1%}  new queries mapped to the old space, old vectors unchanged")
    task.write(migration, output)
    mapped = f"images.npy ({counted(len(task.old), 'vector')} in the new space)"
    say(f"{output} has {mapped}, images.txt (their names), and maps.npz (both maps).")


def _run_command(config_path: Path | None) -> str:
    """Return the command that runs a configuration, or the demo if `config_path` is None."""
    return shlex.join(["jointspace", "run", str(config_path)] if config_path else ["jointspace", "demo"])


class RunFailure(JointspaceError):
    """Error of a run that has failed or was interrupted. Its exit code is the exit code of the failed stage, or of
    Snakemake if no stage failed, or 130 after an interrupt."""

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
    """Run the workflow with the configuration in `config_path`, or the demo if it is None, and print the results.

    `changes` override keys of the configuration. `further` are options and targets of Snakemake. If there are any, the
    output of Snakemake is shown in place of the results. With `as_json`, the results are always printed, as one JSON
    object. Raises UsageError if the configuration is wrong, or if the collection or an extra is missing. Raises
    RunFailure if a job fails or the run is interrupted, and RejectLimitError if the run is complete but `ingest` has
    left warnings.
    """
    import yaml

    from pipeline.config import loading
    from pipeline.config.registry import allow, named_import_paths
    from pipeline.run.reading.requirements import require_all
    from pipeline.run.reading.results import closing_lines, results_of, warnings_of
    from pipeline.storage.batch import publish_text
    from pipeline.storage.locks import hold
    from stages.catalogue import declared

    values = loading.merge(loading.read_mapping(config_path) if config_path else {}, changes or {})
    allow(named_import_paths(values))
    chosen = loading.validate(values, config_path or loading.default_path())
    folder = Path(chosen.results_root) / chosen.name
    root = Path(chosen.data_root)
    if not (chosen.demo.generate or root.exists()):
        beside = (str(one) for one in root.parent.glob("*") if one.is_dir())
        raise UsageError(
            f"data_root {root} does not exist. {did_you_mean(str(root), beside)}Correct data_root in {config_path}."
        )
    require_all(Run(folder, chosen), declared())
    words = [sys.executable, "-m", "snakemake", "-s", str(find_snakefile()), "--cores", str(cores or runtime.threads())]
    output = folder / "run.log"
    changed = folder / "changes.yaml"
    with hold(output):
        files = [config_path] if config_path else []
        if changes:
            publish_text(changed, yaml.safe_dump(changes))
            files.append(changed)
        words += further  # After --configfile, Snakemake would take the user's targets for further files.
        words += ["--configfile", *map(str, files)] if files else []
        try:
            code = _watch(words, output, shown=bool(further))
        except KeyboardInterrupt:
            raise RunFailure("Interrupted. The same command continues the run.", 130) from None
    if code:
        raise _explain(output, code, _run_command(config_path))
    if as_json:
        click.echo(json.dumps(results_of(folder)))
    elif not further:
        for line in closing_lines(folder):
            say(line)
    if (warnings := warnings_of(folder)) and not any(map(RUNS_NOTHING.fullmatch, further)):
        raise RejectLimitError(
            f"The run is complete, with {counted(len(warnings), 'warning')}. The first warning is: {warnings[0]}"
        )


def find_snakefile() -> Path:
    """Return the path of the Snakefile of this clone, or of the installed distribution."""
    from pipeline.config.loading import default_path

    return default_path().parents[1] / "Snakefile"


def _watch(words: list[str], log: Path, shown: bool) -> int:
    """Run Snakemake with its output in the file `log`, and return its exit code.

    Shows the output if `shown` is true, and otherwise a progress bar. If this process is interrupted, the function
    interrupts Snakemake and waits until Snakemake has ended. Snakemake runs in a separate session, so that an interrupt
    from the terminal does not also reach Snakemake directly.
    """

    def interrupt(number: int, frame: "FrameType | None") -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # An ignored signal stays ignored, as SIGHUP under nohup.
                signal.signal(number, interrupt)
    with open(log, "wb") as output, closing(_Progress(log.parent / "benchmarks", shown)) as progress:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            # Otherwise Snakemake would inherit an ignored SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
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
    """A progress bar of a run.

    When a job ends, the bar advances by the median of the seconds that earlier jobs of the same rule took. The seconds
    are read from the folder `benchmarks`. If a rule of the run has no seconds there, all jobs count the same. If
    `hidden` is true, nothing is shown.
    """

    def __init__(self, benchmarks: Path, hidden: bool) -> None:
        from tqdm import tqdm

        form = "{desc}: {percentage:3.0f}%|{bar:30}|{postfix} [{elapsed}<{remaining}]"
        self._bar = tqdm(desc="starting", total=1, bar_format=form, disable=True if hidden else None)
        self._benchmarks = benchmarks
        self._jobs = {}
        self._weights = {}
        self._ended = 0

    def read(self, line: str) -> None:
        """Update the bar after a line of Snakemake's output. An empty line only refreshes the elapsed time."""
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
    """Yield each line of `log` when it is written, until the process has ended. Yield "" while there is no new
    line."""
    with open(log, encoding="utf-8", errors="replace") as file:
        while True:
            ended = process.poll() is not None
            yield from iter(file.readline, "")
            if ended:
                return
            yield ""
            time.sleep(POLL_SECONDS)


def _end(process: "subprocess.Popen", number: int) -> None:
    """Send the signal `number` to a process and its children, and wait until the process has ended. Kill the process
    and its children if the process has not ended after SHUTDOWN_SECONDS, or if the user interrupts the waiting."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
        try:
            process.wait(SHUTDOWN_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _explain(log: Path, code: int, again: str) -> RunFailure:
    """Return the error of a failed run, with the message of the failed stage or of Snakemake from `log`.

    `code` is the exit code of Snakemake, and `again` is the command that runs the configuration.
    """
    text = log.read_text(encoding="utf-8", errors="replace")
    stage = FAILED.search(text)
    said = re.findall(r"^jointspace: (.+)$", text, flags=re.M)
    if LOCKED.search(text):
        return RunFailure(
            "This folder is locked by another run, or by a run that was killed. If no other run is working here, remove"
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
        return RunFailure(f"Snakemake ended with exit code {code}: {reason} (details: {log})", code)
    status = STATUS.findall(text)
    reason = said[-1] if said else "The stage ended without a message. The same command continues the run."
    return RunFailure(f"{stage[1].replace('_', '-')}: {reason} (details: {log})", int(status[-1]) if status else code)
