"""A run, opened: its configuration, its manifest, and the artefacts that its stages make and read."""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import InputError, UsageError
from pipeline.remote.paths import Place, place
from pipeline.run.layout import Artefact, Layout, Shards
from pipeline.run.nearby import near_run
from pipeline.run.resources import Resources
from pipeline.run.stage import Input, Job, Names, Outside, Stage

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.remote.scratch import Scratch
    from pipeline.storage.batch import FileBatch
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.bundles import Bundles
    from pipeline.storage.embeddings import Embeddings
    from pipeline.storage.gather import Features
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.pairs import SplitPairs
    from pipeline.storage.parameters import Parameters
    from pipeline.storage.sources import ImageSource
    from pipeline.storage.text_shards import Texts


class Run(Resources):
    """The run in the folder `root`. Everything is read when first used.

        run = Run("results/demo")
        run.model("ncca").details["training_log"]

    A configuration that is given is the run's from now on.
    """

    def __init__(self, root: Path | str, config: "Config | None" = None) -> None:
        self.root = Path(root)
        self._fingerprints: dict[str, str] = {}
        self._others: dict[tuple[str, Names], Mapping[str, str]] = {}
        if config is not None:
            self.__dict__["config"] = config

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.root, place(self.config.data_root))

    @cached_property
    def config(self) -> "Config":
        """Raises UsageError where the folder holds no run."""
        from pipeline.config import load

        path = Layout(self.root).config
        if not path.exists():
            raise UsageError(
                f"{self.root} holds no run (there is no {path}); {near_run(self.root)}name the folder of one, or start"
                " one there with --config FILE"
            )
        return load(path)

    @cached_property
    def manifest(self) -> "Manifest":
        from pipeline.storage.manifest import Manifest

        return Manifest(self.layout.manifest.path)

    @property
    def images(self) -> "ImageSource":
        """The photographs where `ingest` found them."""
        from pipeline.storage.sources import ImageSource

        root, links = self.manifest.root, self.config.collection.follow_links
        if isinstance(root, Path):
            return ImageSource(root, links)
        return ImageSource(root, links, self.scratch, self.manifest.objects)

    @cached_property
    def scratch(self) -> "Scratch":
        """Where a job copies what is remote."""
        from pipeline.remote.scratch import Scratch

        return Scratch.of(self.config.remote)

    @property
    def photographs(self) -> "ImageSource":
        """The photographs where they are now: in data_root, if the collection has moved there."""
        from pipeline.storage.sources import ImageSource, find_photographs

        root = find_photographs(self.manifest.root, place(self.config.data_root))
        return ImageSource(root, self.config.collection.follow_links)

    @cached_property
    def features(self) -> "Features":
        from pipeline.storage.gather import Features

        return Features(self.manifest, self.root / "features")

    def texts(self, shards: Mapping[str, Shards]) -> "Texts":
        """Sentences or documents as vectors, from the `shards` of each text encoder."""
        from pipeline.storage.text_shards import Texts

        return Texts(self.manifest, {name: one.folder for name, one in shards.items()})

    def pairs(self, *splits: str) -> "SplitPairs":
        """The images of some splits and their sentences."""
        from pipeline.storage.pairs import split_pairs

        return split_pairs(self.manifest, *splits)

    def embeddings(self, model: str, multi_vector: bool | None = None) -> "Embeddings":
        """The embeddings of a model, required to be multi-vector or not where `multi_vector` says so."""
        from pipeline.storage.embeddings import Embeddings

        return Embeddings(self.manifest, self.layout.embeddings(model).folder, model, multi_vector)

    def bundle(self, model: str) -> "Bundle | Bundles":
        """The index of a model, with all that a search needs."""
        from pipeline.storage.bundles import open_bundle

        return open_bundle(self.layout.index(model).path)

    def encoder(self, name: str) -> "Parameters":
        """The settings, tensors and details of an encoder of this run."""
        from pipeline.storage.provenance import read_encoder

        return read_encoder(self.root / "encoders", name)

    def text_encoder(self, name: str) -> "Parameters":
        """The same of a text encoder."""
        from pipeline.storage.parameters import TEXT_ENCODER
        from pipeline.storage.provenance import read_encoder

        return read_encoder(self.root / "text" / "encoders", name, TEXT_ENCODER)

    def model(self, name: str) -> "Parameters":
        """The same of a model."""
        return self._parameters(self.layout.model(name))

    def embedded_model(self, name: str) -> "tuple[Embeddings, Parameters]":
        """The embeddings of a model, and the model. Raises IntegrityError where another model made them."""
        from pipeline.storage.fingerprint import require_same

        embeddings, parameters = self.embeddings(name), self.model(name)
        made_by = {str(embeddings.folder): embeddings.model, str(self.layout.model(name).path): parameters.fingerprint}
        require_same("model", made_by)
        return embeddings, parameters

    def write_model(self, job: Job, model: Any, details: Mapping[str, Any], batch: "FileBatch | None" = None) -> None:
        """Publish the settings and tensors of a model or a generator in the folder of its job."""
        from pipeline.storage.parameters import MODEL, write_parameters

        path, settings = job.path / "model.safetensors", model.settings()
        about = {"settings": settings, "fingerprint": job.fingerprint, "details": details}
        write_parameters(path, MODEL, model.tensors(), **about, batch=batch)

    def generator(self, name: str) -> "Parameters":
        """The same of a generator."""
        return self._parameters(self.layout.generator(name))

    def _parameters(self, made: Artefact) -> "Parameters":
        from pipeline.storage.parameters import MODEL, read_parameters

        return read_parameters(made.path / "model.safetensors", MODEL)

    def require_like_chosen(self, name: str, job: Job, learned: Mapping[str, Any]) -> None:
        """Raises IntegrityError where a refit has `learned` from other encoders, of images or of text, or over another
        vocabulary, than the model that it refits."""
        from pipeline.storage.provenance import require_same_origins

        if base := self.chosen(name):
            where = self.layout.model(self.config.refitted(name)).path
            require_same_origins({str(job.path): learned, str(where): base.details})

    def chosen(self, name: str) -> "Parameters | None":
        """The model that `name` is a refit of, which has chosen on dev; None for one that chooses for itself."""
        base = self.config.refitted(name)
        return self.model(base) if base else None

    def job(self, stage: Stage, names: Names, number: int | None = None) -> Job:
        """What a call of the stage's function makes, and from what; `number` is the shard of a sharded stage.

        Only commits are read. Raises IntegrityError naming an input that is not there.
        """
        from pipeline.storage.fingerprint import fingerprint

        rows = None if number is None else self.manifest.shard(number)
        reads = stage.reads(self.config, self.layout, *names)
        inputs = {name: self._fingerprint(one, number) for name, one in reads.items()}
        if rows is not None:
            inputs |= {column: rows.fingerprints[column] for column in stage.columns}
        if (stage.name, names) not in self._others:  # which may take long to compute
            self._others[stage.name, names] = stage.also(self, *names)
        inputs |= self._others[stage.name, names]
        outputs = stage.outputs(self.layout, *names)
        path = outputs[0].path if isinstance(outputs[0], Artefact) else outputs[0].shard(number)
        digest = fingerprint(stage.name, stage.version, stage.keys(self.config, *names), inputs)
        return Job(digest, inputs, path, outputs, names, number, rows)

    def digest(self, one: Outside) -> str:
        """Of what a person brought, looked at once."""
        return self._fingerprint(one, None)

    def _fingerprint(self, one: Input, number: int | None) -> str:
        """What an input records of itself: of shards the one of this `number`, or what all of them are."""
        from pipeline.storage.commits import combined_fingerprint, fingerprint_of

        if isinstance(one, Outside):
            return self._remembered(str(one.path), lambda: _digest(one.path))
        if isinstance(one, Artefact):
            return self._remembered(str(one.commit), lambda: fingerprint_of(one.commit))
        if number is not None:
            return fingerprint_of(one.commit(number))
        return combined_fingerprint(fingerprint_of(one.commit(n)) for n in range(self.manifest.n_shards))

    def _remembered(self, key: str, find: Callable[[], str]) -> str:
        if key not in self._fingerprints:
            self._fingerprints[key] = find()
        return self._fingerprints[key]


def _digest(path: Place) -> str:
    """Of a file that a person brought; what is remote is taken for unchanged where size and tag are the same. Raises
    InputError where it cannot be read."""
    from pipeline.remote.stores import state
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.reading import file_sha256

    if not isinstance(path, Path):
        return fingerprint("remote", 1, [str(path), state(path)])

    try:
        return file_sha256(path)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error}); correct its name in the configuration") from error
