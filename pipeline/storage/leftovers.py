"""Removing what earlier runs left behind: shards and parts of a larger manifest, parts of another division into parts,
and locks of dead processes.

Nothing reads such shards, and they hold what was taken down. A user's own files may lie beside them: only what one of
our sidecars vouches for is removed, only from a run's own folders, and never through a link.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import CHECK, is_sidecar, read_json, sidecar_path
from pipeline.storage.batch import is_regular, remove_own
from pipeline.storage.commits import PARTS, fault_of, listed_shards
from pipeline.storage.features import PARTS as UNFINISHED
from pipeline.storage.locks import remove_free
from pipeline.storage.manifest import TABLES, Manifest
from pipeline.storage.names import inside

SHARDED = (
    "features/*", "regions/*", "reduced/*", "embeddings/*", "text/*",
    "text/documents/*/*", "moments/target", "moments/dev", "moments/auxiliary/*", "moments/study/target",
    "moments/study/auxiliary/*",
)  # fmt: skip
"""Folders of a run with one or two files for each shard."""
SHARD = re.compile(r"shard-(?P<number>\d{5,})\.(h5|conllu|brackets)(?P<rest>\.json|\.parts)?")
PART = re.compile(r"\d{5,}\.json")


@dataclass(frozen=True)
class Leftovers:
    """Files that were `removed`, and files `kept` that are named as a stale shard but have no commit."""

    removed: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)


def remove_leftovers(run: Path) -> list[str]:
    """Remove stale shards and free locks under the folder `run`; returns a sentence if something had to stay."""
    # Locks of jobs that were killed after their last write, and that Snakemake does not run again.
    for path in Path(run).rglob(".*.lock"):
        remove_free(path)
    try:
        kept = remove_stale_shards(run).kept
    except IntegrityError as error:
        return [str(error)]
    if not kept:
        return []
    return [
        f"{len(kept)} files such as {kept[0]} are named as shards that the manifest no longer has, but no commit"
        " vouches for them, so they stay; if they are the run's, delete them"
    ]


def remove_stale_shards(run: Path) -> Leftovers:
    """Remove the shards under the folder `run` that its manifest no longer has, and parts that list only such shards,
    or shards that an earlier part lists, too. Does nothing without a manifest.

    Raises IntegrityError if the manifest is damaged.
    """
    run, found = Path(run), Leftovers()
    if not (run / "manifest" / "manifest.json").exists():
        return found
    count = Manifest(run / "manifest").n_shards
    for path in filter(Path.exists, (run / "manifest" / f"{name}.parquet" for name in TABLES)):
        _remove(path, None, found)  # before its rows lay in shards
    for folder in _folders(run):
        for path in sorted(folder.iterdir()):
            match = SHARD.fullmatch(path.name)
            if match and int(match["number"]) >= count > 0 and path.exists():
                _remove(path, match["rest"], found)
        _remove_parts(folder / PARTS, count, found)
    return found


def _folders(run: Path) -> Iterator[Path]:
    for pattern in SHARDED:
        for folder in sorted(run.glob(pattern)):
            try:
                inside(run, folder.relative_to(run).as_posix(), run)
            except IntegrityError:  # through a link
                continue
            if folder.is_dir():
                yield folder


def _remove(path: Path, rest: str | None, found: Leftovers) -> None:
    """Remove the stale shard `path` with its sidecar, or its folder of parts."""
    if rest == ".parts":
        remove_own(path, UNFINISHED)
        (found.kept if path.exists() else found.removed).append(path)
        return
    artefact = path.with_suffix("") if rest else path
    commit = sidecar_path(artefact)
    if not _vouches(commit, artefact):
        found.kept.append(path)
        return
    for part in (artefact, commit):  # in this order: after a kill, the commit still vouches for the missing file
        if part.exists():
            part.unlink()
            found.removed.append(part)


def _remove_parts(folder: Path, count: int, found: Leftovers) -> None:
    covered = 0
    for path in sorted(folder.glob("*.json")) if not folder.is_symlink() else ():
        if not (numbers := _listed(path)):
            continue
        if covered <= min(numbers) < count or not count:
            covered = max(numbers) + 1
        else:
            if is_regular(path):
                path.unlink()
                found.removed.append(path)


def _listed(path: Path) -> dict[int, str]:
    """The shards of a part; empty for a file that is not ours."""
    try:
        value = read_json(path) if is_regular(path) and PART.fullmatch(path.name) else {}
    except IntegrityError:
        return {}
    own = isinstance(value, dict) and value.keys() == {"name", "fingerprint", "shards", CHECK}
    return listed_shards(path, value) if own else {}


def _vouches(commit: Path, artefact: Path) -> bool:
    """Whether the sidecar `commit` is ours, and `artefact` is what it says, or gone."""
    if not is_regular(commit) or not (is_regular(artefact) or not (artefact.exists() or artefact.is_symlink())):
        return False
    try:
        value = read_json(commit)
    except (IntegrityError, OSError):
        return False
    return is_sidecar(value) and not (artefact.exists() and fault_of(artefact, value))
