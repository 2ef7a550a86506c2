"""The examination of the machine for `doctor`, and the estimate of a run's needs for `plan`.

`examine` reports the CPU, memory, disk, GPUs and libraries, and the extras that are missing. `estimate` computes the
hours of extraction from the speeds that were measured on this machine. It computes the bytes on disk and in memory from
the sizes of the arrays in a run.
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
from pipeline.compute.mapreduce import split_into_chunks

if TYPE_CHECKING:
    from pipeline.config.encoders import EncoderEntry
    from pipeline.config.names import Config

GIB = 1 << 30
MIN_FREE_MEMORY = 3 * GIB
"""Free memory in bytes that the demo needs. With less, `examine` reports a fault. `plan` estimates the memory for other
collections."""
MIN_FREE_DISK = 2 * GIB
"""Free disk space in bytes that the demo needs. With less, `examine` reports a fault. `plan` estimates the disk space
for other collections."""
REQUIRED_LIBRARIES = (
    "click",
    "h5py",
    "numpy",
    "Pillow",
    "pyarrow",
    "pydantic",
    "PyYAML",
    "safetensors",
    "scipy",
    "snakemake",
)
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
    "heif": ("pillow_heif", "HEIC photos"),
    "slurm": ("snakemake_executor_plugin_slurm", "queues of SLURM"),
    "kubernetes": ("dask_kubernetes", "Dask on Kubernetes"),
    "docs": ("material", "this documentation as a site"),
    "judged": ("ir_measures", "nDCG, MAP and recall by judged queries"),
    "metrics": ("pycocoevalcap", "BLEU, ROUGE-L and CIDEr of generated captions, and METEOR with Java"),
    "test": ("pytest", "the tests"),
}
"""The extras (optional dependencies) of jointspace: extra -> a module that the extra installs, and its purpose."""


@dataclass(frozen=True)
class Finding:
    """A fact about the machine: `what` was examined, what was `found`, and the `remedy` for a fault.

    `mark` is `ok`, `note` for a fact that limits some functions, or `MISS` for a fault that must be repaired.
    """

    what: str
    found: str
    mark: str = "ok"
    remedy: str | None = None


def examine(folder: Path) -> list[Finding]:
    """Examine the machine, and return the findings in the order in which they are shown.

    `folder` is the folder of the results, which need not exist.
    """
    return [*_cpu(), *_libraries(), *_torch(), *_faiss(), *_extras(), *_space(folder)]


def free_memory() -> int:
    """Return the bytes of memory that new processes can use. In a container, the memory limit of the container is taken
    into account.

    Returns 0 if the system does not report its free memory.
    """
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
    """Return the free bytes of the disk with `folder`, or with its nearest existing parent folder."""
    folder = Path(folder).absolute()
    return shutil.disk_usage(next(f for f in (folder, *folder.parents) if f.exists())).free


def _cpu() -> Iterator[Finding]:
    vector_units = sorted({"avx2", "avx512f", "avx512_bf16", "amx_bf16"} & runtime.cpu_flags())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield Finding("CPU", f"{cores} cores, {runtime.threads()} threads, {' '.join(vector_units) or 'no AVX2'}")


def _libraries() -> Iterator[Finding]:
    missing = [name for name in REQUIRED_LIBRARIES if not _version(name)]
    if missing:
        yield Finding("libraries", f"not installed: {', '.join(missing)}", "MISS", f"pip install {' '.join(missing)}")
    else:
        yield Finding("libraries", ", ".join(f"{name} {_version(name)}" for name in ("numpy", "scipy", "snakemake")))
        from PIL import features

        if not features.check("avif"):
            yield Finding("AVIF photos", "the installed Pillow cannot read them", "note", "pip install 'Pillow>=11.3'")
        import numpy  # noqa: F401  threadpool_info reports only libraries that are loaded, such as NumPy's BLAS.
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
        yield Finding("GPU", "PyTorch finds no GPU, so everything runs on the CPU", "note")


def _faiss() -> Iterator[Finding]:
    names = sorted(set(metadata.packages_distributions().get("faiss", [])))
    if len(names) > 1:  # The packages install the same files, so removing only one would damage the other.
        remedy = f"pip uninstall -y {' '.join(names)}, then pip install {names[-1]}"
        yield Finding("faiss", f"{' and '.join(names)} have overwritten each other's files", "MISS", remedy)
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
    yield Finding("java", java or "not found, so generated captions have no METEOR score", "ok" if java else "note")


def _space(folder: Path) -> Iterator[Finding]:
    memory = free_memory()
    disk = free_disk(folder)
    more_memory = "end other programs, or lower extract.batch_size and shard_size"
    more_disk = "delete files, or choose another results_root"
    yield _free("memory", memory, more_memory if 0 < memory < MIN_FREE_MEMORY else None)
    yield _free(f"disk {folder}", disk, more_disk if disk < MIN_FREE_DISK else None)


def _free(what: str, free: int, remedy: str | None) -> Finding:
    return Finding(what, f"{free / GIB:.1f} GiB free", "MISS" if remedy else "ok", remedy)


def is_installed(module: str) -> bool:
    """Return whether `module` can be imported, without importing it. Only its parent packages are imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # The parent package is not installed.
        return False


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


