"""What a run computes with: parts of its shards, processes, a device, Dask's workers."""

from functools import cached_property
from typing import TYPE_CHECKING

from pipeline import runtime
from pipeline.device import BATCH, GPU_BATCH
from pipeline.run.parts import share

if TYPE_CHECKING:
    import torch

    from pipeline.config import Config
    from pipeline.storage.manifest import Manifest

DECODERS = 2
"""Processes that decode beside a processor that computes, and threads that a GPU's own process needs."""


class Resources:
    """By the configuration and the manifest of a run."""

    config: "Config"
    manifest: "Manifest"

    @cached_property
    def parts(self) -> list[range]:
        """The shards of each part; none of some where there are fewer shards than parts."""
        return [share(self.manifest.n_shards, part, self.config.parts) for part in range(self.config.parts)]

    @property
    def sums(self) -> str:
        """Where `pipeline.mapreduce` computes for a whole stage: at the Dask scheduler that the configuration gives the
        address of, or here."""
        scheduler = self.config.scheduler
        return scheduler if scheduler and "://" in scheduler else "local"

    @property
    def device(self) -> "torch.device":
        """The device that networks run on."""
        from pipeline.device import find_device

        return find_device(self.config.device)

    @property
    def gpu(self) -> "torch.device | None":
        """The GPU for products of matrices; None where they are computed on the processor."""
        from pipeline.device import find_gpu

        return find_gpu(self.config.device)

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
