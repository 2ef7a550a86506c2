"""A run, opened: its configuration, its manifest, and the artefacts that its stages make and read."""

import logging
import math
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.compute import runtime
from pipeline.compute.device import BATCH, GPU_BATCH, find_device, find_gpu
from pipeline.errors import InputError, UsageError, meant
from pipeline.run.layout import Artefact, Layout, Shards
from pipeline.run.stage import Input, Job, Names, Outside, Stage

if TYPE_CHECKING:
    import torch

    from pipeline.config.names import Config
    from pipeline.storage.batch import FileBatch
    from pipeline.storage.commit import Commits
    from pipeline.storage.embeddings import Embeddings
    from pipeline.storage.features import Features
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.pairs import SplitPairs
    from pipeline.storage.parameters import Parameters
    from pipeline.storage.sources import ImageSource
    from pipeline.storage.stored_index import StoredIndex

log = logging.getLogger(__name__)
DECODERS = 2
"""Processes that decode beside a processor that computes, and threads that a GPU's own process needs."""
IMAGES_TOGETHER = 1 << 16
MOST_CHUNKS = 64


class Run:
    """The run in the folder `root`. Everything is read when first used.

        run = Run("results/demo")
        run.model("ncca").details["training_log"]

    A `config` that is given is used in place of the stored one; it is not written.
    """

    def __init__(self, root: Path | str, config: "Config | None" = None) -> None:
        self.root = Path(root)
        self._digests: dict[str, str] = {}
        self._others: dict[tuple[str, Names], Mapping[str, str]] = {}
        if config is not None:
            self.__dict__["config"] = config

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.root, Path(self.config.data_root))

    @cached_property
    def _commits(self) -> "Commits":
        from pipeline.storage.commit import Commits

        return Commits(self.root)

    @cached_property
    def config(self) -> "Config":
        """Raises UsageError where the folder holds no run."""
        from pipeline.config.loading import load

        path = Layout(self.root).config
        if not path.exists():
            raise UsageError(
                f"{self.root} holds no run (there is no {path}); {_near_run(self.root)}name the folder of"
                " a run, such as results/demo, or make a run: jointspace run CONFIG"
            )
        try:
            return load(path)
        except UsageError as error:
            raise UsageError(
                f"{error}; if an earlier version made this run, make it again from its configuration"
            ) from error

    @cached_property
    def manifest(self) -> "Manifest":
        from pipeline.storage.manifest import Manifest

        return Manifest(self.layout.manifest.path)

    @property
    def images(self) -> "ImageSource":
        """The photographs where `ingest` found them."""
        from pipeline.storage.sources import ImageSource

        return ImageSource(self.manifest.root, self.config.collection.follow_links)

    @property
    def photographs(self) -> "ImageSource":
        """The photographs where they are now: in data_root, if the collection has moved there since `ingest`."""
        from pipeline.storage.sources import ImageSource

        root, data_root = self.manifest.root, Path(self.config.data_root)
        if not os.path.isdir(root) and os.path.isdir(data_root):
            log.warning("%s no longer exists; using data_root, %s", root, data_root)
            root = data_root
        elif not os.path.isdir(root):
            log.warning(
                "neither %s nor data_root, %s, exists; set data_root to the folder of the photos", root, data_root
            )
        return ImageSource(root, self.config.collection.follow_links)

    @cached_property
    def features(self) -> "Features":
        from pipeline.storage.features import Features

        return Features(self.manifest, self.root / "features")

    def pairs(self, *splits: str) -> "SplitPairs":
        """The images of some splits and their sentences."""
        from pipeline.storage.pairs import split_pairs

        return split_pairs(self.manifest, *splits)

    def embeddings(self, model: str) -> "Embeddings":
        """The embeddings of a model."""
        from pipeline.storage.embeddings import Embeddings

        return Embeddings(self.manifest, self.layout.embeddings(model).folder)

    def index(self, model: str) -> "StoredIndex":
        """The index of a model, with all that a search needs."""
        from pipeline.storage.stored_index import open_index

        return open_index(self.layout.index(model).path)

    def encoder(self, name: str) -> "Parameters":
        """The settings, tensors and details of an encoder of this run."""
        from pipeline.storage.parameters import ENCODER

        return self._parameters(self.layout.encoder(name), ENCODER)

    def text_encoder(self, name: str) -> "Parameters":
        """The same of a text encoder."""
        from pipeline.storage.parameters import TEXT_ENCODER

        return self._parameters(self.layout.text_encoder(name), TEXT_ENCODER)

    def model(self, name: str) -> "Parameters":
        """The same of a model."""
        return self._parameters(self.layout.model(name))

    def restored(self, name: str) -> "tuple[Any, Parameters]":
        """A model that computes again, and what is stored of it."""
        from pipeline.config.stored import restore

        stored = self.model(name)
        where = self.layout.model(name).path
        return restore(stored.details["registered"], stored.settings, stored.tensors, where), stored

    def write_model(self, job: Job, model: Any, details: Mapping[str, Any], batch: "FileBatch | None" = None) -> None:
        """Publish the settings and tensors of a model or a generator in the folder of its job."""
        from pipeline.storage.parameters import MODEL, write_parameters

        path, settings = job.path / "model.safetensors", model.settings()
        about = {"settings": settings, "provenance": job.provenance, "details": details}
        write_parameters(path, MODEL, model.tensors(), **about, batch=batch)

    def generator(self, name: str) -> "Parameters":
        """The same of a generator."""
        return self._parameters(self.layout.generator(name))

    def _parameters(self, artefact: Artefact, kind: str = "model") -> "Parameters":
        from pipeline.storage.parameters import read_parameters

        return read_parameters(artefact.path / "model.safetensors", kind)

    def chosen(self, name: str) -> "Parameters | None":
        """The model that `name` is a refit of, which has chosen on dev; None for one that chooses for itself."""
        base = self.config.refitted(name)
        return self.model(base) if base else None

    # --- what it computes with

    @cached_property
    def parts(self) -> list[range]:
        """The shards of each part; none of some where there are fewer shards than parts."""
        return [share(self.manifest.n_shards, part, self.config.parts) for part in range(self.config.parts)]

    @property
    def sums(self) -> str:
        """Where sums over all shards are computed: the address of a Dask scheduler, or `local`."""
        scheduler = self.config.scheduler
        return scheduler if scheduler and "://" in scheduler else "local"

    @property
    def device(self) -> "torch.device":
        """The device that networks run on."""
        return find_device(self.config.device)

    @property
    def gpu(self) -> "torch.device | None":
        """The GPU for products of matrices; None where they are computed on the processor."""
        return find_gpu(self.config.device)

    def precision(self, name: str) -> "torch.dtype":
        """The dtype of the heaviest products, where a section says `name`: `auto` chooses by the device."""
        from pipeline.compute.precision import choose_precision

        return choose_precision(name, self.device)

    @property
    def batch_size(self) -> int:
        """Images in one forward pass of an encoder."""
        return self.config.extract.batch_size or (BATCH if self.gpu is None else GPU_BATCH)

    @property
    def decoders(self) -> int:
        """Processes that decode images: few beside a processor that computes, as many as there is room for beside a
        GPU."""
        chosen = self.config.extract.decode_workers
        if chosen is not None:
            return chosen
        return DECODERS if self.gpu is None else max(DECODERS, runtime.threads() - DECODERS)

    # --- its jobs

    def job(self, stage: Stage, names: Names, number: int | None = None) -> Job:
        """What a call of the stage's function makes, and from what; `number` is the shard of a sharded stage.

        Only commits are read. Raises IntegrityError naming an input that is not there, or that is not valid.
        """
        from pipeline.storage.commit import Provenance

        inputs, brought, places = {}, {}, {}
        for source in stage.reads(self.config, self.layout, *names):
            if (place := self._place(source, number)) is None:
                inputs[source.name] = brought[source.name] = self.digest(source)
            else:
                inputs[source.name] = places[place] = self._commits.require(place)
        rows = None
        if number is not None:
            rows = self.manifest.shard(number)
            shard = self._place(self.layout.file(f"manifest/shards/{number:05d}.json"), None)
            places |= {f"{shard}#{column}": rows.fingerprints[column] for column in stage.columns}
        if (stage.name, names) not in self._others:  # which may take long to compute
            self._others[stage.name, names] = stage.also(self, *names)
        brought |= self._others[stage.name, names]
        keys = {**stage.keys(self.config, *names), **({"brought": brought} if brought else {})}
        provenance = Provenance(self.root, stage.name, stage.version, keys, places)
        outputs = stage.outputs(self.layout, *names)
        path = outputs[0].path if isinstance(outputs[0], Artefact) else outputs[0].shard(number)
        return Job(provenance, {**inputs, **brought}, path, outputs, names, number, rows)

    def is_done(self, job: Job) -> bool:
        """Whether what a job makes is there: made like this, from what is there now, and whole."""
        commits = [one.commit if isinstance(one, Artefact) else one.commit(job.number) for one in job.outputs]
        commits = [commit for commit in commits if commit.suffix == ".json"]  # others vouch for pages and pictures
        return bool(commits) and all(self._commits.is_done(commit, job.provenance) for commit in commits)

    def digest(self, source: Outside | Artefact) -> str:
        """Of what a person brought, or what lies outside of the run; looked at once. Raises InputError where a file
        cannot be read."""
        from pipeline.storage.files import file_sha256
        from pipeline.storage.json_files import read_json

        key = str(source.path)
        if key in self._digests:
            return self._digests[key]
        try:
            digest = file_sha256(source.path) if isinstance(source, Outside) else read_json(source.commit)["check"]
        except OSError as error:
            raise InputError(f"cannot read {source.path} ({error}); correct its name in the configuration") from error
        self._digests[key] = digest
        return digest

    def _place(self, source: Input, number: int | None) -> str | None:
        """Where the commit of an input lies below the run: of shards that of this `number`, or those of all; None for
        what is not the run's."""
        if isinstance(source, Outside):
            return None
        if isinstance(source, Shards):
            commit, key = source.every_commit if number is None else source.commit(number), ""
        else:
            commit, key = source.commit, source.key
        if commit == self.layout.demo.commit or not commit.is_relative_to(self.root):
            return None
        return commit.relative_to(self.root).as_posix() + (f"#{key}" if key else "")


