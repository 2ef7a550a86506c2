"""The folders and files that a configuration may name: paths that Snakemake can handle, no run inside a collection."""

import os
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.remote.paths import check_url, is_url

if TYPE_CHECKING:
    from pipeline.config.root import Config


def check_places(config: "Config") -> None:
    """Raises ValueError naming the first key that is wrong."""
    for key, place in _places(config):
        if is_url(place):
            check_url(key, place)
        ranged = key.startswith("collection.files.") and is_url(config.data_root)
        _check_text(key, place.replace("{", "").replace("}", "") if ranged else place)
    for key in ("weights_root", "results_root"):
        if is_url(getattr(config, key)):
            raise ValueError(f"{key}: must be a folder of this machine; `aws s3 sync` or rclone takes a run to a store")
    if is_url(config.data_root):
        if config.demo.generate:
            raise ValueError("data_root: the demo is drawn into a folder of this machine; set demo.generate to false")
        return
    run = os.path.realpath(os.path.join(config.results_root, config.name))
    data = os.path.realpath(config.data_root)
    if _is_below(data, run):
        raise ValueError(
            f"data_root: {config.data_root} lies in the run's own folder {run}; choose another results_root or name"
        )
    if _is_below(run, data):
        raise ValueError(
            f"results_root: the run's folder {run} would lie in the collection, data_root {config.data_root}; choose a"
            " results_root outside of it"
        )


def _places(config: "Config") -> Iterator[tuple[str, str]]:
    """Key and value of what becomes a path of a rule."""
    for key in ("data_root", "weights_root", "results_root"):
        yield key, getattr(config, key)
    optional = {
        "collection.takedown": config.collection.takedown,
        "text.vocabulary": config.text.vocabulary,
        "language_text.file": config.language_text.file,
        "parse.conllu": config.parse.conllu,
        "parse.brackets": config.parse.brackets,
        "phrases.names": config.phrases.names,
        **{f"encoder {one.name}: path": one.path for one in config.every_encoder},
        **{f"parse.treebank.{part}": name for part, name in config.parse.treebank.model_dump().items()},
        **{f"collection.files.{what}": name for what, name in config.collection.files.items()},
    }
    for encoder in (*config.text_encoders, *config.query_text_encoders):
        places = encoder.own.files(config.weights_root)
        optional |= {f"text_encoders.{encoder.name}: {what}": str(place) for what, place in places.items()}
        optional[f"text_encoders.{encoder.name}: path"] = getattr(encoder.own, "path", None)
    yield from ((key, place) for key, place in optional.items() if place is not None)


def _check_text(key: str, place: str) -> None:
    """Brackets are Snakemake's own; a `~` would be a folder of that name, and a dash an option of a command."""
    if not place:
        raise ValueError(f"{key}: must not be empty")
    if place[0] in "-~" or place != place.strip():
        raise ValueError(
            f"{key}: {place!r} must not begin with - or ~, nor begin or end with a space; write it in full"
        )
    for character in place:
        if character in "{}<>" or unicodedata.category(character) in ("Cc", "Cs"):
            raise ValueError(
                f"{key}: {place!r} holds {character!r}, which Snakemake does not allow in a path; rename it"
            )


def _is_below(path: str, folder: str) -> bool:
    """Whether the real path `path` is `folder` or lies in it."""
    return os.path.commonpath([path, folder]) == folder