ASSUMED_DIM = 2048
"""Assumed dimension of features whose dimension is not known."""
WORD_VECTOR_DIM = 300
"""Assumed dimension of word vectors from a file, which is the dimension of the usual published word vectors."""
PROCESS_BYTES = 1.5e9
"""Assumed bytes of memory of a process that has loaded PyTorch and reads a shard of photos."""
MOMENTS_COPIES = 12
"""Maximum number of copies of the moments (second-moment matrices of the features) in the memory of `fit`."""
EMBEDDINGS_COPIES = 3
"""Maximum number of copies of a model's embeddings in the memory of `build-index`."""
TERM_BYTES = 12
"""Bytes that a term of a sentence takes in a stored sparse row of a text encoder."""
TERMS_PER_SENTENCE = 10
"""Assumed number of different terms of a sentence that a text encoder stores."""


@dataclass(frozen=True)
class Speed:
    """The measured speed of an encoder on this machine, and the dimension of its features."""

    images_per_second: float
    dim: int


@dataclass(frozen=True)
class Estimate:
    """The estimated needs of a run on a number of `images` and `sentences`.

    `hours` maps each measured encoder to the hours in which a single job extracts the features of all images. `disk`
    maps each kind of artefact to its bytes on disk. `memory` maps a stage to the bytes that one job of the stage needs
    in memory. `not_measured` are the encoders that read pixels and have no measured speed.
    """

    images: int
    sentences: int
    hours: Mapping[str, float]
    disk: Mapping[str, float]
    memory: Mapping[str, float]
    not_measured: tuple[str, ...]


def estimate(config: "Config", images: int, sentences: int, speeds: Mapping[str, Speed]) -> Estimate:
    """Estimate the time, disk space and memory of a run with `config` on `images` photos and `sentences` captions.

    `speeds` has the measured speeds of encoders, by name. For an encoder without a measured speed, the greatest
    possible dimension is assumed.
    """
    import numpy as np  # `examine` must also work if NumPy is missing.

    dims = {encoder.name: _dim(config, encoder, speeds) for encoder in config.encoders}
    terms = [_text_dim(config, encoder) for encoder in config.text_encoders]
    width = sum(dims.values()) + sum(terms)
    joint = max(config.fit.dimensions)
    chunks = len(split_into_chunks(-(-images // config.shard_size), config.shard_size))
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
            "text": TERM_BYTES * TERMS_PER_SENTENCE * sentences * len(terms),
            # One matrix is stored for each chunk, and one for the sum of all chunks. The matrices are symmetric, so
            # only half of each matrix is stored.
            "moments": moments / 2 * (chunks + 1),
            "embeddings": embeddings * len(config.models),
            "indexes": embeddings * len(config.models),
        },
        memory={
            "extract": PROCESS_BYTES + 8.0 * min(images, config.shard_size) * max(dims.values(), default=0),
            "fit": PROCESS_BYTES + MOMENTS_COPIES * moments,
            "build-index": PROCESS_BYTES + EMBEDDINGS_COPIES * embeddings,
        },
        not_measured=tuple(name for name in pixels if name not in speeds),
    )


def _dim(config: "Config", encoder: "EncoderEntry", speeds: Mapping[str, Speed]) -> int:
    """Return the measured dimension of an encoder's features, or else the greatest possible dimension.

    Pooled or precomputed features have the dimension of the encoder that made them. If no dimension is known, return
    ASSUMED_DIM.
    """
    if encoder.name in speeds:
        return speeds[encoder.name].dim
    if encoder.base is not None:
        return _dim(config, config.encoder(encoder.base), speeds)
    return encoder.max_dim(WORD_VECTOR_DIM) or ASSUMED_DIM


def _text_dim(config: "Config", encoder: "EncoderEntry") -> int:
    """Return the greatest possible dimension of the vectors of a text encoder, or ASSUMED_DIM if it is not known."""
    return encoder.max_dim(config.word_vectors.dim if encoder.corpus else WORD_VECTOR_DIM) or ASSUMED_DIM


def format_estimate(found: Estimate) -> list[str]:
    """Return the lines that describe an estimate to the user."""
    lines = [f"{found.images:,} photos, {found.sentences:,} captions"]
    lines += [f"extract {name}: {hours:,.2f} hours in one job" for name, hours in found.hours.items()]
    lines += [f"not measured, because it is not prepared yet: {name}" for name in found.not_measured]
    for title, sizes in (("disk", found.disk), ("memory of one job", found.memory)):
        lines.append(f"{title}: " + ", ".join(f"{name} {size / 1e9:,.2f} GB" for name, size in sizes.items()))
    return [*lines, f"disk in all: {sum(found.disk.values()) / 1e9:,.2f} GB"]
