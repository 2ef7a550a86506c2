"""The machine: processors, memory, disk, devices, libraries, and which optional ones are missing. And the estimate of
what a collection of so many images will take: hours of extraction, bytes on disk and in memory.

The hours come from images a second that were measured here. The rest is counted from the arrays that a run holds.
"""

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.compute import runtime

if TYPE_CHECKING:
    from pipeline.config.encoders import EncoderEntry
    from pipeline.config.names import Config

GIB = 1 << 30
LEAST_MEMORY, LEAST_DISK = 3 * GIB, 2 * GIB
"""Bytes that the demo needs free; a collection of your own is `plan`'s matter."""
NEEDED = ("click", "h5py", "numpy", "Pillow", "pyarrow", "pydantic", "PyYAML", "safetensors", "scipy", "snakemake")
EXTRAS = {
    "standard": ("cv2", "standard features"),
    "selective-search": ("cv2.ximgproc", "regions by selective search"),
    "open-clip": ("open_clip", "image and text encoders of OpenCLIP"),
    "timm": ("timm", "image encoders of timm"),
    "transformers": ("transformers", "image and text encoders of Hugging Face's transformers"),
    "sentence-transformers": ("sentence_transformers", "text encoders of sentence-transformers"),
    "cluster": ("distributed", "Dask schedulers, and Snakemake on any queue"),
    "serve": ("fastapi", "the page and the JSON API"),
    "parse": ("spacy", "parse trees by spaCy"),
    "fisher": ("skimage", "Fisher vectors of texts"),
    "words": ("gensim", "word vectors learned on the corpus"),
    "heif": ("pillow_heif", "HEIC and AVIF photos"),
    "slurm": ("snakemake_executor_plugin_slurm", "queues of SLURM"),
    "kubernetes": ("dask_kubernetes", "Dask on Kubernetes"),
    "docs": ("material", "this documentation as a site"),
    "metrics": ("pycocoevalcap", "BLEU, ROUGE-L and CIDEr of descriptions, METEOR with Java"),
    "test": ("pytest", "the tests"),
}
"""Extra of this distribution -> a module that it brings, and what for."""


@dataclass(frozen=True)
class Finding:
    """`what` was `found`; `mark` is ok, note (worth knowing) or MISS (needed and missing), `remedy` is what to do."""

    what: str
    found: str
    mark: str = "ok"
    remedy: str | None = None


def examine(folder: Path) -> list[Finding]:
    """All findings, in the order in which they are read; `folder` is where results go."""
    return [*_processor(), *_libraries(), *_torch(), *_faiss(), *_extras(), *_space(folder)]


def free_memory() -> int:
    """Bytes that new processes can have, within what a container allows; 0 where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), 0)
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return free
    return min(free, max(0, limit - used))


def free_disk(folder: Path) -> int:
    """Bytes free on the disk on which `folder` lies, or will."""
    folder = Path(folder).absolute()
    return shutil.disk_usage(next(f for f in (folder, *folder.parents) if f.exists())).free


def _processor() -> Iterator[Finding]:
    wide = sorted({"avx2", "avx512f", "avx512_bf16", "amx_bf16"} & runtime.cpu_flags())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Finding("CPU", f"{cores} cores, {runtime.threads()} threads; {' '.join(wide) or 'no AVX2'}")


def _libraries() -> Iterator[Finding]:
    missing = [name for name in NEEDED if not _version(name)]
    if missing:
        yield Finding("libraries", f"without {', '.join(missing)}", "MISS", f"pip install {' '.join(missing)}")
    else:
        yield Finding("libraries", ", ".join(f"{name} {_version(name)}" for name in ("numpy", "scipy", "snakemake")))
        import numpy  # noqa: F401  whose BLAS is asked for
        from threadpoolctl import threadpool_info

        for pool in threadpool_info():
            kernels = pool.get("architecture") or pool["prefix"]
            version = f"{pool['internal_api']} {pool['version'] or ''}".strip()
            yield Finding(
                "BLAS" if pool["user_api"] == "blas" else "OpenMP",
                f"{version}, {kernels}, {pool['num_threads']} threads",
            )


def _torch() -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding("torch", str(error), "MISS", "pip install torch torchvision")
        return
    yield Finding("torch", f"{torch.__version__}, {torch.get_num_threads()} threads")
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        yield Finding(f"cuda:{number}", f"{device.name}, {device.total_memory / GIB:.0f} GiB")
    if not torch.cuda.device_count():
        yield Finding("GPU", "none that torch sees; everything runs on the CPU", "note")


def _faiss() -> Iterator[Finding]:
    names = sorted(set(metadata.packages_distributions().get("faiss", [])))
    if len(names) > 1:  # each has overwritten files of the other, and uninstalling one removes them
        remedy = f"pip uninstall -y {' '.join(names)}, then pip install {names[-1]}"
        yield Finding("faiss", f"{' and '.join(names)} are installed into the same folder", "MISS", remedy)
    try:
        import faiss
    except ImportError as error:
        yield Finding("faiss", str(error), "MISS", "pip install faiss-cpu")
        return
    gpus = getattr(faiss, "get_num_gpus", int)()
    yield Finding(
        "faiss", f"{faiss.__version__} ({', '.join(names)}), {gpus} GPUs, {faiss.omp_get_max_threads()} threads"
    )


def _extras() -> Iterator[Finding]:
    distributions = metadata.packages_distributions()
    for extra, (module, purpose) in EXTRAS.items():
        if is_installed(module):
            name = distributions.get(module.partition(".")[0], [module])[0]
            yield Finding(f"[{extra}]", f"{name} {_version(name) or ''}".strip())
        else:
            yield Finding(f"[{extra}]", "not installed", "note", f"pip install 'jointspace[{extra}]'   ({purpose})")
    java = shutil.which("java")
    yield Finding("java", java or "not found; descriptions go without METEOR", "ok" if java else "note")


def _space(folder: Path) -> Iterator[Finding]:
    memory, disk = free_memory(), free_disk(folder)
    lacking = "end other programs, or choose smaller extract.batch_size and shard_size"
    yield _free("memory", memory, lacking if 0 < memory < LEAST_MEMORY else None)
    yield _free(f"disk {folder}", disk, "make room, or choose another results_root" if disk < LEAST_DISK else None)


def _free(what: str, free: int, remedy: str | None) -> Finding:
    return Finding(what, f"{free / GIB:.1f} GiB free", "MISS" if remedy else "ok", remedy)


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package above it
        return False


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


WIDEST = 2048
"""Dimensions of features that nothing states."""
WORD = 300
"""Dimensions of published word vectors."""
PROCESS = 1.5e9
"""Bytes of a process that has loaded torch, with a shard of photographs on their way."""
MOMENTS_HELD, EMBEDDINGS_HELD = 12, 3
"""Copies of the moments that `fit` holds, and of a model's embeddings that `build-index` does, at most."""
TERM_BYTES, TERMS = 12, 10
"""Bytes of a term of a sentence in a sparse row, and terms of a sentence."""


