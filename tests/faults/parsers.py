"""Parsers of untrusted data, each with a function that parses some bytes and with valid samples of its format."""

import io
import json
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.collections.formats import FORMATS
from pipeline.collections.intake import Intake
from pipeline.collections.records import Options
from pipeline.config.loading import default_path, merge, read_mapping, validate
from pipeline.foreign.box_formats import match_boxes, parse_boxes
from pipeline.foreign.vectors import Source, open_foreign
from pipeline.text.dependencies import read_conllu
from pipeline.text.phrase_trees import read_brackets
from pipeline.text.wordvectors import read_binary_vectors, read_text_vectors

Read = Callable[[bytes, Path], object]
"""A function that parses all the data. It may write files to the given folder."""
DEFAULTS = read_mapping(default_path())
"""The default configuration."""


def ingests(kind: str, name: str, **other_files: bytes) -> Read:
    """Return a function that writes the data to the file `name` of a collection and reads the collection.

    `kind` is the format of the collection, and `other_files` maps the names of its other files to
    their contents.
    """

    def read(data: bytes, folder: Path) -> object:
        if not (folder / "images").exists():  # The files are written once, because this takes as long as parsing.
            for other, content in other_files.items():
                (folder / other).write_bytes(content)
            (folder / "images").mkdir()
        (folder / name).write_bytes(data)
        chosen = {"table": {"table": name}}.get(kind, {})
        with closing(Intake(200)) as intake:
            return intake.add(FORMATS[kind](folder, Options(chosen, {}, "train"))).given

    return read


def boxes(ending: str) -> Read:
    """Return a function that parses a file of boxes with this suffix and matches the boxes to an image."""

    def read(data: bytes, folder: Path) -> object:
        return list(parse_boxes(data, f"boxes.{ending}")), match_boxes([(f"boxes.{ending}", data)], ["images/a.jpg"])

    return read


def config(data: bytes, folder: Path) -> object:
    """Load a configuration as `pipeline.config.loading.load` does, but without reading the defaults each time."""
    path = folder / "config.yaml"
    path.write_bytes(data)
    return validate(merge(DEFAULTS, read_mapping(path)), source=path)


def to_json(value: object) -> bytes:
    return json.dumps(value).encode()


def tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return buffer.getvalue()


def parquet(columns: dict[str, list]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def npy(array: np.ndarray) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


CAPTIONS = "a.jpg\t0\tA dog .\nb.jpg\t1\tTwo cats – grün .\n".encode()
TOKENS = b"a.jpg#0\tA dog .\nb.jpg#1\tTwo cats .\n"
WEAK = b"file\ttitle\ttags\tdescription\na.jpg\tDog\tdog,sky\tA dog\n"
BOXES = b"file\tx1\ty1\tx2\ty2\tscore\tlabel\na.jpg\t1\t2\t30.5\t4e1\t0.5\tdog\n"
KARPATHY = {"images": [{"filename": "a.jpg", "split": "train", "sentences": [{"raw": "A dog ."}, {"raw": "x"}]}]}
COCO = {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "caption": "A dog ."}]}
TABLE = b'file,sentence,split,title\na.jpg,"A ""dog"" .",train,\nb.jpg,"A\ncat",val,T\n'
ROWS = b'{"file": "a.jpg", "sentence": ["A dog .", "x"], "split": "val", "tags": ["a", 1]}\n{"file": "b"}\n'
COCO_BOXES = {
    "images": [{"id": 1, "file_name": "a.jpg"}],
    "annotations": [{"image_id": 1, "bbox": [1, 2, 3.5, 4], "score": 0.5, "category_id": 7}],
    "categories": [{"id": 7, "name": "dog"}],
}
ENTITIES = (
    b"<annotation><filename>a.jpg</filename><object><name>1</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3</xmax>"
    b"<ymax>4</ymax></bndbox></object></annotation>"
)
CONLLU = (
    b"# sent_id = 1\n1\tA\t_\tDET\tDT\t_\t2\tdet\t_\t_\n2\tdog\t_\tNOUN\tNN\t_\t0\troot\t_\tSpaceAfter=No\n\n"
    b"1-2\tIt's\t_\t_\t_\t_\t_\t_\t_\t_\n1\tIt\t_\tPRON\tPRP\t_\t0\troot\t_\t_\n\n"
)
BRACKETS = b"1\t(S (NP (DT A) (NN dog)) (VP (VBZ runs)))\n( (S (NP-SBJ-1 (-NONE- *)) (VP (VB -LRB-))))\n"
GLOVE = b"dog 0.5 -1e-3 2\ncat 1 2 3\n"
BINARY = b"2 3\ndog " + np.arange(3, dtype="<f4").tobytes() + b"\ncat " + np.ones(3, "<f4").tobytes() + b"\n"
SETTINGS = b"seed: 1\ntext: {size: 100, idf: false}\nencoders:\n  - {name: a, architecture: resnet18}\nmodels: [cca]\n"
SAMPLE = {"a.jpg": b"jpeg", "a.txt": b"A dog .\nx\n", "a.json": b'{"caption": "x", "tags": ["a"]}', "b.png": b"p"}