def share(shards: int, part: int, parts: int) -> range:
    """The shards of part number `part` of `parts`, which differ by one shard at most."""
    return range(-(-part * shards // parts), -(-(part + 1) * shards // parts))


def chunks(shards: int, shard_size: int) -> list[range]:
    """Ranges of shards of about IMAGES_TOGETHER images, at most MOST_CHUNKS, whatever the number of parts: what is
    summed over them does not depend on where it was computed."""
    size = max(IMAGES_TOGETHER // shard_size, math.ceil(shards / MOST_CHUNKS), 1)
    return [range(first, min(first + size, shards)) for first in range(0, shards, size)]


def _near_run(folder: Path) -> str:
    """`did you mean FOLDER? ` for a run around or below `folder`, or beside it under a name that is spelt like it."""
    around = [above for above in folder.absolute().parents[:3] if _is_run(above)]
    below = [one for kind in ("*", "results/*") for one in sorted(folder.glob(kind)) if _is_run(one)]
    if found := [*around, *below]:
        return f"did you mean {found[0] if folder.is_absolute() else os.path.relpath(found[0])}? "
    return meant(str(folder), [str(one) for one in folder.parent.glob("*") if _is_run(one)])


def _is_run(folder: Path) -> bool:
    """Other programs have a file of the configuration's name, too."""
    layout = Layout(folder)
    return layout.config.is_file() and (layout.manifest.path.is_dir() or (folder / "index").is_dir())
