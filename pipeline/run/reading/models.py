"""Models of a run: their restoration, their description in stored details, and the checkpoints of a training."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pipeline.run import Job, Run
from pipeline.storage.parameters import Checkpoints

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config.section import Section
    from pipeline.models.joint_model import JointModel
    from pipeline.models.neural.training import Checkpoint, Training
    from pipeline.storage.parameters import Parameters
    from pipeline.storage.regions import RegionRows


def describe_model(run: Run, name: str) -> dict[str, Any]:
    """Return the details that are stored with the model `name`: its model type, its training and its settings."""
    model = run.config.model(name)
    return {
        "model": name,
        "refits": run.config.refitted(name),
        "registered": model.spec.name,
        "hyperparameters": model.hyperparameters,
        "named": model.named,
        "training": model.training,
    }


def restore_model(run: Run, name: str) -> "tuple[JointModel, Parameters]":
    """Return a fitted model of the run and its stored parameters. The model is on the GPU if the run uses a GPU."""
    model, stored = run.restored(name)
    if (gpu := run.gpu) is not None:
        model.to(gpu)
    return model, stored


def describe_embeddings(stored: "Parameters", metric: str) -> dict[str, Any]:
    """Return the details that embeddings store about the model `stored` that made them, and the `metric` that compares
    them."""
    details = {key: stored.details.get(key) for key in ("model", "refits", "registered")}
    vocabulary = {"vocabulary": stored.details["vocabulary"]} if stored.details.get("vocabulary") else {}
    return {**details, "metric": metric, "made_of": stored.fingerprint, **vocabulary}


def open_region_rows(run: Run, encoders: Iterable[str], image_id: "np.ndarray") -> "RegionRows":
    """Open the regions of the images `image_id` (n,), with the features of some encoders, for a model."""
    from pipeline.storage.regions import RegionRows

    folders = {name: run.layout.regions(name).folder for name in encoders}
    return RegionRows(run.manifest, folders, image_id)


@contextmanager
def follow_training(
    name: str, settings: "Section", job: Job, part: str = ""
) -> "Iterator[tuple[Checkpoint | None, Callable[[Training], None]]]":
    """Follow the training of a model with a progress bar, which shows its `name`, and with checkpoints.

    Yield the checkpoint from which the training of the job resumes, or None, and a function to call after each step.
    The function saves a checkpoint every `checkpoint_seconds` of `settings`. The checkpoints are removed when the block
    ends without an error. If the job has several trainings, `part` is the name of this training, and its checkpoints
    are in a subfolder of this name.
    """
    from tqdm import tqdm

    from pipeline.models.neural.training import Checkpoint

    # Some generators are not trained in epochs, so they do not have these settings.
    seconds = getattr(settings, "checkpoint_seconds", 0)
    epochs = getattr(settings, "epochs", 1)
    checkpoints = Checkpoints(job.path / "checkpoints" / part, job.provenance.fingerprint, seconds)
    latest = checkpoints.latest()
    with tqdm(desc=f"train {name} {part}".strip(), unit="batch", disable=None) as bar:

        def after_step(training: "Training") -> None:
            bar.total = training.steps * epochs
            bar.n = training.steps_done
            bar.update(0)

            def make() -> "tuple[Mapping[str, np.ndarray], Mapping[str, Any]]":
                checkpoint = training.checkpoint()
                return checkpoint.tensors, checkpoint.progress

            checkpoints.offer(make)

        yield Checkpoint(latest.tensors, latest.settings) if latest else None, after_step
    checkpoints.clear()
    with suppress(OSError):  # The folder does not exist, or has the checkpoints of other trainings of the job.
        (job.path / "checkpoints").rmdir()
