"""The declaration of a stage: what its rule, commit, command, scheduler and documentation are made from.

A stage is one function. `Stage` says once what the function depends on (keys of the configuration, columns of the
manifest, other artefacts), and what it writes. `pipeline.run.runner` calls it; the rules of the Snakefile and of
`stages/rules` ask `common.smk` for its inputs; `stages.commands` makes its command.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import UsageError, meant
from pipeline.run.layout import Artefact, Layout, Shards

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config.names import Config
    from pipeline.storage.commit import Provenance
    from pipeline.storage.manifest import ShardRows

Names = tuple[str, ...]


@dataclass(frozen=True)
class Outside:
    """A file that a person brought (weights, a list of the collection, a treebank), and its `name` in the commits of
    the artefacts that are made from it."""

    name: str
    path: Path


Input = Artefact | Shards | Outside
Inputs = Mapping[str, Input | Sequence[Input] | Mapping[str, Input] | None]
"""What a stage reads, by name: one artefact, several, several by name (such as the features of each encoder), or None
for an input that this job does not have."""


def list_inputs(inputs: Inputs) -> Iterator[Input]:
    """Yield every single input, in order."""
    for value in inputs.values():
        if isinstance(value, Artefact | Shards | Outside):
            yield value
        elif isinstance(value, Mapping):
            yield from value.values()
        elif value is not None:
            yield from value


def outside_files(name: str, folder: Path) -> list[Outside]:
    """All files below a person's folder as `name`/path, except hidden files."""
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return [
        Outside(f"{name}/{below.as_posix()}", path)
        for below, path in paths.items()
        if not any(part.startswith(".") for part in below.parts)
    ]


@dataclass(frozen=True)
class Job:
    """One artefact that a call of a stage's function makes.

    `outputs` are what `writes` of the stage says, and `path` is the file or folder of the first. `names` say what the
    artefact is of. `provenance` goes into its commit. `digests` are the digests of everything that the stage reads, and
    of what `also` decides, by name.
    """

    provenance: "Provenance"
    digests: Mapping[str, str]
    path: Path
    outputs: Sequence[Artefact | Shards]
    names: Names = ()

    @property
    def commits(self) -> list[Path]:
        """The commits of the outputs."""
        return [output.commit for output in self.outputs if isinstance(output, Artefact)]


@dataclass(frozen=True, kw_only=True)
class ShardJob(Job):
    """One shard that a stage makes: the shard `number`, whose images and sentences are `rows`. `path` is its file.

    A shard of a chunked artefact covers the manifest's shards `shards`. For any other, `shards` has `number` alone.
    """

    number: int
    shards: range
    rows: "ShardRows"

    @property
    def commits(self) -> list[Path]:
        return [output.commit(self.number) for output in self.outputs if isinstance(output, Shards)]

    @property
    def image_id(self) -> "np.ndarray":
        """The ids of the shard's images."""
        return _range(self.rows.first_image, self.rows.last_image)

    @property
    def sentence_id(self) -> "np.ndarray":
        """The ids of the shard's sentences."""
        return _range(self.rows.first_sentence, self.rows.last_sentence)


def _range(first: int, last: int) -> "np.ndarray":
    import numpy as np

    return np.arange(first, last)


