"""The rules for Snakemake: input, output, parameters, resources and command of each, from its stage's declaration.

FLOW = Workflow.of(config, workflow.configfiles, declared(), lambda: checkpoints.ingest.get(), report, ancient)

rule extract:
    input: FLOW.input("extract")
    output: FLOW.output("extract")
    params: **FLOW.params("extract")
    ...
"""

import json
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import Config, read_mapping, validate
from pipeline.run.layout import Artefact, Shards
from pipeline.run.run import Run
from pipeline.run.stage import Input, Outside, Stage
from pipeline.storage.atomic import publish_text

CAPTIONS = "../../docs/captions"
"""As Snakemake finds it from the files of rules, in stages/rules."""
PART, BATCH = "{part}", "batch"
NEVER = "(?!)"
"""The pattern of a wildcard that has no value in this configuration."""


class Workflow:
    """The rules of one run.

    `stages` are all declarations by name; `ingested()` raises until the manifest is there, when Snakemake looks again.
    Snakemake's `shown(path, caption=, category=)` marks an output that its report shows, and `ancient(path)` an input
    whose age does not matter. `started` is when `start` was called.
    """

    def __init__(
        self,
        config: Config,
        stages: Mapping[str, Stage],
        ingested: Callable[[], Any],
        shown: Callable[..., Any],
        ancient: Callable[[str], Any],
    ) -> None:
        self.config, self.stages, self._ingested, self._shown, self._ancient = config, stages, ingested, shown, ancient
        self.run = Run(Path(config.results_root) / config.name, config)
        self.layout = self.run.layout
        self.started = math.inf
        self._digests: dict[tuple[tuple[str, ...], int], str] = {}  # Snakemake asks for them again and again

    @classmethod
    def of(cls, config: Mapping[str, Any], files: Sequence[str], *given: Any) -> "Workflow":
        """From the configuration as Snakemake has read it from `files` and its command line; for the others see above.
        Raises UsageError."""
        for path in files:
            read_mapping(path)  # Snakemake accepts a key that is given twice
        return cls(validate(config), *given)

    def start(self, config: Mapping[str, Any]) -> None:
        """Save the configuration where commands find it."""
        self.started = time.time()
        publish_text(self.layout.config, yaml.safe_dump(dict(config), sort_keys=False))

    def input(self, name: str) -> Callable[[Any], list[str]]:
        """The input function of a rule: the commits of what its stage reads. A sharded stage only needs a manifest: the
        parameters of its jobs change with the part of it that they read."""
        stage = self.stages[name]

        def files(wildcards: Any) -> list[str]:
            each = (stage.reads(self.config, self.layout, *names) for names in self._jobs(stage, wildcards))
            part = getattr(wildcards, "part", None)
            found = [path for reads in each for one in reads.values() for path in self._commits(one, part)]
            found = list(dict.fromkeys(found))
            before = [self.layout.manifest, *self._before(stage, wildcards)] if stage.sharded else []
            return found + [self._ancient(path) for one in before for path in self._commits(one, part)]

        return files

    def _before(self, stage: Stage, wildcards: Any) -> list[Input]:
        """What a job only waits for: of those that are made together the first for what the others read, the others for
        the first."""
        (names,) = self._jobs(stage, wildcards)
        if others := stage.others(self.config, names):
            each = (stage.reads(self.config, self.layout, *one).values() for one in others)
            return [one for reads in each for one in reads if not isinstance(one, Outside)]
        every = list(stage.together(self.config))
        return list(stage.outputs(self.layout, *every[0])) if names in every[1:] else []

    def output(self, name: str) -> list[Any]:
        """The commits of what a rule makes, and the files that Snakemake's report shows, as patterns."""
        stage = self.stages[name]
        if stage.batch:
            return [str(self.layout.batch(stage.name, f"{{{BATCH}}}").commit)]
        made = stage.outputs(self.layout, *(f"{{{one}}}" for one in stage.names))
        found = [str(one.part(PART) if isinstance(one, Shards) else one.commit) for one in made]
        for one, (caption, category) in zip(made[len(made) - len(stage.shown) :], stage.shown.items(), strict=True):
            shown = self._shown(str(one.path), caption=f"{CAPTIONS}/{caption}.rst", category=category)
            found = [*(path for path in found if path != str(one.path)), shown]
        return found

    def params(self, name: str) -> dict[str, Callable[[Any], str]]:
        """What makes Snakemake run a job again: the stage's version and keys, and the contents of its part."""
        stage = self.stages[name]

        @cache  # `ingest` stats every file of its collection
        def depends(*names: str) -> str:
            found = stage.depends(self.config, *names)
            reads = stage.reads(self.config, self.layout, *names).values()
            if remote := [one for one in reads if isinstance(one, Outside) and not isinstance(one.path, Path)]:
                found["remote"] = {str(one.path): self.run.digest(one) for one in remote}
            return json.dumps(found, sort_keys=True, default=str)

        params = {"depends": lambda wildcards: " ".join(depends(*names) for names in self._jobs(stage, wildcards))}
        if stage.sharded:
            params["rows"] = lambda wildcards: self._rows_digest(stage.columns, int(wildcards.part))
        return params

    def constraints(self, name: str) -> dict[str, str]:
        """The values that the wildcards of a rule may have."""
        stage = self.stages[name]
        if stage.batch:
            return {BATCH: "|".join(map(re.escape, self._batches[name])) or NEVER}
        choices = [tuple(choice) for choice in stage.choices(self.config)]
        values = {one: dict.fromkeys(choice[i] for choice in choices) for i, one in enumerate(stage.names)}
        return {one: "|".join(map(re.escape, found)) or NEVER for one, found in values.items()}

    def threads(self, name: str) -> int:
        """The threads that a job can use; Snakemake gives it at most as many as there are cores."""
        return self.stages[name].threads

    def benchmark(self, name: str) -> str:
        """Where Snakemake writes the time and memory of a job."""
        stage = self.stages[name]
        named = (BATCH,) if stage.batch else stage.names
        parts = [f"{{{one}}}" for one in named] + ([PART] if stage.sharded else [])
        return str(self.layout.benchmarks / stage.name / f"{'.'.join(parts) or 'all'}.tsv")

    def resources(self, name: str) -> dict[str, Any]:
        """What a job asks of its machine, in Snakemake's words; a retry asks for more."""
        stage = self.stages[name]
        memory = stage.memory * (self.config.workers if stage.sharded else 1)
        return {
            "mem_mb": lambda wildcards, attempt: attempt * memory,
            "gpu": int(stage.gpu and self.config.device != "cpu"),
        }

    def shell(self, name: str) -> str:
        """The command of a rule."""
        stage = self.stages[name]
        program = [str(Path(sys.executable).with_name("jointspace")), "--threads"]
        cards = ["--cards", "{resources.gpu}"] if self.config.device in ("auto", "cuda") else []
        words = [_plain(shlex.join(program)), "{threads}", *cards, stage.command]
        words += ["--batch", f"{{wildcards.{BATCH}:q}}"] if stage.batch else []
        words += [f"{{wildcards.{one}:q}}" for one in ([] if stage.batch else stage.names)]
        words += ["--run", _plain(shlex.quote(str(self.run.root)))]
        words += ["--together"] if stage.together(self.config) else []
        return " ".join([*words, *(["--part", "{wildcards.part}"] if stage.sharded else [])])

    @cached_property
    def targets(self) -> list[Callable[[Any], list[str]]]:
        """Input functions of `all`: what stages say is wanted for its own sake."""
        wanted = [(stage, names) for stage in self.stages.values() for names in stage.wanted(self.config)]
        made = [one for stage, names in wanted for one in stage.outputs(self.layout, *names)]
        return [lambda _, one=one: self._commits(one, None) for one in made]

    def _jobs(self, stage: Stage, wildcards: Any) -> list[tuple[str, ...]]:
        """The names of what a job makes: one, or all of its batch."""
        if stage.batch:
            return self._batches[stage.name][getattr(wildcards, BATCH)]
        return [tuple(getattr(wildcards, one) for one in stage.names)]

    @cached_property
    def _batches(self) -> dict[str, dict[str, list[tuple[str, ...]]]]:
        return {name: stage.batches(self.config) for name, stage in self.stages.items()}

    @cached_property
    def _recorded(self) -> dict[Path, Path]:
        """The commits of what is made in batches -> those of the batches."""
        return {
            one.commit: self.layout.batch(stage.name, batch).commit
            for stage, batches in zip(self.stages.values(), self._batches.values(), strict=True)
            for batch, members in batches.items()
            for names in members
            for one in stage.outputs(self.layout, *names)
        }

    def parts(self) -> list[range]:
        """The shards of each part, known once `ingest` is done."""
        self._ingested()
        return self.run.parts

    def _commits(self, one: Input, part: str | None) -> Sequence[str]:
        """The files that Snakemake waits for; of shards those of the same part, or of all parts."""
        if isinstance(one, Outside):
            return [str(one.path)] if isinstance(one.path, Path) else []
        if isinstance(one, Artefact):
            return [str(self._recorded.get(one.commit, one.commit))]
        numbers = range(len(self.parts())) if part is None else [int(part)]
        return [str(one.part(number)) for number in numbers]

    def _rows_digest(self, columns: tuple[str, ...], part: int) -> str:
        """The shards of a part, and a digest of what stages with these columns read of their rows of the manifest."""
        if (columns, part) not in self._digests:
            numbers = self.run.parts[part]
            digest = self.run.manifest.digest(numbers, columns)
            self._digests[columns, part] = f"{numbers.start}-{numbers.stop} {digest}"
        return self._digests[columns, part]


def _plain(text: str) -> str:
    """`text` with braces escaped for Snakemake."""
    return text.replace("{", "{{").replace("}", "}}")
