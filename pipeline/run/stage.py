"""The declaration of a stage: what its rule, commit, command, scheduler and documentation are made from.

A stage is one function. `Stage` says once what the function depends on (keys of the configuration, columns of the
manifest, other artefacts), and what it writes. `pipeline.run.runner` calls it; the rules of the Snakefile and of
`stages/rules` ask `common.smk` for its inputs; `stages.commands` makes its command.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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
    what is made from it."""

    name: str
    path: Path


Input = Artefact | Shards | Outside
Inputs = Iterable[Input]


def outside_files(name: str, folder: Path) -> list[Outside]:
    """All files below a person's folder as `name`/path, but hidden ones."""
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return [
        Outside(f"{name}/{below.as_posix()}", path)
        for below, path in paths.items()
        if not any(part.startswith(".") for part in below.parts)
    ]


@dataclass(frozen=True)
class Job:
    """One call of a stage's function: what it makes, of which `names`, and what its commit must record.

    `outputs` are what the stage's `writes` says, `path` the file or folder of the first; of a sharded stage `path` is
    the shard's file, `number` its number and `rows` its images and sentences. `provenance` goes into the commit;
    `inputs` are the digests of all that the stage `reads`, and of what `also` decides, by name.
    """

    provenance: "Provenance"
    inputs: Mapping[str, str]
    path: Path
    outputs: Sequence[Artefact | Shards]
    names: Names = ()
    number: int | None = None
    rows: "ShardRows | None" = None

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

    That is `function(run, job, *names)`, or, over shards, `function(run, *names)`, which opens what all shards share
    and returns the function of one `job`. Its parameters say what one job is of, such as `model` and `split`.
    """

    function: Callable[..., Any]
    version: int
    """Raised when the same inputs give other results. Results of an older version are made again; what was made from
    them only if the new files differ."""
    writes: Callable[..., Artefact | Shards | Sequence[Artefact]]
    """What `(layout, *names)` makes, first of all what others read."""
    reads: Callable[..., Inputs] = lambda *_: ()
    """The artefacts and files that `(config, layout, *names)` is made from."""
    keys: Callable[..., Mapping[str, Any]] = lambda *_: {}
    """The part of the configuration that decides the result of `(config, *names)`."""
    columns: tuple[str, ...] = ()
    """Those of the manifest (`images`, `splits`, `sentences`, `documents`, `boxes`) on which a shard depends."""
    also: Callable[..., Mapping[str, str]] = lambda *_: {}
    """Fingerprints of whatever else decides, of `(run, *names)`, found once for all shards."""
    choices: "Callable[[Config], Iterable[Names]]" = lambda config: [()]
    """All names that the configuration knows."""
    wanted: "Callable[[Config], Iterable[Names]]" = lambda config: ()
    """Those that `all` makes, and a command that is given no names."""
    gpu: bool = False
    """Whether a job computes on one."""
    has_rule: bool = True
    """Whether the workflow makes it."""
    options: tuple[Any, ...] = ()
    """Of the command alone, click's; they are passed to the function of a stage without shards."""
    then: "Callable[..., str | None]" = lambda run, *names: None
    """What a person may type next; None for the rest of the run."""
    finish: Callable[..., Sequence[Path]] = lambda *_: ()
    """Called with `(run, *names)` after the last shard and before the commit of a whole artefact, which also vouches
    for the commits whose paths this returns."""
    together: str = ""
    """What one job over shards is of, where several share the work: `function(run, *names)` gets them all and returns a
    function of one job for each that is still to be made."""
    in_stream: bool = False
    """Whether the function of the jobs is a generator instead: it takes the jobs of each shard in turn, begins with one
    before the last is committed, and yields the number of each that is."""

    @cached_property
    def _parameters(self) -> list[str]:
        parameters = signature(self.function).parameters.values()
        return [one.name for one in parameters if one.default is Parameter.empty][1:]

    @property
    def sharded(self) -> bool:
        return "job" not in self._parameters

    @property
    def names(self) -> Names:
        """What one job is of: ("model", "split")."""
        return (self.together,) if self.together else tuple(name for name in self._parameters if name != "job")

    @property
    def name(self) -> str:
        """As Snakemake calls the rule; the command has hyphens."""
        return self.function.__name__

    @property
    def command(self) -> str:
        return self.name.replace("_", "-")

    def outputs(self, layout: Layout, *names: str) -> Sequence[Artefact | Shards]:
        """What it makes, as a sequence."""
        made = self.writes(layout, *names)
        return [made] if isinstance(made, Artefact | Shards) else list(made)

    def select(self, config: "Config", given: Sequence[str]) -> list[Names]:
        """The choices that start with the names `given`; where names are left out, those that are wanted, or all if
        none is. Raises UsageError naming the first of `given` that is in no choice, and the known ones.
        """
        found = [tuple(choice) for choice in self.choices(config)]
        for place, name in enumerate(given):
            there = list(dict.fromkeys(choice[place] for choice in found))
            # `encoders/clip` may be given as `clip`, which is every artefact of that name.
            exact = [choice for choice in found if choice[place] == name]
            found = exact or [choice for choice in found if choice[place].rpartition("/")[2] == name]
            if not found:
                raise UsageError(
                    f"{self.command}: the configuration has no {self.names[place]} {name};"
                    f" {meant(name, there)}there are {', '.join(there) or 'none'}"
                )
        if not found:
            missing = f"has no {' and '.join(self.names)} to make" if self.names else "leaves it out"
            raise UsageError(f"{self.command}: the configuration {missing}")
        if len(given) == len(self.names):
            return found
        wanted = set(map(tuple, self.wanted(config)))
        return [choice for choice in found if choice in wanted] or found

    def depends(self, config: "Config", *names: str) -> dict[str, Any]:
        """The version and the part of the configuration that decide the result."""
        return {"version": self.version, "keys": self.keys(config, *names)}


def stage(**declaration: Any) -> Callable[[Callable[..., Any]], Stage]:
    """Declares the function below as a stage; see Stage."""
    return partial(Stage, **declaration)
