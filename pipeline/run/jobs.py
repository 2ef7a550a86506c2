"""The jobs of a run: what each is made from, whether it is done, and the view of the run that its function gets."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from pipeline.errors import InputError
from pipeline.run.layout import Artefact, Layout, Shards
from pipeline.run.run import Run
from pipeline.run.stage import Input, Inputs, Job, Names, Outside, ShardJob, Stage, list_inputs
from pipeline.storage.commit import Commits, Provenance, combined
from pipeline.storage.files import file_sha256
from pipeline.storage.json_files import read_json
from pipeline.storage.manifest import Manifest

if TYPE_CHECKING:
    import numpy as np

Kind = TypeVar("Kind", Artefact, Shards, Outside)


class UndeclaredInputError(Exception):
    """The function of a stage has asked for an artefact that the stage does not declare: an error in our code, since
    nothing would make the result again when that artefact changes."""


class Jobs:
    """What the jobs of a run are made from. Each digest is looked up once, and each check is made once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._demo = Layout(run.root, Path(run.config.data_root)).demo
        self._commits = Commits(run.root)
        self._digests: dict[str, str] = {}
        self._also: dict[tuple[str, Names], Mapping[str, str]] = {}

    def job(self, stage: Stage, names: Names) -> Job:
        """Describe the job that makes an artefact.

        Only commits are read. Raises IntegrityError naming an input that is not there, or that is not valid.
        """
        provenance, digests = self._trace(stage, names, None, {})
        outputs = stage.outputs(self.run.layout, *names)
        first = outputs[0]
        assert isinstance(first, Artefact)
        return Job(provenance, digests, first.path, outputs, names)

    def shard_job(self, stage: Stage, names: Names, number: int) -> ShardJob:
        """Describe the job that makes the shard `number`, as `job` does."""
        manifest, outputs = self.run.manifest, stage.outputs(self.run.layout, *names)
        first = outputs[0]
        assert isinstance(first, Shards)
        shards = manifest.chunks[number] if first.chunked else range(number, number + 1)
        columns = {
            f"manifest/shards/{shard:05d}.json#{column}": manifest.shard(shard).fingerprints[column]
            for shard in shards
            for column in stage.columns
        }
        provenance, digests = self._trace(stage, names, shards, columns)
        path, rows = first.shard(number), manifest.span(shards)
        return ShardJob(provenance, digests, path, outputs, names, number=number, shards=shards, rows=rows)

    def is_done(self, job: Job) -> bool:
        """Whether the artefact of a job is there: made like this, from what is there now, and whole."""
        commits = [path for path in job.commits if path.suffix == ".json"]  # others vouch for pages and pictures
        return bool(commits) and all(self._commits.is_done(commit, job.provenance) for commit in commits)

    def _trace(
        self, stage: Stage, names: Names, shards: range | None, columns: Mapping[str, str]
    ) -> tuple[Provenance, dict[str, str]]:
        """Return the provenance of a job, and the digest of each of its inputs by name."""
        run, digests, brought, artefacts = self.run, {}, {}, {}
        for source in list_inputs(stage.reads(run.config, run.layout, *names)):
            if places := self._places(source, shards):
                found = {place: self._commits.require(place) for place in places}
                artefacts |= found
                digests[source.name] = found[places[0]] if len(places) == 1 else combined(found.values())
            else:
                assert not isinstance(source, Shards)
                digests[source.name] = brought[source.name] = self._digest(source)
        if (stage.name, names) not in self._also:  # which may take long to compute
            self._also[stage.name, names] = stage.also(run, *names)
        brought |= self._also[stage.name, names]
        keys = {**stage.keys(run.config, *names), **({"brought": brought} if brought else {})}
        provenance = Provenance(run.root, stage.name, stage.version, keys, {**artefacts, **columns})
        return provenance, digests | brought

    def _digest(self, source: Outside | Artefact) -> str:
        """Return the digest of a file that a person brought, or of an artefact outside of the run.

        Raises InputError where a file cannot be read.
        """
        key = str(source.path)
        if key not in self._digests:
            is_file = isinstance(source, Outside)
            try:
                self._digests[key] = file_sha256(source.path) if is_file else read_json(source.commit)["check"]
            except OSError as error:
                raise InputError(
                    f"cannot read {source.path} ({error}); correct its name in the configuration"
                ) from error
        return self._digests[key]

    def _places(self, source: Input, shards: range | None) -> list[str]:
        """Return where the commits of an input lie below the run.

        Shards have one commit for each number in `shards`, or the pattern of all commits without them. An input that is
        not of the run has no commit.
        """
        if isinstance(source, Outside):
            return []
        if isinstance(source, Shards):
            commits, key = [source.every_commit] if shards is None else [source.commit(n) for n in shards], ""
        else:
            commits, key = [source.commit], source.key
        if commits[0] == self._demo.commit or not commits[0].is_relative_to(self.run.root):
            return []
        return [commit.relative_to(self.run.root).as_posix() + (f"#{key}" if key else "") for commit in commits]


