"""An opened run: its configuration, its manifest, the artefacts of its stages, and its devices.

The function of a stage gets a StageRun, which opens only what the stage declares.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.compute import runtime
from pipeline.compute.device import CPU_BATCH_IMAGES, GPU_BATCH_IMAGES, find_device, find_gpu
from pipeline.errors import UsageError, similar_name
from pipeline.run.layout import Artefact, Layout, Shards
from pipeline.run.stage import Input, Job, NamedInputs, Names, Stage, UndeclaredInputError, list_inputs

if TYPE_CHECKING:
    import numpy as np
    import torch

    from pipeline.config.names import Config
    from pipeline.models.joint_model import JointModel
    from pipeline.storage.batch import FileBatch
    from pipeline.storage.embeddings import Embeddings
    from pipeline.storage.features import Features
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.pairs import SplitPairs
    from pipeline.storage.parameters import Parameters
    from pipeline.storage.sources import ImageSource
    from pipeline.storage.stored_index import StoredIndex

log = logging.getLogger(__name__)
MIN_DECODERS = 2
"""Default number of decoding processes if the encoder runs on the CPU. If the encoder runs on a GPU, the default is at
least this number."""
GPU_THREADS = 2
"""Number of threads of a job that are not used for decoding, but left to the processes that use GPUs. For each photo, a
process that uses a GPU needs a small fraction of the time that decoding takes, so the number does not grow with the
number of GPUs."""


class Storable(Protocol):
    """A model or a generator that can be stored."""

    def settings(self) -> Mapping[str, Any]: ...  # Any: the JSON differs from class to class

    def tensors(self) -> "Mapping[str, np.ndarray]": ...


class Run:
    """The run in the folder `root`. Each file of the run is read when it is first used.

        run = Run("results/demo")
        run.model("ncca").details["training_log"]

    If `config` is given, it replaces the stored configuration in memory, and the file in the folder stays as it is.
    """

    def __init__(self, root: Path | str, config: "Config | None" = None) -> None:
        self.root = Path(root)
        if config is not None:
            self.__dict__["config"] = config

    @cached_property
    def layout(self) -> Layout:
        return Layout(self.root, Path(self.config.data_root))

    @cached_property
    def config(self) -> "Config":
        """The configuration of the run. Raises UsageError if the folder is not a run, or if its configuration is not
        valid."""
        from pipeline.config.loading import load

        path = Layout(self.root).config
        if not path.exists():
            raise not_a_run(self.root)
        try:
            return load(path)
        except UsageError as error:
            raise UsageError(
                f"{error} If an earlier version of jointspace made this run, start the run anew from its"
                " configuration file with `jointspace run CONFIG`."
            ) from error

    @cached_property
    def manifest(self) -> "Manifest":
        from pipeline.storage.manifest import Manifest

        return Manifest(self.layout.manifest.path)

    @property
    def images(self) -> "ImageSource":
        """The source of the photos in the folder in which `ingest` found them."""
        from pipeline.storage.sources import ImageSource

        return ImageSource(self.manifest.root, self.config.collection.follow_links)

    @property
    def photographs(self) -> "ImageSource":
        """The source of the photos in the folder in which they are now.

        This is the folder that `ingest` read, or the folder data_root of the configuration if only data_root still
        exists. A warning is logged if the folder that `ingest` read no longer exists.
        """
        from pipeline.storage.sources import ImageSource

        root = self.manifest.root
        data_root = Path(self.config.data_root)
        if not os.path.isdir(root) and os.path.isdir(data_root):
            log.warning("%s no longer exists. The photos are read from data_root, %s.", root, data_root)
            root = data_root
        elif not os.path.isdir(root):
            log.warning(
                "Neither %s nor data_root, %s, exists. Set data_root to the folder of the photos.", root, data_root
            )
        return ImageSource(root, self.config.collection.follow_links)

    # --- artefacts

    @cached_property
    def features(self) -> "Features":
        from pipeline.storage.features import Features

        return Features(self.manifest, lambda encoder: self.layout.features(encoder).folder)

    def pairs(self, *splits: str) -> "SplitPairs":
        """Return the ids of the captioned images of some splits, and the ids of their captions.

        Raises InputError if no image of these splits has a caption.
        """
        from pipeline.storage.pairs import split_pairs

        return split_pairs(self.manifest, *splits)

    def embeddings(self, model: str) -> "Embeddings":
        from pipeline.storage.embeddings import Embeddings

        return Embeddings(self.manifest, self.layout.embeddings(model).folder)

    def index(self, model: str) -> "StoredIndex":
        """Open the index of a model for searching, with the photos that were added to it."""
        from pipeline.storage.stored_index import open_index

        return open_index(self.layout.index(model).path)

    def encoder(self, name: str) -> "Parameters":
        """Read the settings, tensors and details of the image encoder `name`. Raises IntegrityError if it is missing or
        damaged."""
        from pipeline.storage.parameters import ENCODER

        return self._parameters(self.layout.encoder(name), ENCODER)

    def text_encoder(self, name: str) -> "Parameters":
        """Read the settings, tensors and details of the text encoder `name`. Raises IntegrityError if it is missing or
        damaged."""
        from pipeline.storage.parameters import TEXT_ENCODER

        return self._parameters(self.layout.text_encoder(name), TEXT_ENCODER)

    def model(self, name: str) -> "Parameters":
        """Read the settings, tensors and details of the model `name`. Raises IntegrityError if it is missing or
        damaged."""
        return self._parameters(self.layout.model(name))

    def generator(self, name: str) -> "Parameters":
        """Read the settings, tensors and details of the generator `name`. Raises IntegrityError if it is missing or
        damaged."""
        return self._parameters(self.layout.generator(name))

    def _parameters(self, artefact: Artefact, kind: str = "model") -> "Parameters":
        from pipeline.storage.parameters import read_parameters

        return read_parameters(artefact.path / "model.safetensors", kind)

    def restored(self, name: str) -> "tuple[JointModel, Parameters]":
        """Return the model `name`, ready to embed images and sentences on the CPU, and its stored parameters."""
        from pipeline.config.stored import restore

        stored = self.model(name)
        where = self.layout.model(name).path
        return restore(stored.details["registered"], stored.settings, stored.tensors, where), stored

    def chosen(self, name: str) -> "Parameters | None":
        """Read the model from which the refit `name` takes its hyperparameters, which were chosen on dev.

        Return None if the model `name` is not a refit, and therefore chooses its own hyperparameters when it is fitted.
        """
        base = self.config.refitted(name)
        return self.model(base) if base else None

    def write_model(
        self, job: Job, model: Storable, details: Mapping[str, object], batch: "FileBatch | None" = None
    ) -> None:
        """Write the settings and tensors of a model or a generator into the folder of its job.

        `details` are stored in the commit record. Without a `batch`, the files are published at once. With a `batch`,
        they appear only when the caller publishes the batch.
        """
        from pipeline.storage.parameters import MODEL, write_parameters

        path = job.path / "model.safetensors"
        settings = model.settings()
        about = {"settings": settings, "provenance": job.provenance, "details": details}
        write_parameters(path, MODEL, model.tensors(), **about, batch=batch)

    # --- devices and processes

    @property
    def sums(self) -> str:
        """The place where sums over all shards are computed: the address of a running Dask scheduler, or `local` for
        this process.

        If `scheduler` is the name of a cluster that each command starts itself, such as `slurm`, the place is `local`
        too.
        """
        scheduler = self.config.scheduler
        return scheduler if scheduler and "://" in scheduler else "local"

    @property
    def device(self) -> "torch.device":
        """The device on which networks run, which the key `device` of the configuration chooses."""
        return find_device(self.config.device)

    @property
    def gpu(self) -> "torch.device | None":
        """The GPU that computes products of matrices, or None if the CPU computes them."""
        return find_gpu(self.config.device)

    def precision(self, name: str) -> "torch.dtype":
        """Return the dtype of matrix products for `name`, a precision in the configuration such as `float32`.

        For the name `auto`, the dtype depends on the device of the run.
        """
        from pipeline.compute.precision import choose_precision

        return choose_precision(name, self.device)

    @property
    def batch_size(self) -> int:
        """Number of images in one forward pass of an encoder: the key extract.batch_size. If this key is null, the
        number is a default for the CPU or for the GPU."""
        return self.config.extract.batch_size or (CPU_BATCH_IMAGES if self.gpu is None else GPU_BATCH_IMAGES)

    @property
    def decoders(self) -> int:
        """Number of processes that decode images.

        If the job has several GPUs, its processes share the decoders, and the environment variable DECODERS_VARIABLE
        has the number for this process. Otherwise, the number is extract.decode_workers. If this key is null and the
        encoder runs on the CPU, the number is MIN_DECODERS, because the encoder keeps the CPU busy. If the key is null
        and the encoder runs on a GPU, the number is the number of threads of the job less GPU_THREADS, and at least
        MIN_DECODERS. Raises UsageError if the variable is not a number.
        """
        if share := os.environ.get(runtime.DECODERS_VARIABLE):
            if not share.isdecimal():
                raise UsageError(
                    f"{runtime.DECODERS_VARIABLE} must be a number of processes, not {share!r}. Unset this variable,"
                    " and set extract.decode_workers in the configuration instead."
                )
            return int(share)
        chosen = self.config.extract.decode_workers
        if chosen is not None:
            return chosen
        return MIN_DECODERS if self.gpu is None else max(MIN_DECODERS, runtime.threads() - GPU_THREADS)


class StageRun(Run):
    """The run that the function of a stage gets. It opens only the declared inputs and outputs of the stage.

    `every` lists the names of the jobs in this call. `inputs` joins the inputs that the stage's `reads` and `may_read`
    return for each of these jobs. The layout raises UndeclaredInputError for any other artefact of the run. All methods
    that open an artefact therefore raise this error too, because they take the path from the layout.

    A stage over shards may declare `columns` instead of the whole manifest. UndeclaredInputError is then raised if the
    function reads a table of the manifest that is not in `columns`. The table `images` may also be read if `splits` is
    in `columns`.
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
    def manifest(self) -> "Manifest":
        from pipeline.storage.manifest import Manifest

        if self._stage.sharded and not self._has_manifest:
            return Manifest(Layout(self.root).manifest.path, self._require_column)
        return super().manifest

    def _require_declared(self, made: Artefact | Shards) -> None:
        # The vocabularies of an ensemble are a part of its model, and `index/ncca/00` is a part of `index/ncca`.
        whole = made.name.removesuffix("/vocabulary.json")
        if whole not in self._declared and not any(name.startswith(f"{whole}/") for name in self._declared):
            raise UndeclaredInputError(
                f"{self._stage.command} opens {made.name}, which the stage does not declare. Add this artefact to"
                " `reads` of the stage."
            )

    def _require_column(self, name: str) -> None:
        columns = self._stage.columns
        if name not in columns and not (name == "images" and "splits" in columns):
            raise UndeclaredInputError(
                f"{self._stage.command} reads {name} of the manifest, but declares only {', '.join(columns)}. Add"
                f" {name} to `columns` of the stage."
            )


