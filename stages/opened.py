"""An encoder of a run, ready to take photographs."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pipeline.images.extraction import Extractor
    from pipeline.images.preprocess import View
    from pipeline.run import Run


class OpenedEncoder(NamedTuple):
    """What an encoder takes of a photograph, what makes features of that, and what a shard's card says of it."""

    view: "View"
    extractor: "Extractor"
    described: dict[str, Any]


def open_encoder(run: "Run", name: str) -> OpenedEncoder:
    """An encoder of the run, on its device."""
    from pipeline.config.stored import restore_encoder
    from pipeline.images.preprocess import View

    settings = run.config.extract
    parameters = run.encoder(name)
    network = restore_encoder(parameters.settings, parameters.tensors)
    work = network.work(run.config.device, settings.precision, run.batch_size)
    if settings.batch_size is None:
        work.extractor.grow(network.preprocessing.side)
    precision = {"precision": work.extractor.plan.precision}
    described = {"name": name, "sha256": parameters.sha256, **parameters.settings, **precision}
    return OpenedEncoder(View(network.preprocessing, work.describe), work.extractor, described)
