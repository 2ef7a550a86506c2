"""Functions that make a tiny synthetic run whose results are known, and that run commands and stages on it.

The images show eight things. Each thing has a word, a colour and a direction in the joint space.
"""

import base64
import hashlib
import json
import shutil
from functools import reduce
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import yaml
from click.testing import CliRunner
from PIL import Image
from small_settings import text_view

from pipeline.config.loading import default_path, merge, read_mapping, validate
from pipeline.config.registry import model_spec
from pipeline.encoders.tfidf import TfidfEncoder, encode
from pipeline.models.linear.projection import Directions, LinearModel
from pipeline.models.linear.views import ImageView
from pipeline.report.photographs import ReportPicture
from pipeline.run.layout import Layout
from pipeline.run.run import Run
from pipeline.run.runner import run_stage
from pipeline.storage.commit import Commit, Provenance, read_commit
from pipeline.storage.features import write_features
from pipeline.storage.index_shard import IndexShard, IndexWriter
from pipeline.storage.json_files import CHECK, to_json
from pipeline.storage.manifest import BOXES, DOCUMENTS, IMAGES, Manifest, write_manifest
from pipeline.storage.parameters import ENCODER, MODEL, TEXT_ENCODER, write_parameters
from pipeline.storage.shards import EMBEDDINGS, shard_path, write_shard
from pipeline.text.tokens import TermSettings
from pipeline.text.vocabulary import Vocabulary, build_vocabulary
from stages.cli import cli
from stages.collections.ingest import ingest as ingest_stage
from stages.index.build_index import build_index

THINGS = ("dog", "cat", "bird", "horse", "boat", "house", "tree", "car")
SHARD_SIZE = 10
ENCODER_SETTINGS = {"architecture": "eyes", "layer": "average", "weights": {"origin": "untrained", "seed": 0}}
MADE_BY = {"encoder": "encoder"}
"""Placeholder for the digest of an encoder, in the details of a model that was not made by a stage."""
CONFIG = {
    "encoders": [{"name": "colour", "architecture": "squeezenet1_1", "weights": "untrained"}],
    "image_view": {"normalise": []},
}


def make_run(
    folder: Path, registered: str = "ncca", images: int = 24, held_out: str = "test", titled: bool = False,
    first_held_out: int = 2,
) -> Path:  # fmt: skip
    """Write a run into `folder`, and return `folder`. The run has photos, a configuration, a manifest with shards of
    ten images, the image encoder `colour`, the text encoder `tfidf`, the model `registered`, and the embeddings of this
    model.

    Image i shows thing i mod 8. It has two sentences, "a <thing>" and "the big <thing> number <i>". Every third image,
    from number `first_held_out` (0 to 2) on, belongs to the split `held_out`. If `held_out` names several splits, such
    as `dev+test`, these images belong to the splits in turn. All other images belong to train. With `titled`, images
    with an even number have a title.
    """
    layout = Layout(folder)
    manifest = _make_manifest(folder, images, held_out, titled, first_held_out)
    write_config(folder)
    vocabulary = build_vocabulary(
        manifest.sentences["text"].to_pylist(),
        TermSettings(False, ("a", "the", "big", "number"), 1),
        size=8,
        min_count=3,
        idf=False,
        normalise=True,
    )
    write_parameters(
        layout.text_encoder("tfidf").path / "model.safetensors",
        TEXT_ENCODER,
        {},
        settings=TfidfEncoder(vocabulary).settings(),
        provenance=by_hand(folder),
        details={"name": "tfidf", "dim": len(vocabulary.terms)},
    )
    write_parameters(
        layout.encoder("colour").path / "model.safetensors",
        ENCODER,
        {"nothing": np.zeros(1, np.float32)},
        settings=ENCODER_SETTINGS,
        provenance=by_hand(folder),
    )
    model = _make_model(registered, vocabulary)
    stored = write_parameters(
        layout.model(registered).path / "model.safetensors",
        MODEL,
        model.tensors(),
        settings=model.settings(),
        provenance=by_hand(folder),
        details={
            "model": registered,
            "registered": registered,
            "encoders": {"colour": MADE_BY},
            "text_encoders": {"tfidf": {"encoder": "text encoder"}},
        },
    )
    _embed(layout, manifest, model, vocabulary, stored)
    return folder


