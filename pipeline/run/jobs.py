"""The jobs of a run: the inputs of each job, whether the job is done, and the restricted run that its function gets."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from pipeline.errors import InputError
from pipeline.run.layout import Artefact, Layout, Shards
from pipeline.run.run import Run
from pipeline.run.stage import Input, Inputs, Job, Names, Outside, ShardJob, Stage, list_inputs
from pipeline.storage.commit import Commits, Provenance, combine_digests
from pipeline.storage.files import file_sha256
from pipeline.storage.json_files import read_json
from pipeline.storage.manifest import Manifest

if TYPE_CHECKING:
    import numpy as np

Kind = TypeVar("Kind", Artefact, Shards, Outside)


class UndeclaredInputError(Exception):
    """Error for a stage whose function asks for an artefact that the stage does not declare.

    It is a bug in the stage. If it were allowed, a change of that artefact would not make the stage run again.
    """


class Jobs:
    """Finds the inputs of the jobs of a run. Each digest is looked up once, and each check is made once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._demo = Layout(run.root, Path(run.config.data_root)).demo
        self._commits = Commits(run.root)
        self._digests: dict[str, str] = {}
        self._also: dict[tuple[str, Names], Mapping[str, str]] = {}

    def job(self, stage: Stage, names: Names) -> Job:
        """Describe the job that makes an artefact.

        Only commit records are read. Raises IntegrityError, with the name of the input, if an input is missing or
        not valid, and InputError if a file that the user supplied cannot be read.
        """
        provenance, digests = self._trace(stage, names, None, {})
        outputs = stage.outputs(self.run.layout, *names)
        first = outputs[0]
        assert isinstance(first, Artefact)
        return Job(provenance, digests, first.path, outputs, names)

    def shard_job(self, stage: Stage, names: Names, number: int) -> ShardJob:
        """Describe the job that makes the shard `number`, or the chunk `number` if the output is chunked.

        Raises IntegrityError, with the name of the input, if an input is missing or not valid, and InputError if a file
        that the user supplied cannot be read.
        """
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
        """Whether the outputs of a job exist, were made from its present inputs and settings, and are unchanged."""
        commits = [path for path in job.commits if path.suffix == ".json"]  # a page for people has no commit record
        return bool(commits) and all(self._commits.is_done(commit, job.provenance) for commit in commits)

    def _trace(
        self, stage: Stage, names: Names, shards: range | None, columns: Mapping[str, str]
    ) -> tuple[Provenance, dict[str, str]]:
        """Return the provenance of a job, and the digest of each of its inputs by name.

        `shards` are the shards on which the job depends, or None for all of them. `columns` has the digests of the
        columns of the manifest on which it depends, by their places.
        """
        run = self.run
        digests: dict[str, str] = {}
        brought: dict[str, str] = {}
        artefacts: dict[str, str] = {}
        for source in list_inputs(stage.reads(run.config, run.layout, *names)):
            if paths := self._commit_paths(source, shards):
                found = {path: self._commits.require(path) for path in paths}
                artefacts |= found
                digests[source.name] = found[paths[0]] if len(paths) == 1 else combine_digests(found.values())
            else:
                assert not isinstance(source, Shards)
                digests[source.name] = brought[source.name] = self._digest(source)
        if (stage.name, names) not in self._also:  # `also` may take long to compute
            self._also[stage.name, names] = stage.also(run, *names)
        brought |= self._also[stage.name, names]
        keys = {**stage.keys(run.config, *names), **({"brought": brought} if brought else {})}
        provenance = Provenance(run.root, stage.name, stage.version, keys, {**artefacts, **columns})
        return provenance, digests | brought

    def _digest(self, source: Outside | Artefact) -> str:
        """Return the digest of a file that the user supplied, or of an artefact outside the run's folder.

        Raises InputError if the file cannot be read.
        """
        key = str(source.path)
        if key not in self._digests:
            is_file = isinstance(source, Outside)
            try:
                self._digests[key] = file_sha256(source.path) if is_file else read_json(source.commit)["check"]
            except OSError as error:
                raise InputError(
                    f"cannot read {source.path} ({error}). Correct the name of the file in the configuration."
                ) from error
        return self._digests[key]

    def _commit_paths(self, source: Input, shards: range | None) -> list[str]:
        """Return the paths of the commit records of an input, relative to the run's folder.

        For shards these are the records of the numbers in `shards`, or the pattern of all records if `shards` is None.
        An input outside the run's folder has none.
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
    """The inputs of a stage for its function, by the names that the stage's `reads` and `may_read` give them.

    The methods raise UndeclaredInputError if the stage does not declare an input of this name and kind.
    """

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
        """Return the path of a file that the user supplied, or None if this job does not have the file."""
        return None if self.values.get(name) is None else self._one(name, Outside).path

    def all_shards(self, name: str) -> dict[str, Shards]:
        """Return a group of sharded artefacts by name, such as the features of each encoder."""
        return self._several(name, Shards)

    def artefacts(self, name: str) -> dict[str, Artefact]:
        """Return a group of artefacts by name."""
        return self._several(name, Artefact)

    def paths(self, name: str) -> dict[str, Path]:
        """Return the paths of a group of files that the user supplied, by name."""
        return {key: file.path for key, file in self._several(name, Outside).items()}

    def _one(self, name: str, kind: type[Kind]) -> Kind:
        value = self.values.get(name)
        if not isinstance(value, kind):
            raise UndeclaredInputError(
                f"the stage does not declare the {kind.__name__} {name}. It declares {', '.join(self.values)}."
            )
        return value

    def _several(self, name: str, kind: type[Kind]) -> dict[str, Kind]:
        values = self.values.get(name)
        if not isinstance(values, Mapping):
            raise UndeclaredInputError(
                f"the stage does not declare the group of inputs {name}. It declares {', '.join(self.values)}."
            )
        return {key: value for key, value in values.items() if isinstance(value, kind)}


class DeclaredManifest(Manifest):
    """A manifest for a stage over shards. Reading a table or the splits raises UndeclaredInputError unless the stage's
    `columns` list them. With `splits`, the table `images` can be read too."""

    def __init__(self, folder: Path, stage: Stage) -> None:
        super().__init__(folder)
        self._stage = stage

    def table(self, name: str, number: int, column: str | None = None) -> pa.Table:
        self._require(name)
        return super().table(name, number, column)

    def shard_splits(self, number: int) -> "np.ndarray":
        self._require("splits")
        return super().shard_splits(number)

    def _require(self, column: str) -> None:
        if column not in self._stage.columns and not (column == "images" and "splits" in self._stage.columns):
            raise UndeclaredInputError(
                f"{self._stage.command} reads {column} of the manifest, but declares only"
                f" {', '.join(self._stage.columns)}. Add {column} to `columns` of the stage."
            )


class StageRun(Run):
    """A run as the function of a stage sees it. It opens only the declared inputs and outputs of the stage.

    `every` lists the names of the jobs in this call. `inputs` joins what the stage's `reads` and `may_read` return for
    each of them. The layout raises UndeclaredInputError for any other artefact of the run. So does every reader, since
    all readers take their paths from the layout.
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
                f"{self._stage.command} opens {made.name}, which it does not declare. Add it to `reads` of the stage."
            )
