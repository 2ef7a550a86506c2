"""The declaration of a stage, from which its Snakemake rule, command, commit records and documentation are derived.

A stage is one function. `Stage` declares the dependencies of the function (keys of the configuration, columns of the
manifest, other artefacts) and its outputs. `pipeline.run.runner` calls the function. The rules in the Snakefile and in
`stages/rules` take the inputs of a stage from `common.smk`, and `stages.commands` makes its command.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.errors import UsageError, did_you_mean
from pipeline.run.layout import Artefact, Layout, Shards

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config.names import Config
    from pipeline.storage.commit import Provenance
    from pipeline.storage.manifest import ShardRows

Names = tuple[str, ...]


@dataclass(frozen=True)
class Outside:
    """A file that the user supplied, such as weights, a list of the collection or a treebank.

    `name` is the key under which the commit records of dependent artefacts have the digest of the file.
    """

    name: str
    path: Path


Input = Artefact | Shards | Outside
Inputs = Mapping[str, Input | Sequence[Input] | Mapping[str, Input] | None]
"""The inputs of a stage by name. A value is one input, a list of inputs, a mapping of inputs (such as the features of
each encoder), or None if this job does not have the input."""


def list_inputs(inputs: Inputs) -> Iterator[Input]:
    """Yield every single input of the lists, mappings and single values in `inputs`, in order. Values that are None are
    skipped."""
    for value in inputs.values():
        if isinstance(value, Artefact | Shards | Outside):
            yield value
        elif isinstance(value, Mapping):
            yield from value.values()
        elif value is not None:
            yield from value


Kind = TypeVar("Kind", Artefact, Shards, Outside)


class UndeclaredInputError(Exception):
    """Error for a stage whose function asks for an artefact that the stage does not declare.

    Such a request is a bug in the stage. If it were allowed, a change of that artefact would not make the stage run
    again.
    """


class NamedInputs:
    """The inputs of a stage for its function, by the names that the stage's `reads` and `may_read` give them.

    The methods raise UndeclaredInputError if the stage does not declare an input of this name and kind.
    """

    def __init__(self, values: Inputs) -> None:
        self.values = values

    def __contains__(self, name: str) -> bool:
        """Return whether this job has the input `name`."""
        return self.values.get(name) is not None

    def artefact(self, name: str) -> Artefact:
        return self._one(name, Artefact)

    def shards(self, name: str) -> Shards:
        return self._one(name, Shards)

    def path(self, name: str) -> Path | None:
        """Return the path of a file that the user supplied, or None if this job does not have the file."""
        return None if self.values.get(name) is None else self._one(name, Outside).path

    def all_shards(self, name: str) -> dict[str, Shards]:
        """Return the sharded artefacts of the input `name`, which is a mapping, such as encoder -> its features."""
        return self._several(name, Shards)

    def artefacts(self, name: str) -> dict[str, Artefact]:
        """Return the artefacts without shards of the input `name`, which is a mapping, such as text encoder -> its
        parameters."""
        return self._several(name, Artefact)

    def paths(self, name: str) -> dict[str, Path]:
        """Return the paths of the files that the user supplied as the input `name`, which is a mapping of files."""
        return {key: file.path for key, file in self._several(name, Outside).items()}

    def _one(self, name: str, kind: type[Kind]) -> Kind:
        value = self.values.get(name)
        if not isinstance(value, kind):
            raise UndeclaredInputError(
                f"The stage asks for the input {name} as {kind.__name__}, but does not declare such an input. The"
                f" declared inputs are {', '.join(self.values)}. Add the input to `reads` of the stage."
            )
        return value

    def _several(self, name: str, kind: type[Kind]) -> dict[str, Kind]:
        values = self.values.get(name)
        if not isinstance(values, Mapping):
            raise UndeclaredInputError(
                f"The stage asks for the group of inputs {name}, but does not declare this group as a mapping. The"
                f" declared inputs are {', '.join(self.values)}. Add the group to `reads` of the stage."
            )
        return {key: value for key, value in values.items() if isinstance(value, kind)}


def outside_files(name: str, folder: Path) -> list[Outside]:
    """Return all files below a folder that the user supplied, as inputs named `name`/PATH. Hidden files and files in
    hidden folders are ignored."""
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return [
        Outside(f"{name}/{below.as_posix()}", path)
        for below, path in paths.items()
        if not any(part.startswith(".") for part in below.parts)
    ]


@dataclass(frozen=True)
class Job:
    """A job of a stage: the artefacts made by one call of its function.

    `names` identify the job, such as a model and a split. `outputs` are the artefacts that the stage's `writes`
    returns, and `path` is the file or folder of the first output. `provenance` is stored in the commit records of the
    outputs. `digests` maps the name of each input to the digest of its content, and also has the fingerprints that the
    stage's `also` returns.
    """

    provenance: "Provenance"
    digests: Mapping[str, str]
    path: Path
    outputs: Sequence[Artefact | Shards]
    names: Names = ()

    @property
    def commits(self) -> list[Path]:
        """The paths of the commit records of the outputs."""
        return [output.commit for output in self.outputs if isinstance(output, Artefact)]


@dataclass(frozen=True, kw_only=True)
class ShardJob(Job):
    """A job that makes the shard `number`. `rows` has the rows of the images and sentences of the shard, and `path` is
    the file of the shard.

    If the artefact is chunked, the job makes the chunk `number`, which covers the `shards` of the manifest. Otherwise
    `shards` has `number` alone.
    """

    number: int
    shards: range
    rows: "ShardRows"

    @property
    def commits(self) -> list[Path]:
        return [output.commit(self.number) for output in self.outputs if isinstance(output, Shards)]

    @property
    def image_id(self) -> "np.ndarray":
        """The ids of the images in the shard, or in all shards of the chunk, as (n,) int64."""
        return _range(self.rows.first_image, self.rows.last_image)

    @property
    def sentence_id(self) -> "np.ndarray":
        """The ids of the sentences in the shard, or in all shards of the chunk, as (m,) int64."""
        return _range(self.rows.first_sentence, self.rows.last_sentence)


def _range(first: int, last: int) -> "np.ndarray":
    import numpy as np

    return np.arange(first, last)


@dataclass(frozen=True)
class Stage:
    """A stage, declared by `@stage(version=..., ...)` above its function.

    The function has one of two forms. `function(run, job, *names)` makes the artefacts of one job.
    `function(run, jobs, *names)` makes shards. It first opens the files that all shards need. Then it takes one
    ShardJob after another from the iterator `jobs`, and yields the number of each shard as soon as the shard is
    committed. It may take further jobs before it yields the number of an earlier shard. The parameters after the
    second, such as `model` and `split`, are the names of a job. `run` is a StageRun, which opens only declared
    artefacts.
    """

    function: Callable[..., Any]  # Any: the parameters of the function differ from stage to stage
    version: int
    """Number of the version of the function. It is increased when the same inputs give other results. Artefacts of
    another version are made anew. Artefacts that were made from them are made anew only if the content of the new files
    differs."""
    writes: Callable[..., Artefact | Shards | Sequence[Artefact]]
    """Function of `(layout, *names)` that returns the outputs of a job. The first is the main output."""
    reads: Callable[..., Inputs] = lambda *_: {}
    """Function of `(config, layout, *names)` that returns the inputs of a job by name. The function of the stage gets
    these inputs as `run.inputs`."""
    may_read: Callable[..., Inputs] = lambda *_: {}
    """Function of `(config, layout, *names)` that returns optional inputs of a page. The page shows the inputs that
    exist.

    The workflow does not wait for optional inputs, and does not make the page again when they change.
    """
    keys: Callable[..., Mapping[str, object]] = lambda *_: {}
    """Function of `(config, *names)` that returns the settings on which the result depends."""
    columns: tuple[str, ...] = ()
    """Columns of the manifest (`images`, `splits`, `sentences`, `documents`, `boxes`) on which a shard depends."""
    also: Callable[..., Mapping[str, str]] = lambda *_: {}
    """Function of `(run, *names)` that returns the fingerprints of anything else on which the result depends, by name.
    It is called once for all shards."""
    choices: "Callable[[Config], Iterable[Names]]" = lambda config: [()]
    """Function of the configuration that returns the names of all possible jobs."""
    wanted: "Callable[[Config], Iterable[Names]]" = lambda config: ()
    """Function of the configuration that returns the names of the jobs of the stage in a whole run (Snakemake's rule
    `all`). The command of the stage runs these jobs if it gets no names. If the function returns no names, the command
    runs all possible jobs."""
    gpu: bool = False
    """Whether a job computes on a GPU if the run uses one."""
    decodes: bool = False
    """Whether the stage makes shards from decoded photos, so that the workflow gives one job all GPUs and cores of a
    machine with GPUs."""
    threads: int = 1
    """Number of threads that the workflow reserves for a job."""
    memory: int = 2000
    """Megabytes of memory that the workflow reserves for a job."""
    shown: tuple[str, str] | None = None
    """The caption (a file of docs/captions) and the category under which Snakemake's own report shows the last output,
    or None if it does not show the output."""
    has_rule: bool = True
    """Whether the stage has a Snakemake rule."""
    options: tuple[Any, ...] = ()  # Any: options of click, which only the commands import
    """Click options of the command. Their values are passed to the function of a stage without shards."""
    then: "Callable[..., str | None]" = lambda run, *names: None
    """Function of `(run, *names)` that returns a command to suggest next, or None to suggest the rest of the run."""
    finish: "Callable[..., Sequence[Path]]" = lambda *_: ()
    """Function of `(run, *names)` that is called after the last shard of a part, before the part's commit record is
    written. It returns paths of further commit records, whose digests the part's commit record also lists."""

    @cached_property
    def _parameters(self) -> list[Parameter]:
        parameters = signature(self.function).parameters.values()
        return [parameter for parameter in parameters if parameter.default is Parameter.empty][1:]

    @property
    def sharded(self) -> bool:
        return self._parameters[0].name == "jobs"

    @property
    def together(self) -> bool:
        """Whether one call of the function makes the shards of several jobs, such as the shards of several encoders.

        The last parameter of the function is then variadic, such as `*encoders`. The function gets the jobs of one
        shard number one after another, and yields this number when all of these jobs are committed.
        """
        return self._parameters[-1].kind is Parameter.VAR_POSITIONAL

    @property
    def names(self) -> Names:
        """The nouns for the names of a job, such as ("model", "split")."""
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
        """Return the outputs of the job with the given names, as a sequence."""
        made = self.writes(layout, *names)
        return [made] if isinstance(made, Artefact | Shards) else list(made)

    def select(self, config: "Config", given: Sequence[str]) -> list[Names]:
        """Return the names of the jobs that start with the names in `given`.

        If `given` has fewer names than a job, return only the jobs that `wanted` also returns for the configuration. If
        `wanted` returns none of these jobs, return all of them. A name may be shortened to its last component: `clip`
        selects `encoders/clip`. Raises UsageError, with the known names, for a name that the configuration does not
        have, and UsageError if the configuration has no job of this stage.
        """
        choices = [tuple(choice) for choice in self.choices(config)]
        for position, name in enumerate(given):
            known = list(dict.fromkeys(choice[position] for choice in choices))
            exact = [choice for choice in choices if choice[position] == name]
            choices = exact or [choice for choice in choices if choice[position].rpartition("/")[2] == name]
            if not choices:
                listed = ", ".join(known)
                raise UsageError(
                    f"{self.command}: the configuration has no {self.names[position]} {name}."
                    f" {did_you_mean(name, known)}{f'The known names are {listed}.' if known else 'There is none.'}"
                )
        if not choices:
            nouns = " and ".join(self.names)
            remedy = f"has no {nouns} to make. Add one, or do" if nouns else "does not need it. Do"
            raise UsageError(f"{self.command}: the configuration {remedy} not run this command.")
        if len(given) == len(self.names):
            return choices
        wanted = set(map(tuple, self.wanted(config)))
        return [choice for choice in choices if choice in wanted] or choices

    def depends(self, config: "Config", *names: str) -> dict[str, object]:
        """Return the settings on which the result of a job depends, under `keys`, and the version of the stage, under
        `version`."""
        return {"version": self.version, "keys": self.keys(config, *names)}


def stage(**declaration: Any) -> Callable[[Callable[..., Any]], Stage]:  # Any: the fields of Stage, and any function
    """Declare the decorated function as a stage. The arguments are the fields of Stage."""
    return lambda function: Stage(function, **declaration)
