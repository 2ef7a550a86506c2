"""The folders and files that a configuration may name: paths that Snakemake can handle, no run inside a collection."""

import os
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.remote.paths import check_url, is_url

if TYPE_CHECKING:
    from pipeline.config.root import Config


def check_places(config: "Config") -> Iterator[str]:
    """A sentence for each key that is wrong."""
    for key, place in _places(config):
        if is_url(place):
            try:
                check_url(key, place)
            except ValueError as error:
                yield str(error)
        ranged = key.startswith("collection.files.") and is_url(config.data_root)
        yield from _text(key, place.replace("{", "").replace("}", "") if ranged else place)
    for key in ("weights_root", "results_root"):
        if is_url(getattr(config, key)):
            yield f"{key}: must be a folder of this machine; `aws s3 sync` or rclone takes a run to a store"
    if is_url(config.data_root):
        if config.demo.generate:
            yield "data_root: the demo is drawn into a folder of this machine; set demo.generate to false"
        return
    run = os.path.realpath(os.path.join(config.results_root, config.name).replace("\0", ""))
    data = os.path.realpath(config.data_root.replace("\0", ""))
    if _is_below(data, run):
        yield (f"data_root: {config.data_root} lies in the run's own folder {run}; choose another results_root or name")
    elif _is_below(run, data):
        yield (
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
        optional |= {f"text encoder {encoder.name}: {what}": str(place) for what, place in places.items()}
        optional[f"text encoder {encoder.name}: path"] = getattr(encoder.own, "path", None)
    yield from ((key, place) for key, place in optional.items() if place is not None)


def _text(key: str, place: str) -> Iterator[str]:
    """Brackets are Snakemake's own; a `~` would be a folder of that name, and a dash an option of a command."""
    odd = [one for one in place if one in "{}<>" or unicodedata.category(one) in ("Cc", "Cs")]
    if not place:
        yield f"{key}: must not be empty"
    elif place[0] in "-~" or place != place.strip():
        yield f"{key}: {place!r} must not begin with - or ~, nor begin or end with a space; write it in full"
    elif odd:
        yield f"{key}: {place!r} holds {odd[0]!r}, which Snakemake does not allow in a path; rename it"


def _is_below(path: str, folder: str) -> bool:
    """Whether the real path `path` is `folder` or lies in it."""
    return os.path.commonpath([path, folder]) == folder