def lines_of(data: bytes) -> list[str]:
    """Return the lines of the data, each with a line break at its end. Bytes that are not UTF-8 are replaced, because
    the parsers of lines get only text that was decoded before."""
    return [line + "\n" for line in data.decode(errors="replace").split("\n")]


def foreign(name: str) -> Read:
    """Return a function that reads precomputed features from the file `name`, whose two rows are named a and b."""

    def read(data: bytes, folder: Path) -> object:
        (folder / "f.txt").write_text("a\nb\n")
        (folder / name).write_bytes(data)
        found = open_foreign(Source(folder / name, None, None))
        return found.take(np.arange(len(found.names)))

    return read


PARSERS: dict[str, tuple] = {
    "captions.tsv": (ingests("folder", "captions.tsv", **{"splits.tsv": b"a.jpg\ttrain\n"}), CAPTIONS),
    "splits.tsv": (ingests("folder", "splits.tsv", **{"captions.tsv": CAPTIONS}), b"a.jpg\ttrain\nb.jpg\tval\n"),
    "weak.tsv": (ingests("folder", "weak.tsv", **{"captions.tsv": CAPTIONS}), WEAK),
    "boxes.tsv": (ingests("folder", "boxes.tsv", **{"captions.tsv": CAPTIONS}), BOXES),
    "flickr-token": (ingests("flickr-token", "Flickr8k.token.txt"), TOKENS),
    "karpathy": (ingests("karpathy", "dataset.json"), to_json(KARPATHY)),
    "coco": (ingests("coco", "captions_train.json"), to_json(COCO)),
    "table.csv": (ingests("table", "t.csv"), TABLE),
    "table.tsv": (ingests("table", "t.tsv"), TABLE.replace(b",", b"\t")),
    "table.jsonl": (ingests("table", "t.jsonl"), ROWS),
    "table.parquet": (ingests("table", "t.parquet"), parquet({"file": ["a.jpg", "b"], "sentence": ["A dog", "x"]})),
    "text-files": (ingests("text-files", "a.txt", **{"a.jpg": b"", "b.jpg": b""}), b"A dog .\r\nx\n"),
    "webdataset": (ingests("webdataset", "0.tar"), tar(SAMPLE)),
    "word vectors": (
        lambda data, _: read_text_vectors(io.BytesIO(data), "v", ["dog", "cat"]), GLOVE, b"2 3\n" + GLOVE,
    ),
    "word2vec": (lambda data, _: read_binary_vectors(io.BytesIO(data), "v", ["dog", "cat"]), BINARY),
    "boxes: table": (boxes("tsv"), BOXES),
    "boxes: coco": (boxes("json"), to_json(COCO_BOXES), to_json(COCO_BOXES["annotations"])),
    "boxes: entities": (boxes("xml"), ENTITIES),
    "config": (config, SETTINGS),
    "conllu": (lambda data, _: list(read_conllu(lines_of(data), "x.conllu")), CONLLU),
    "brackets": (lambda data, _: list(read_brackets(lines_of(data), "x.brackets")), BRACKETS),
    "features.npy": (foreign("f.npy"), npy(np.ones((2, 3), np.float32))),
    "features.parquet": (foreign("f.parquet"), parquet({"file": ["a", "b"], "x": [[1.0, 2.0], [3.0, 4.0]]})),
}  # fmt: skip
"""Name of a parser -> the function that parses bytes, followed by valid samples."""
