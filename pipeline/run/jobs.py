"""The jobs of a run: the inputs of each job, and whether the job is done."""

from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import InputError
from pipeline.run.layout import Artefact, Layout, Shards
from pipeline.run.run import Run
from pipeline.run.stage import Input, Job, Names, Outside, ShardJob, Stage, list_inputs
from pipeline.storage.commit import Commits, Provenance, combine_digests
from pipeline.storage.files import file_sha256
from pipeline.storage.json_files import read_json


class Jobs:
    """The jobs of the run `run`. Its methods describe a job with the digests of its inputs, and say whether a job is
    done.

    The digests and the checks of inputs are kept for further jobs, so a later change of an input is not noticed.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._demo = Layout(run.root, Path(run.config.data_root)).demo
        self._commits = Commits(run.root)
        self._digests: dict[str, str] = {}
        self._also: dict[tuple[str, Names], Mapping[str, str]] = {}

    def job(self, stage: Stage, names: Names) -> Job:
        """Describe the job of a stage without shards for `names`, such as a model and a split. Nothing is run.

        Of input artefacts, only the commit records are read. Files that the user supplied are hashed. Raises
        IntegrityError, with the name of the input, if an input is missing or not valid, and InputError if a file that
        the user supplied cannot be read.
        """
        provenance, digests = self._trace(stage, names, None, {})
        outputs = stage.outputs(self.run.layout, *names)
        first = outputs[0]
        assert isinstance(first, Artefact)
        return Job(provenance, digests, first.path, outputs, names)

    def shard_job(self, stage: Stage, names: Names, number: int) -> ShardJob:
        """Describe the job of a stage over shards that makes the shard `number`, or the chunk `number` if the output is
        chunked. Nothing is run.

        Raises IntegrityError, with the name of the input, if an input is missing or not valid, and InputError if a file
        that the user supplied cannot be read.
        """
        manifest = self.run.manifest
        outputs = stage.outputs(self.run.layout, *names)
        first = outputs[0]
        assert isinstance(first, Shards)
        shards = manifest.chunks[number] if first.chunked else range(number, number + 1)
        columns = {
            f"manifest/shards/{shard:05d}.json#{column}": manifest.shard(shard).fingerprints[column]
            for shard in shards
            for column in stage.columns
        }
        provenance, digests = self._trace(stage, names, shards, columns)
        path = first.shard(number)
        rows = manifest.span(shards)
        return ShardJob(provenance, digests, path, outputs, names, number=number, shards=shards, rows=rows)

    def is_done(self, job: Job) -> bool:
        """Return whether all outputs of a job have their recorded sizes and were made from the job's present inputs.

        The present inputs include the version of the stage and the settings on which the outputs depend. A job whose
        outputs have no commit record, such as an HTML page, is never done.
        """
        # A page has no commit record, so `job.commits` has the path of the page itself.
        commits = [path for path in job.commits if path.suffix == ".json"]
        return bool(commits) and all(self._commits.is_done(commit, job.provenance) for commit in commits)

    def _trace(
        self, stage: Stage, names: Names, shards: range | None, columns: Mapping[str, str]
    ) -> tuple[Provenance, dict[str, str]]:
        """Return the provenance of a job, and the digest of each of its inputs by name.

        `shards` are the shards on which the job depends, or None for all of them. `columns` has the digests of the
        columns of the manifest on which the job depends, by keys such as `manifest/shards/00000.json#images`.
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
        if (stage.name, names) not in self._also:  # `also` may take long, so its result is kept for other shards.
            self._also[stage.name, names] = stage.also(run, *names)
        brought |= self._also[stage.name, names]
        keys = {**stage.keys(run.config, *names), **({"brought": brought} if brought else {})}
        provenance = Provenance(run.root, stage.name, stage.version, keys, {**artefacts, **columns})
        return provenance, digests | brought

    def _digest(self, source: Outside | Artefact) -> str:
        """Return the digest of a file that the user supplied, or of an artefact outside the run's folder.

        Raises InputError if the user's file cannot be read, and IntegrityError if the artefact's record cannot be read.
        """
        key = str(source.path)
        if key not in self._digests:
            is_file = isinstance(source, Outside)
            try:
                self._digests[key] = file_sha256(source.path) if is_file else read_json(source.commit)["check"]
            except OSError as error:
                raise InputError(
                    f"jointspace cannot read {source.path} ({error}). Correct the name of the file in the"
                    " configuration."
                ) from error
        return self._digests[key]

    def _commit_paths(self, source: Input, shards: range | None) -> list[str]:
        """Return the paths of the commit records of an input, relative to the run's folder.

        For an artefact of shards, the list has the records of the shards with the numbers in `shards`, or one pattern
        for the records of all shards if `shards` is None. For an artefact of which readers use only the value under one
        key of its record, the path ends with `#` and this key. The list is empty for a file that the user supplied, for
        the demo collection, and for an artefact outside the run's folder.
        """
        if isinstance(source, Outside):
            return []
        if isinstance(source, Shards):
            commits = [source.every_commit] if shards is None else [source.commit(n) for n in shards]
            key = ""
        else:
            commits = [source.commit]
            key = source.key
        if commits[0] == self._demo.commit or not commits[0].is_relative_to(self.run.root):
            return []
        return [commit.relative_to(self.run.root).as_posix() + (f"#{key}" if key else "") for commit in commits]