@dataclass(frozen=True)
class Speed:
    """Images a second that one encoder's features take here, and their dimension."""

    images_per_second: float
    dim: int


@dataclass(frozen=True)
class Estimate:
    """`hours` of each measured encoder's extraction, in one job; bytes on `disk` and in `memory` (of one job) by what
    they are of; the encoders that were `not_measured`."""

    images: int
    sentences: int
    hours: Mapping[str, float]
    disk: Mapping[str, float]
    memory: Mapping[str, float]
    not_measured: tuple[str, ...]


def estimate(config: "Config", images: int, sentences: int, speeds: Mapping[str, Speed]) -> Estimate:
    """Estimate by the configuration and what was measured of its encoders."""
    import numpy as np  # the machine is examined where NumPy is missing too

    dims = {encoder.name: _dim(config, encoder, speeds) for encoder in config.encoders}
    terms = [_text_dim(config, encoder) for encoder in config.text_encoders]
    width = sum(dims.values()) + sum(terms)
    joint = max(config.fit.dimensions)
    shards = -(-images // config.shard_size)
    jobs = min(shards, 64)
    moments = 4.0 * width**2
    embeddings = 4.0 * joint * (images + sentences)
    stored = np.dtype(config.extract.storage).itemsize
    pixels = [encoder.name for encoder in config.encoders if encoder.spec.reads == "pixels"]
    return Estimate(
        images=images,
        sentences=sentences,
        hours={name: images / speed.images_per_second / 3600 for name, speed in speeds.items()},
        disk={
            "features": stored * images * sum(dims.values()),
            "text": TERM_BYTES * TERMS * sentences * len(terms),
            "moments": moments * (shards + jobs),
            "embeddings": embeddings * len(config.models),
            "indices": embeddings * len(config.models),
        },
        memory={
            "extract": PROCESS + 8.0 * min(images, config.shard_size) * max(dims.values(), default=0),
            "fit": PROCESS + MOMENTS_HELD * moments,
            "build-index": PROCESS + EMBEDDINGS_HELD * embeddings,
        },
        not_measured=tuple(name for name in pixels if name not in speeds),
    )


def _dim(config: "Config", encoder: "EncoderEntry", speeds: Mapping[str, Speed]) -> int:
    """Return the dimension of an encoder's features: measured, stated, or the most that it can be."""
    if encoder.name in speeds:
        return speeds[encoder.name].dim
    if encoder.base is not None:
        return _dim(config, config.encoder(encoder.base), speeds)
    return encoder.max_dim(WORD) or WIDEST


def _text_dim(config: "Config", encoder: "EncoderEntry") -> int:
    """Return the most dimensions that the vectors of a text encoder can have."""
    return encoder.max_dim(config.word_vectors.dim if encoder.corpus else WORD) or WIDEST


def lines_of(found: Estimate) -> list[str]:
    """The estimate for a person."""
    lines = [f"{found.images:,} images, {found.sentences:,} sentences"]
    lines += [f"extract {name}: {hours:,.2f} hours in one job" for name, hours in found.hours.items()]
    lines += [f"not measured before it is prepared: {name}" for name in found.not_measured]
    for title, sizes in (("disk", found.disk), ("memory of one job", found.memory)):
        lines.append(f"{title}: " + ", ".join(f"{name} {size / 1e9:,.2f} GB" for name, size in sizes.items()))
    return [*lines, f"disk in all: {sum(found.disk.values()) / 1e9:,.2f} GB"]
