"""`init`: inspects a collection and writes a configuration for it."""

import shlex
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from stages.commands import FILE, PATH, json_option, say

if TYPE_CHECKING:
    from pipeline.collections.detect import Detected
    from pipeline.collections.intake import Intake
    from pipeline.collections.records import Tally
    from pipeline.config.names import Config

MIN_IMAGES_FOR_REPORT = 200
"""Number of photos with captions below which `init` warns that the recalls in the report will be uncertain."""
VECTORS = "vectors"
"""The format of a collection that has precomputed vectors and no photos."""
MAX_SHOWN = 3
"""Maximum number of rejected rows, of folders, and of indexes that the command names in its output."""
MAX_OPENED = 20
"""Maximum number of photos that are opened to look for descriptions in their metadata, if there are no captions."""
MIN_DIVIDED_IMAGES = 5
"""Smallest number of photos with captions from which `place_images` draws a photo for dev."""
TRAINING_SPLITS = {"train", "dev"}
"""Splits that a model needs to be fitted."""
NAME_SPLITS = {
    "folder": "name the split of each photo in splits.tsv",
    "table": "name the split of each photo in a column split of the table",
    "text-files": "put all photos into folders train, dev and test, which lie beside each other",
}
"""Format of a collection -> advice for the user on how to name the splits in the collection. In other formats, the key
collection.files names the files of a split."""


class DualEncoder(NamedTuple):
    """A pretrained dual encoder of OpenCLIP.

    `architecture` and `weights` are its names in OpenCLIP, `megabytes` is the size of the weights, which are downloaded
    once, and `extras` are the extras of jointspace that it needs.
    """

    architecture: str
    weights: str
    megabytes: int
    extras: str


DUAL_ENCODERS = {
    "clip": DualEncoder("ViT-B-32", "laion2b_s34b_b79k", 605, "open-clip"),
    "siglip": DualEncoder("ViT-B-16-SigLIP", "webli", 813, "open-clip,transformers"),
}