def write_config(run: Path, *more: dict) -> None:
    """Write the configuration of the run, in place of an earlier configuration. The new configuration is CONFIG, into
    which the mappings `more` are merged one after another.
    """
    Layout(run).config.write_text(yaml.safe_dump(reduce(merge, more, CONFIG)))


def write_feature_shards(manifest: Manifest, folder: Path) -> None:
    """Write random features (n, 5) of the n images of each shard into a feature shard in `folder`.

    Column 3 is constant. Two rows of shard 0 are special: row 0 is zero in all columns, and row 2 is a copy of row 1.
    """
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        image_id = np.arange(rows.first_image, rows.last_image)
        values = np.random.default_rng(number).standard_normal((len(image_id), 5)).astype(np.float16)
        values[:, 3] = 2
        if number == 0:
            values[0], values[2] = 0, values[1]
        write_features(shard_path(folder, number), values, image_id, by_colour(manifest.folder.parent), {})


def features_of(thing: str) -> dict[str, np.ndarray]:
    """Return the features that the encoder `colour` would give to one image of `thing`, as an array (1, 8) by the name
    of the encoder.
    """
    return {"colour": np.eye(len(THINGS), dtype=np.float32)[[THINGS.index(thing)]]}


def _make_manifest(folder: Path, count: int, held_out: str, titled: bool, first_held_out: int) -> Manifest:
    (folder / "data").mkdir(parents=True)
    rows = []
    for i in range(count):
        name = f"{THINGS[i % 8]}-{i}.png"
        Image.new("RGB", (60 + i, 40), tuple(int(c) for c in np.random.default_rng(i % 8).integers(256, size=3))).save(
            folder / "data" / name
        )
        splits = held_out.split("+")
        split = splits[i // 3 % len(splits)] if i % 3 == first_held_out else "train"
        digest = hashlib.sha256((folder / "data" / name).read_bytes()).hexdigest()
        rows.append({"image_id": i, "path": name, "split": split, "width": 60 + i, "height": 40, "sha256": digest})
    texts = [text for i in range(count) for text in (f"a {THINGS[i % 8]}", f"the big {THINGS[i % 8]} number {i}")]
    owners = np.repeat(np.arange(count), 2)
    even = range(0, count, 2) if titled else ()
    titles = [{"image_id": i, "title": f"Title {i}", "tags": "", "description": ""} for i in even]
    write_manifest(
        folder / "manifest",
        folder / "data",
        [
            {
                "images": pa.Table.from_pylist(rows, schema=IMAGES),
                "sentences": pa.table({"sentence_id": np.arange(2 * count), "image_id": owners, "text": texts}),
                "documents": pa.Table.from_pylist(titles, schema=DOCUMENTS),
                "boxes": BOXES.empty_table(),
            }
        ],
        [{"file": "broken.png", "row": None, "what": "image", "reason": "truncated: <it> ends early"}],
        {
            "images": {"given": count + 1, "kept": count, "rejected": 1, "duplicate": 0},
            "sentences": {"given": 2 * count, "kept": 2 * count, "rejected": 0, "duplicate": 0},
            "documents": {"given": len(titles), "kept": len(titles), "rejected": 0, "duplicate": 0},
        },
        SHARD_SIZE,
    )
    return Manifest(folder / "manifest")


def _make_model(registered: str, vocabulary: Vocabulary) -> LinearModel:
    """Make a model of the registered type in which thing k of the features and the word for thing k both point along
    axis k.
    """
    size = len(THINGS)
    u = np.zeros((size, size), np.float32)
    u[[vocabulary.index[thing] for thing in THINGS], np.arange(size)] = 1
    directions = Directions(np.eye(size, dtype=np.float32), u, np.ones(size, np.float32))
    return model_spec(registered).load()(
        ImageView(("colour",), (size,), ()), text_view(size), np.zeros(size), np.zeros(size), directions
    )


def by_hand(run: Path, **inputs: str) -> Provenance:
    """Return the provenance of an artefact of the run that was not made by a stage. `inputs` maps the path of each
    input to its digest.
    """
    return Provenance(run, "by hand", 1, inputs=inputs)


def by_colour(run: Path) -> Provenance:
    """Return the provenance of features of the encoder `colour`. The encoder is an input if the run has it."""
    path = Layout(run).encoder("colour").commit
    return by_hand(run, **{"encoders/colour/model.json": read_commit(path).digest} if path.exists() else {})


def _embed(layout: Layout, manifest: Manifest, model: LinearModel, vocabulary: Vocabulary, stored: Commit) -> None:
    """Write the embeddings of all images and sentences of the run. The vector of image i points along the axis of its
    thing, and a little along the axis of the next thing, by an amount that grows with i.
    """
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        ids = np.arange(rows.first_image, rows.last_image)
        features = np.eye(len(THINGS), dtype=np.float32)[ids % 8]
        features[np.arange(len(ids)), (ids + 1) % 8] = 0.01 * ids
        texts = manifest.sentences["text"][rows.first_sentence : rows.last_sentence].to_pylist()
        images = model.embed_images({"colour": features})
        arrays = {
            "images": images,
            "image_id": ids,
            "sentences": model.embed_sentences({"tfidf": encode(texts, vocabulary)}),
            "sentence_id": np.arange(rows.first_sentence, rows.last_sentence),
        }
        row = stored.details["model"]
        made_from = {stored.place: stored.digest}
        place = f"manifest/shards/{number:05d}.json"
        made_from |= {f"{place}#{what}": rows.fingerprints[what] for what in ("images", "sentences")}
        details = {
            "model": row, "registered": row, "metric": model.metric, "dim": images.shape[1], "made_of": stored.digest
        }  # fmt: skip
        about = {"details": details, "provenance": by_hand(layout.root, **made_from)}
        write_shard(layout.embeddings(row).shard(number), EMBEDDINGS, arrays, rows=len(ids), **about)


def run_command(name: str, *arguments: object) -> str:
    """Run the command `name` in this process and return its output. Errors of the command are raised."""
    command = cli.get_command(None, name)
    result = CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def make_stage(name: str, run: Path, *arguments: object) -> str:
    """Run the command of the stage `name` with `arguments` and the option `--run`, and return its output. Errors of the
    command are raised.
    """
    return run_command(name, *arguments, "--run", run)


def build_bundle(run: Path, *settings: dict, model: str = "ncca", output: str = "bundle", **options: object) -> Path:
    """Build the index of a model of the run with the stage `build_index`, and move it to the folder `output` of the
    run, in place of an earlier folder. Return the folder of the index.

    The index has one or several index shards. `settings` are merged into the configuration of the run for this call
    only, and `options` are options of the stage.
    """
    opened = open_run(run, *settings)
    for bundle in opened.config.bundle_names(model):
        run_stage(opened, build_index, (bundle,), **options)
    shutil.rmtree(run / output, ignore_errors=True)
    return opened.layout.index(model).path.rename(run / output)


def with_columns(bundle: Path, folder: Path, **columns: list) -> Path:
    """Write a copy of the index shard `bundle` into `folder`, and return `folder`. The images of the copy have the
    further columns `columns`. The values of a column are repeated until every image has a value.
    """
    shard = IndexShard(bundle)
    images = shard.table("images")
    writer = IndexWriter(folder)
    writer.link(shard, but={"images.parquet"})
    for name, values in columns.items():
        images = images.append_column(name, pa.array([values[row % len(values)] for row in range(images.num_rows)]))
    writer.add_table("images.parquet", images)
    writer.commit(source=shard.card)
    return folder


def open_run(run: Path, *settings: dict) -> Run:
    """Open the run. Its configuration, or an empty configuration if it has none, is merged with `settings`, and all
    missing keys get their default values.
    """
    path = Layout(run).config
    values = reduce(merge, settings, read_mapping(path) if path.exists() else {})
    return Run(run, validate(merge(read_mapping(default_path()), values)))


def ingest(run: Path, data: Path, *settings: dict, processes: int = 0) -> None:
    """Write the manifest of the run from the collection in the folder `data`. The configuration of the run, or an empty
    configuration if it has none, is merged with `settings`. `processes` is the number of decoding processes, and 0
    decodes in this process.
    """
    collection = {"data_root": str(data), "demo": {"generate": False}}
    run_stage(open_run(run, collection, *settings), ingest_stage, processes=processes)


def decoded(picture: ReportPicture) -> Image.Image:
    """Return the image that is encoded in the `data:` address of a picture of a report."""
    return Image.open(BytesIO(base64.b64decode(picture.address.partition(",")[2])))


def retell(path: Path, *keys: str, value: object) -> None:
    """Replace the value at the path `keys` of a JSON file. Renew the checksum of the file, so that a reader accepts
    it.
    """
    told = part = {name: said for name, said in json.loads(path.read_text()).items() if name != CHECK}
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    path.write_bytes(to_json(told))