@dataclass(frozen=True)
class Stage:
    """A stage, declared by `@stage(version=..., ...)` above its function.

    The function has one of two forms. `function(run, job, *names)` makes one artefact. `function(run, jobs, *names)`
    makes shards: it opens what all shards share, takes the jobs of the shards in turn, and yields the number of each
    shard as soon as it is committed. It may take further jobs before it yields. The other parameters say what a job is
    of, such as `model` and `split`. `run` is a StageRun, which opens only what the stage declares.
    """

    function: Callable[..., Any]  # Any: the parameters say which of the two forms it has
    version: int
    """Raised when the same inputs give other results. Results of an older version are made again. What was made from
    these is made again only if the new files differ."""
    writes: Callable[..., Artefact | Shards | Sequence[Artefact]]
    """What `(layout, *names)` makes, first of all what others read."""
    reads: Callable[..., Inputs] = lambda *_: {}
    """The artefacts and files that `(config, layout, *names)` is made from, by name. `run.inputs` has them."""
    may_read: Callable[..., Inputs] = lambda *_: {}
    """Further inputs of a page, which it shows if they exist.

    The workflow does not wait for them, and does not make the page again when they change.
    """
    keys: Callable[..., Mapping[str, object]] = lambda *_: {}
    """The part of the configuration that decides the result of `(config, *names)`."""
    columns: tuple[str, ...] = ()
    """Columns of the manifest (`images`, `splits`, `sentences`, `documents`, `boxes`) on which a shard depends."""
    also: Callable[..., Mapping[str, str]] = lambda *_: {}
    """Fingerprints of whatever else decides, of `(run, *names)`, found once for all shards."""
    choices: "Callable[[Config], Iterable[Names]]" = lambda config: [()]
    """All names that the configuration knows."""
    wanted: "Callable[[Config], Iterable[Names]]" = lambda config: ()
    """The names that `all` makes, and a command that is given no names."""
    gpu: bool = False
    """Whether a job computes on a GPU."""
    threads: int = 1
    """Number of threads that the workflow reserves for a job."""
    memory: int = 2000
    """Megabytes of memory that the workflow reserves for a job."""
    shown: tuple[str, str] | None = None
    """The caption (a file of docs/captions) and the category of the last output in Snakemake's own report."""
    has_rule: bool = True
    """Whether the workflow makes it."""
    options: tuple[Any, ...] = ()  # Any: options of click, which only the commands import
    """Options of the command only. They are passed to the function of a stage without shards."""
    then: "Callable[..., str | None]" = lambda run, *names: None
    """A command that a person may type next, of `(run, *names)`; None for the rest of the run."""
    finish: "Callable[..., Sequence[Path]]" = lambda *_: ()
    """Called with `(run, *names)` after the last shard and before the commit of a whole artefact. That commit also
    vouches for the commits whose paths are returned."""

    @cached_property
    def _parameters(self) -> list[Parameter]:
        parameters = signature(self.function).parameters.values()
        return [parameter for parameter in parameters if parameter.default is Parameter.empty][1:]

    @property
    def sharded(self) -> bool:
        return self._parameters[0].name == "jobs"

    @property
    def together(self) -> bool:
        """Whether one call of the function makes the shards of several names, as `*encoders` in its parameters says.
        The jobs of one shard follow each other then, and the number is yielded when all of them are committed."""
        return self._parameters[-1].kind is Parameter.VAR_POSITIONAL

    @property
    def names(self) -> Names:
        """What one job is of: ("model", "split")."""
        names = [parameter.name for parameter in self._parameters[1:]]
        return tuple(name.removesuffix("s") for name in names) if self.together else tuple(names)

    @property
    def name(self) -> str:
        """The name of the Snakemake rule. The command has hyphens in place of underscores."""
        return self.function.__name__

    @property
    def command(self) -> str:
        return self.name.replace("_", "-")

    def outputs(self, layout: Layout, *names: str) -> Sequence[Artefact | Shards]:
        """Return what it makes, as a sequence."""
        made = self.writes(layout, *names)
        return [made] if isinstance(made, Artefact | Shards) else list(made)

    def select(self, config: "Config", given: Sequence[str]) -> list[Names]:
        """Return the choices that start with the names `given`. Where names are left out, return the wanted choices, or
        all if none is wanted.

        Raises UsageError naming the first of `given` that is in no choice, and the known names.
        """
        choices = [tuple(choice) for choice in self.choices(config)]
        for position, name in enumerate(given):
            known = list(dict.fromkeys(choice[position] for choice in choices))
            # `clip` stands for `encoders/clip` and for every other artefact of that name.
            exact = [choice for choice in choices if choice[position] == name]
            choices = exact or [choice for choice in choices if choice[position].rpartition("/")[2] == name]
            if not choices:
                raise UsageError(
                    f"{self.command}: the configuration has no {self.names[position]} {name};"
                    f" {meant(name, known)}there are {', '.join(known) or 'none'}"
                )
        if not choices:
            missing = f"has no {' and '.join(self.names)} to make" if self.names else "leaves it out"
            raise UsageError(f"{self.command}: the configuration {missing}")
        if len(given) == len(self.names):
            return choices
        wanted = set(map(tuple, self.wanted(config)))
        return [choice for choice in choices if choice in wanted] or choices

    def depends(self, config: "Config", *names: str) -> dict[str, object]:
        """Return the version and the part of the configuration that decide the result."""
        return {"version": self.version, "keys": self.keys(config, *names)}


def stage(**declaration: Any) -> Callable[[Callable[..., Any]], Stage]:  # Any: the fields of Stage, and any function
    """Declare the function below as a stage; see Stage."""
    return lambda function: Stage(function, **declaration)