@click.command("init")
@click.argument("photographs", type=PATH, metavar="PHOTOS")
@click.option(
    "--encoder", type=click.Choice(list(DUAL_ENCODERS)), help="Use this pretrained model, which works without captions."
)
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="The configuration to write. [default: the name of PHOTOS with .yaml, in the current folder]",
)
@click.option(
    "--weights", type=FILE, help="A local file with the weights of an image network. [default: download ResNet-50]"
)
@click.option(
    "--architecture",
    help="Name of the network of --weights in torchvision. [default: derived from the name of the file]",
)
@json_option
def command(
    photographs: Path, encoder: str | None, output: Path | None, weights: Path | None, architecture: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Inspect a collection and write a configuration for it.

    PHOTOS is a folder of photos or of vectors, a tar shard, or a table. The command reads the lists and file names.
    If there are no captions, it also opens a few photos to look for descriptions in them. The first `run` opens every
    photo.
    """
    import json

    import yaml

    from pipeline.collections.assembly import Assembly
    from pipeline.collections.detect import detect
    from pipeline.config.section import as_name
    from pipeline.errors import InputError, RejectLimitError, UsageError
    from pipeline.storage.batch import publish_text
    from pipeline.storage.locks import hold

    if encoder and (weights or architecture):
        raise UsageError(
            "--encoder has its own weights. Leave out --weights and --architecture, or leave out --encoder."
        )
    if weights and not weights.is_file():
        raise UsageError(f"--weights {weights} is not a file. Give the path of a file with the weights of a network.")
    if output and not output.parent.is_dir():
        raise UsageError(f"The folder {output.parent} does not exist. Create it, or give another file with --output.")
    found = detect(photographs.absolute())
    intake, tally = _read(found)
    with closing(intake):
        missing = list(_leave_out_unusable(intake))
        assembly = Assembly(intake)
        given = assembly.splits
        if "train" in given:
            assembly.assign_splits([split for split in ("dev", "test") if split not in given])
        splits = assembly.splits
        if not splits:
            rejects = (_format_reject(one.file, one.row, one.reason) for one in intake.rejects)
            reason = next(chain(missing, rejects, ["the lists in this folder name no photo"]))
            raise InputError(f"{found.root} has no photo that can be used: {reason}")
        seen = {
            "root": str(found.root),
            "format": found.format,
            "counts": {what: count for what, count in _count(intake) if count},
            "files": found.files,
            "notes": [*found.notes, *intake.notes, *missing, *tally.format_summary(), *intake.own.format_summary()]
            + [
                *_explain_captions(found, intake),
                *_count_captions(intake, splits),
                *_described_inside(found, intake),
                *_name_unread_splits(intake, found.format),
            ],
            "filters": intake.own.schema().names,
            "splits": splits,
            "drawn": [split for split in splits if split not in given],
            "rejects": [
                {"file": one.file, "row": one.row, "reason": one.reason}
                for one in intake.rejects
                if not (one.what == "sentences" and one.reason.startswith("empty"))
            ],
            "refused": next(_refusals(intake), None),
        }
    if not as_json:
        for line in _lines(seen, encoder, weights):
            say(line)
    path = None
    commands = [["jointspace", "init", str(photographs), "--encoder", "clip"]]
    if found.format != VECTORS:
        output_of = f"results/{as_name(found.root.name)}"
        for index in _indexes(Path("results")):
            commands.append(["jointspace", "apply", str(index), str(photographs), "--output", output_of])
    if encoder or splits.keys() >= TRAINING_SPLITS:
        values = _configure(found, splits, seen["drawn"], encoder, weights, architecture, output)
        path = output or Path(f"{values['name']}.yaml")
        head = "# This file has only values that differ from config/default.yaml, where every key has a comment.\n"
        text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, allow_unicode=True)
        with hold(path):
            if path.exists():
                raise UsageError(f"{path} exists already. Give another file with --output, or remove this file.")
            publish_text(path, head + text)
        commands = [] if seen["refused"] else [["jointspace", "run", str(path)]]
    if as_json:
        ending = {"configuration": path and str(path), "next": next(iter(commands), None)}
        click.echo(json.dumps({**seen, **ending}, default=str))
    else:
        if path:
            say(f"wrote {path}{'; next:' * bool(commands)}")
        for number, command_line in enumerate(commands):
            if number == 1:
                say("or with an index that you built from other photos:")
            say(shlex.join(command_line))
    if path is None:
        remedy = "one of the commands" if len(commands) > 1 else "the command"
        raise InputError(
            f"The splits train and dev have too few captions, so no configuration was written. Run {remedy} above."
        )
    if seen["refused"]:
        remedy = (
            f"Repair these files or lines, or raise collection.reject_limit in {path}. Then run:"
            f" jointspace run {shlex.quote(str(path))}"
        )
        raise RejectLimitError(f"`run` would refuse this collection: {seen['refused']}. {remedy}")


def _lines(
    seen: dict[str, Any],
    encoder: str | None,
    weights: Path | None,
) -> Iterator[str]:
    """Yield the lines that the command prints about the collection. `seen` has the findings of the command, as
    --json shows them, and `encoder` and `weights` are options of the command."""
    from pipeline.collections.records import KIND_NAMES

    parts = [f"{count:,} {KIND_NAMES[what]}" for what, count in seen["counts"].items()]
    yield f"{seen['root']}: {', '.join(parts)} (format {seen['format']})"
    yield from (f"  file {ours}: {theirs}" for ours, theirs in seen["files"].items())
    yield from (f"  {note}" for note in seen["notes"])
    if seen["filters"]:
        yield "  a page that others can reach shows only the columns that serve.columns names"
    splits = seen["splits"]
    rejects = seen["rejects"]
    yield "  splits: " + ", ".join(f"{split} {count:,}" for split, count in splits.items())
    yield from (f"  rejected: {_format_reject(**one)}" for one in rejects[:MAX_SHOWN])
    if len(rejects) > MAX_SHOWN:
        yield f"  rejected: {len(rejects) - MAX_SHOWN:,} more, which the first `run` lists"
    if not (encoder or weights or seen["format"] == VECTORS) and splits.keys() >= TRAINING_SPLITS:
        yield "the first run downloads the weights of ResNet-50 (about 100 MB); later ones need no network"
        yield "  without a connection, give a local file of weights: --weights FILE"
    if encoder:
        dual = DUAL_ENCODERS[encoder]
        yield f"{encoder} is OpenCLIP's {dual.architecture}, {dual.weights}: pip install 'jointspace[{dual.extras}]'"
        yield f"the first run downloads {dual.megabytes} MB of weights from Hugging Face; later ones need no network"
    if not splits.keys() >= TRAINING_SPLITS:
        lacking = "None of these photos has a caption to train on"
        if "train" in splits:
            lacking = f"Too few of these photos have captions to train on ({splits['train']})"
        elif {"dev", "test"} & splits.keys():
            lacking = "None of these photos is in the split train"
        if not encoder and seen["format"] == VECTORS:
            texts = seen["files"].get("texts")
            if "train" in splits:
                yield f"{lacking}."
            elif texts:
                yield f"No row of {texts} belongs to an image. Correct the file as the line above says."
            else:
                yield "The collection has no vectors of captions."
            yield "If CLIP's ViT-B-32 made the image vectors, you can search them without captions:"
        elif not encoder:
            yield f"{lacking}. To search them with a pretrained model (605 MB):"
        elif "train" in splits:
            yield f"{lacking}, so {encoder} is used as it is"
        return
    if drawn := " and ".join(seen["drawn"]):
        yield f"the collection names no photo for {drawn}, so a tenth of train is used (collection.draw)"
    if "test" not in splits:
        yield "there are too few photos for a test split, unless the collection's list of splits names some"
    if encoder and not _can_choose(splits):
        yield f"dev has only {splits['dev']} photos, which are too few to choose a model, so {encoder} is used as it is"
    described = sum(splits.get(split, 0) for split in ("train", "dev", "test"))
    if described < MIN_IMAGES_FOR_REPORT:
        yield f"only {described} photos have captions, so the recalls in the report will be uncertain"
        if not encoder and splits.get("gallery", 0) > described:
            yield "  to search all photos with a pretrained model instead, add --encoder clip"


def _read(found: "Detected") -> "tuple[Intake, Tally]":
    """Read the lists and file names of the collection, and check the records without opening photos.

    Return the records, which the caller must close, and the counts of files that were read or ignored.
    """
    from tqdm import tqdm

    from pipeline.collections.files import CollectionFolder
    from pipeline.collections.formats import FORMATS, count_files
    from pipeline.collections.intake import Intake
    from pipeline.collections.records import DIVIDED, Options
    from pipeline.config import loading

    options = Options(found.files, found.columns, DIVIDED if found.described else "gallery")
    records = FORMATS[found.format](found.root, options)
    limit = loading.load().collection.max_sentence_chars
    folder = CollectionFolder(found.root, options)
    photographs = None if found.format == VECTORS else folder
    intake = Intake(limit, folder=photographs).add(tqdm(records, "read", unit=" records", disable=None))
    count_files(found.root, found.format, options, intake.tables)
    return intake, options.tally


def _leave_out_unusable(intake: "Intake") -> Iterator[str]:
    """Mark photos as unusable if they do not exist, or if their format needs a library that is not installed.

    Yield a line for the user for each reason for which photos cannot be used.
    """
    from importlib.util import find_spec

    from pipeline.images.opening import NEEDS_HEIF

    missing = "FROM images WHERE NOT there AND fault IS NULL"
    for (first,) in intake.tables.rows(f"SELECT path {missing} ORDER BY seq LIMIT 1"):
        count = intake.tables.run("UPDATE images SET fault = 'missing' WHERE NOT there AND fault IS NULL")
        archives = intake.folder.archives() if intake.folder else []
        also = "".join(f". Unpack the archive {name} first" for name in archives[:1])
        yield f"{count:,} photos that the lists name do not exist, such as {first}{also}"
    if find_spec("pillow_heif") is None:
        heic = r"regexp_matches(lower(coalesce(member, path)), '\.hei[cf]$')"
        needed = NEEDS_HEIF.replace("'", "''")
        intake.tables.run(f"UPDATE images SET fault = '{needed}' WHERE fault IS NULL AND {heic}")
    faults = """SELECT count(*), min(fault) FROM images WHERE fault <> 'missing'
        GROUP BY split_part(fault, ':', 1) ORDER BY count(*) DESC"""
    for count, first in intake.tables.rows(faults):
        yield f"{count:,} photos cannot be used: {first}"


def _refusals(intake: "Intake") -> Iterator[str]:
    """Yield the reasons for which `run` would refuse the collection, as far as they are known without opening photos.

    A collection is refused if the share of its rejected photos, or captions, exceeds collection.reject_limit.
    """
    from pipeline.collections.assembly import HARMLESS_REASONS
    from pipeline.config import loading
    from pipeline.errors import too_many

    limit = loading.load().collection.reject_limit
    left_out = intake.rejects.summarise(False)
    faulty = "SELECT seq FROM images WHERE fault IS NOT NULL"
    for what, called, owner in (("images", "photos", "seq"), ("sentences", "captions", "owner")):
        rejected = left_out.count_rejects(what, "") - left_out.count_rejects(what, *HARMLESS_REASONS)
        unusable = intake.tables.value(f"SELECT count(*) FROM {what} WHERE {owner} IN ({faulty})")
        if too_many(count := rejected + unusable, intake.given[what], limit):
            reason = (
                left_out.most_frequent(what)[0]
                if rejected > unusable
                else intake.tables.value("SELECT mode(fault) FROM images")
            )
            counts = f"{count:,} of {intake.given[what]:,} {called} cannot be used"
            yield f"{counts}, more than collection.reject_limit {limit:g} allows ({reason})"


def _name_unread_splits(intake: "Intake", form: str) -> Iterator[str]:
    """Yield a line for the user if folders have the names of at least two splits, but are not read as splits.

    A folder counts as not read if photos in it are assigned to splits at random.
    """
    from pipeline.collections.formats.lists import split_in

    drawn = """SELECT DISTINCT regexp_replace(path, '/?[^/]*$', '') FROM images JOIN placed USING (seq)
        WHERE drawn AND placed.split IN ('train', 'dev', 'test')"""
    parts = {part for (folder,) in intake.tables.rows(drawn) for part in folder.split("/")}
    called = sorted(part for part in parts if split_in(part) in ("train", "dev", "test"))
    if len(set(map(split_in, called))) > 1:
        remedy = NAME_SPLITS.get(form, "name the files of each split in collection.files")
        yield f"the folders {', '.join(called[:MAX_SHOWN])} look like splits and are not read as splits: {remedy}"


def _count(intake: "Intake") -> Iterator[tuple[str, int]]:
    """Yield (kind, number) for the usable photos, and for their captions, weak texts (`documents`) and boxes."""
    usable = "SELECT seq FROM images WHERE fault IS NULL"
    yield "images", intake.tables.value(f"SELECT count(*) FROM ({usable})")
    for what in ("sentences", "documents", "boxes"):
        yield what, intake.tables.value(f"SELECT count(*) FROM {what} WHERE owner IN ({usable})")


def _explain_captions(found: "Detected", intake: "Intake") -> Iterator[str]:
    """Yield lines for the user with an example of a caption, if the collection is a folder whose captions.tsv has no
    usable caption."""
    from pipeline.collections.formats.folder import FOLDER

    if found.format != "folder" or intake.folder is None or intake.tables.value("SELECT count(*) FROM sentences"):
        return
    if (path := intake.folder.locate(FOLDER)["captions"]) is None:
        return
    name = intake.tables.value("SELECT min(path) FROM images WHERE fault IS NULL")
    fault = "has no usable caption" if path.stat().st_size else "is empty"
    yield f"{intake.folder.label(path)} {fault}. Each line is a file name, one tab and a caption, as in:"
    yield f"  {name}<TAB>A dog runs on the beach."


def _count_captions(intake: "Intake", splits: dict[str, int]) -> Iterator[str]:
    """Yield lines for the user about empty captions, and about missing captions without which no model can be fitted.

    `splits` has the number of photos of each split.
    """
    if empty := intake.rejects.summarise(False).count_rejects("sentences", "empty"):
        yield f"{empty:,} captions are empty and are ignored"
    asked = dict(intake.tables.rows("SELECT asked, count(*) FROM placed WHERE usable GROUP BY asked"))
    captioned = sum(splits.get(split, 0) for split in ("train", "dev", "test"))
    for split in sorted(TRAINING_SPLITS - splits.keys()):
        if captioned and split in asked:
            yield f"{captioned} photos have captions, but none of the {asked[split]} photos of {split} has one"
            yield f"  a model needs a caption for at least 1 photo of {split}: write one, and run `init` again"
        elif split == "dev" and "train" in splits:
            yield (
                f"{splits['train']} photos with captions can be in train or dev, but a model needs at least"
                f" {MIN_DIVIDED_IMAGES} such photos"
            )


def _described_inside(found: "Detected", intake: "Intake") -> Iterator[str]:
    """Yield lines for the user if no photo has a caption, but some files of photos contain a description.

    Descriptions inside the files (Exif and similar metadata) are not read as captions.
    """
    from pipeline.config import loading
    from pipeline.errors import InputError
    from pipeline.images.decode import written_description
    from pipeline.images.opening import ImageLimits
    from pipeline.storage.sources import ImageSource

    if found.format == VECTORS or intake.tables.value("SELECT count(*) FROM sentences"):
        return
    limits = ImageLimits.from_settings(loading.load().collection)
    read = ImageSource(found.root).read
    sample = f'SELECT path, "offset", size FROM images WHERE fault IS NULL ORDER BY hash(path) LIMIT {MAX_OPENED}'
    texts = []
    for location in intake.tables.rows(sample):
        with suppress(InputError):
            texts.append(written_description(read(*location), limits))
    if described := list(filter(None, texts)):
        yield f"{len(described)} of {len(texts)} opened photos contain a description, such as {described[0][:50]!r}"
        yield "  descriptions are not read: write them into captions.tsv, one line per photo: name, tab, description"


def _format_reject(file: str, row: int | None, reason: str) -> str:
    return f"{file}, row {row}: {reason}" if row else f"{file}: {reason}"


def _indexes(results: Path) -> list[Path]:
    """Return the folders of at most MAX_SHOWN indexes, one of each run in the folder `results`, latest first.

    The latest index is the index whose card was written last. Indexes of the demo collection and runs without a
    readable index are left out. `init` suggests to apply these indexes to the new photos.
    """
    from pipeline.errors import IntegrityError
    from pipeline.storage.card import CARD
    from pipeline.storage.demo_folder import MARK
    from pipeline.storage.index_folder import shards_in
    from pipeline.storage.json_files import read_json

    latest: dict[Path, float] = {}
    for run in results.glob("*/"):
        with suppress(IntegrityError, OSError):
            shard = shards_in(run)[-1]
            if not (Path(read_json(shard / CARD)["data_root"]) / MARK).exists():
                # If the index has several shards, each shard is in its own folder below the folder of the index.
                index = shard if shard.parent.name == "index" else shard.parent
                latest[index] = (shard / CARD).stat().st_mtime
    return sorted(latest, key=latest.__getitem__, reverse=True)[:MAX_SHOWN]


def _configure(
    found: "Detected", splits: dict[str, int], drawn: list[str], encoder: str | None, weights: Path | None,
    architecture: str | None, output: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """Return the keys of the new configuration that differ from config/default.yaml.

    `splits` has the number of photos of each split, and `drawn` the splits that `run` will draw at random. The other
    arguments are the arguments of the command.

    Raises UsageError if the keys are not a valid configuration, and InputError if the weights do not fit.
    """
    from pipeline.config import loading
    from pipeline.config.section import as_name

    name = as_name(output.stem if output else found.root.name)
    values: dict[str, Any] = {"name": name, "data_root": str(found.root), "demo": {"generate": False}}
    if Path.cwd().resolve().is_relative_to(found.root.resolve()):
        values["results_root"] = str(found.root.parent / "results")
    section = {key: value for key, value in found.settings().items() if (key, value) != ("format", "folder")}
    if not splits.keys() >= TRAINING_SPLITS:
        section["default_split"] = "gallery"
    if drawn:
        section["draw"] = drawn
    if section:
        values["collection"] = section
    evaluated = [split for split in ("dev", "test") if split in splits]
    if len(evaluated) == 1:
        values["evaluate"] = {"splits": evaluated}
    if found.format == VECTORS:
        values |= _name_vectors(found, splits, encoder)
    elif encoder:
        images, texts = _name_dual(encoder)
        values |= {**_dual_models(splits), "encoders": [images], "text_encoders": [texts]}
    else:
        if "weak" not in splits:  # The default models include sae, which needs photos of the split weak.
            values["models"] = ["cca", "ncca"]
        entry = {"name": "resnet50", "architecture": "resnet50"}
        if weights is not None:
            network = architecture or _name_network(weights)
            values["weights_root"] = str(weights.absolute().parent)
            entry = {"name": network, "architecture": network, "weights": "file", "file": weights.name}
        values["encoders"] = [entry]
    config = loading.validate(loading.merge(loading.read_mapping(loading.default_path()), values), "init")
    if "weights_root" in values:
        _check_weights(config)
    return values


def _check_weights(config: "Config") -> None:
    """Raise InputError if the file of the only image encoder cannot be read or does not fit its network.

    The encoder is prepared as in a run, and discarded.
    """
    from pipeline.encoders.material import EncoderMaterial
    from pipeline.errors import InputError

    (entry,) = config.encoders
    try:
        entry.spec.load().prepare(entry, EncoderMaterial(config.seed, Path(config.weights_root)))
    except InputError as error:
        raise InputError(f"{error} Give another file with --weights, or its network with --architecture.") from error


def _name_dual(encoder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of the configuration for the image encoder and for the text encoder of the dual encoder with
    the name `encoder`."""
    dual = DUAL_ENCODERS[encoder]
    named = {"architecture": dual.architecture, "weights": dual.weights}
    texts = {"name": f"{encoder}-text", "kind": "open_clip", **named}
    return {"name": encoder, "kind": "open_clip", **named}, texts


def _dual_models(splits: dict[str, int]) -> dict[str, Any]:
    """Return the keys for the models of a dual encoder. `splits` has the number of photos of each split.

    If dev is large enough to compare models, the run also has models with a hubness correction, a trained model, and an
    ensemble. The run then uses dev to choose the correction of each model, which may be no correction, and the weights
    of the members of the ensemble. All weights except one may be 0.
    """
    if not _can_choose(splits):
        return {"models": ["zero-shot"]}
    return {
        "models": ["zero-shot", "zero-shot-csls", "ncca", "best"],
        "variants": {f"{model}-csls": {"model": model, "csls": True} for model in ("zero-shot", "ncca")},
        "ensembles": {"best": {"members": ["zero-shot-csls", "ncca-csls"]}},
    }


def _can_choose(splits: dict[str, int]) -> bool:
    """Return whether there are photos in train, and enough photos in dev to choose between zero-shot and trained
    models. `splits` has the number of photos of each split."""
    from pipeline.index.calibration import MIN_DEV_IMAGES

    return splits.keys() >= TRAINING_SPLITS and splits["dev"] >= MIN_DEV_IMAGES


def _name_vectors(found: "Detected", splits: dict[str, int], encoder: str | None) -> dict[str, Any]:
    """Return the keys for the encoders and models of a collection of precomputed vectors.

    `encoder` names the dual encoder that made the vectors, or is None if it is not known.
    """
    from pipeline.collections.files import CollectionFolder
    from pipeline.collections.formats.vectors import sources
    from pipeline.collections.records import Options
    from pipeline.foreign.vectors import open_foreign

    given = [open_foreign(one) for one in sources(CollectionFolder(found.root, Options(found.files, {}, ""))) if one]
    images: dict[str, Any] = {"name": "images", "kind": "imported", "path": found.files["images"]}
    texts: dict[str, Any] = {"name": "texts", "kind": "imported", "path": found.files.get("texts")}
    values: dict[str, Any] = {"models": ["zero-shot", *["ncca"] * (splits.keys() >= TRAINING_SPLITS)]}
    if not encoder and "texts" not in found.files:
        return {"models": ["cca", "ncca"], "encoders": [images]}
    if encoder:
        values = _dual_models(splits)
        _, by_texts = _name_dual(encoder)
        if "texts" in found.files:
            texts["made_by"] = by_texts["name"]
            values["query_text_encoders"] = [by_texts]
        else:
            texts = by_texts
    elif len({side.dim for side in given}) > 1:
        values["models"] = ["ncca"]
    return {**values, "encoders": [images], "text_encoders": [texts]}


def _name_network(weights: Path) -> str:
    """Return the name of the network with which the file name of `weights` begins, such as resnet50.

    Raises UsageError if the file name does not begin with the name of a network.
    """
    from pipeline.config.encoders import NETWORKS
    from pipeline.errors import UsageError

    named = NETWORKS.match(weights.name.lower().replace("-", "_"))
    if named is None:
        raise UsageError(
            f"The name of {weights} does not begin with the name of a network. Name the network, as in: --architecture"
            " resnet50"
        )
    return named[0]