class NamedInputs:
    """What a stage reads, as its function gets it: by the names that `reads` of the stage gives."""

    def __init__(self, values: Inputs) -> None:
        self.values = values

    def __contains__(self, name: str) -> bool:
        """Whether this job has the input."""
        return self.values.get(name) is not None

    def artefact(self, name: str) -> Artefact:
        return self._one(name, Artefact)

    def shards(self, name: str) -> Shards:
        return self._one(name, Shards)

    def path(self, name: str) -> Path | None:
        """The path of a file that a person brought; None where this job has none."""
        return None if self.values.get(name) is None else self._one(name, Outside).path

    def all_shards(self, name: str) -> dict[str, Shards]:
        """Several shards by name, such as the features of each encoder."""
        return self._several(name, Shards)

    def artefacts(self, name: str) -> dict[str, Artefact]:
        """Several artefacts by name."""
        return self._several(name, Artefact)

    def paths(self, name: str) -> dict[str, Path]:
        """The paths of several files that a person brought, by name."""
        return {key: file.path for key, file in self._several(name, Outside).items()}

    def _one(self, name: str, kind: type[Kind]) -> Kind:
        value = self.values.get(name)
        if not isinstance(value, kind):
            raise UndeclaredInputError(
                f"the stage declares no {kind.__name__} {name}; it reads {', '.join(self.values)}"
            )
        return value

    def _several(self, name: str, kind: type[Kind]) -> dict[str, Kind]:
        values = self.values.get(name)
        if not isinstance(values, Mapping):
            raise UndeclaredInputError(f"the stage declares no family {name}; it reads {', '.join(self.values)}")
        return {key: value for key, value in values.items() if isinstance(value, kind)}


class DeclaredManifest(Manifest):
    """The manifest for a stage over shards, which has only the `columns` that the stage declares."""

    def __init__(self, folder: Path, stage: Stage) -> None:
        super().__init__(folder)
        self._stage = stage

    def table(self, name: str, number: int) -> pa.Table:
        self._require(name)
        return super().table(name, number)

    def shard_splits(self, number: int) -> "np.ndarray":
        self._require("splits")
        return super().shard_splits(number)

    def _require(self, column: str) -> None:
        if column not in self._stage.columns and not (column == "images" and "splits" in self._stage.columns):
            raise UndeclaredInputError(
                f"{self._stage.command} reads {column} of the manifest, but declares only"
                f" {', '.join(self._stage.columns)}; add it to `columns` of the stage"
            )


class StageRun(Run):
    """A run as the function of a stage sees it. It opens only what the stage reads and writes.

    `inputs` has what `reads` of the stage returns for `every` names of the call; families of several names are joined.
    The layout, and so every reader that asks it, raises UndeclaredInputError for any other artefact of the run.
    """

    def __init__(self, run: Run, stage: Stage, every: Sequence[Names]) -> None:
        super().__init__(run.root, run.config)
        self._stage = stage
        joined: dict[str, Input | Sequence[Input] | Mapping[str, Input] | None] = {}
        outputs: list[Artefact | Shards] = []
        for names in every:
            outputs += stage.outputs(run.layout, *names)
            inputs = {**stage.reads(run.config, run.layout, *names), **stage.may_read(run.config, run.layout, *names)}
            for name, value in inputs.items():
                before = joined.get(name)
                joined[name] = (
                    {**before, **value} if isinstance(before, Mapping) and isinstance(value, Mapping) else value
                )
        self.inputs = NamedInputs(joined)
        self._declared = {item.name for item in (*list_inputs(joined), *outputs)}
        self._has_manifest = run.layout.manifest.name in self._declared

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.root, Path(self.config.data_root), self._require_declared)

    @cached_property
    def manifest(self) -> Manifest:
        if self._stage.sharded and not self._has_manifest:
            return DeclaredManifest(Layout(self.root).manifest.path, self._stage)
        return super().manifest

    def _require_declared(self, made: Artefact | Shards) -> None:
        # The vocabularies of an ensemble are a part of its model, and `index/ncca/00` is a part of `index/ncca`.
        whole = made.name.removesuffix("/vocabulary.json")
        if whole not in self._declared and not any(name.startswith(f"{whole}/") for name in self._declared):
            raise UndeclaredInputError(
                f"{self._stage.command} opens {made.name}, which it does not declare; add it to `reads` of the stage"
            )