def shards_of_part(shards: int, part: int, parts: int) -> range:
    """Return the numbers of the shards in part number `part` of `parts`, if a run has `shards` shards.

    The sizes of the parts differ by one shard at most.
    """
    return range(-(-part * shards // parts), -(-(part + 1) * shards // parts))


def not_a_run(folder: Path) -> UsageError:
    """Return the error for a folder that a user has named as the folder of a run, but that is not a run."""
    near = _near_run(folder)
    question = f" Did you mean {near}?" if near else ""
    return UsageError(
        f"{folder} is not the folder of a run.{question} Name the folder of a run, such as results/demo, or start a new"
        " run with `jointspace run CONFIG`."
    )


def _near_run(folder: Path) -> str | None:
    """Return the folder of a run that the user may have meant by `folder`, or None if no such run exists.

    This is a run above or below `folder`, or a run next to `folder` with a similar name.
    """
    around = [above for above in folder.absolute().parents[:3] if is_run(above)]
    below = [path for kind in ("*", "results/*") for path in sorted(folder.glob(kind)) if is_run(path)]
    if found := [*around, *below]:
        return str(found[0]) if folder.is_absolute() else os.path.relpath(found[0])
    return similar_name(str(folder), [str(path) for path in folder.parent.glob("*") if is_run(path)])


def is_run(folder: Path) -> bool:
    """Return whether the folder is a run: it has the file of the configuration, and a folder `manifest` or `index`.

    The file alone is not enough, since other programs write files of this name too.
    """
    layout = Layout(folder)
    return layout.config.is_file() and (layout.manifest.path.is_dir() or (folder / "index").is_dir())
