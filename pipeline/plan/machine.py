"""The machine: processors, memory, disk, devices, libraries, and which optional ones are missing."""

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from pipeline.compute import runtime

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
    yield Finding("processor", f"{cores} cores, {runtime.threads()} threads; {' '.join(wide) or 'no AVX2'}")


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
        yield Finding("GPU", "none that torch sees; everything runs on the processor", "note")


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
