"""Encoders as graphs in a bundle: the features of torch without torch, and nothing that the card does not vouch for."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.errors import IntegrityError
from pipeline.images import graphs
from pipeline.images.graphs import GraphEncoder, find_opener
from pipeline.images.networks import NetworkEncoder, NetworkSpec, untrained
from pipeline.images.preprocess import Preprocessing
from pipeline.index.query import StoredEncoder
from pipeline.storage import own_code
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.parameters import ENCODER, write_parameters

for module in ("onnxruntime", "onnxscript"):
    pytest.importorskip(module, reason=f"{module} is not installed: pip install 'jointspace[onnxruntime]'")
from stages.bundled import add_graphs  # noqa: E402

PREPROCESSING = Preprocessing(72, 64, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
INDEX = {
    "factory": "Flat", "metric": "inner_product", "dim": 2, "count": 0, "bytes": 0, "nprobe": None, "efSearch": None,
    "k_factor": None, "queries_per_second": 1, "latency_ms": 1, "build_seconds": 1, "recall@10": 1,
}  # fmt: skip
CARD = {
    "model": "ncca", "registered": "ncca", "metric": "inner_product", "dim": 2, "inputs": {}, "fingerprint": "made up",
    "splits": [], "data_root": "", "images": INDEX,
}  # fmt: skip


@pytest.fixture(scope="module")
def encoder() -> NetworkEncoder:
    return untrained(NetworkSpec("squeezenet1_1", "average", PREPROCESSING, flip=True), seed=0)


@pytest.fixture(scope="module")
def folder(encoder: NetworkEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that has no more than the encoder, and its graph."""
    folder = tmp_path_factory.mktemp("graphs")
    path = folder / "made" / "model.safetensors"
    parts = encoder.tensors(), encoder.settings()
    write_parameters(path, ENCODER, parts[0], settings=parts[1], fingerprint="made up")
    writer = BundleWriter(folder / "bundle")
    writer.add_parameters(path.parent, "encoders/eyes/")

    class Stored:
        tensors, settings = parts

    add_graphs(writer, {"eyes": Stored})
    writer.commit({**CARD, "encoders": {"eyes": encoder.settings()}})
    Bundle(folder / "bundle").trust_code()
    return folder / "bundle"


def test_a_graph_goes_with_its_bundle(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "bundle")
    graph = tmp_path / "bundle/encoders/eyes/model.onnx"
    own = graph.with_name("notes.txt")
    own.write_text("not of a bundle\n", encoding="utf-8")
    assert graph.exists()
    writer = BundleWriter(tmp_path / "bundle")
    writer.copy(Bundle(folder), but=["encoders/eyes/model.onnx"])
    writer.commit(CARD)
    assert not graph.exists() and own.exists() and graph.with_name("model.safetensors").exists()


def photographs() -> list[Image.Image]:
    coarse = np.random.default_rng(0).integers(0, 256, (3, 6, 6, 3), dtype=np.uint8)
    return [Image.fromarray(one).resize((90, 70), Image.Resampling.BICUBIC) for one in coarse]


@pytest.mark.parametrize("library", graphs.OPENERS)
def test_features_are_those_of_torch(
    library: str, encoder: NetworkEncoder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'jointspace[{library}]'")
    monkeypatch.setattr(graphs, "OPENERS", {library: graphs.OPENERS[library]})
    opened = StoredEncoder(Bundle(folder), "eyes").open()
    assert isinstance(opened, GraphEncoder)
    found, expected = opened.encode(photographs()), encoder.encode(photographs())
    assert found.shape == expected.shape and found.dtype == np.float32
    cosine = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosine.min() > 0.9999


def test_torch_is_not_loaded(folder: Path) -> None:
    code = (
        "import sys; from PIL import Image; from pathlib import Path\n"
        "from pipeline.index.query import StoredEncoder; from pipeline.storage.bundle import Bundle\n"
        "opened = StoredEncoder(Bundle(Path(sys.argv[1])), 'eyes').open()\n"
        "print(opened.encode([Image.new('RGB', (80, 80))]).shape, 'torch' in sys.modules)"
    )
    run = [sys.executable, "-c", code, str(folder)]
    result = subprocess.run(run, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert result.stdout.strip() == "(1, 512) False"


def test_without_a_library_torch_computes_the_encoder(
    encoder: NetworkEncoder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_graph = StoredEncoder(Bundle(folder), "eyes")
    monkeypatch.setattr(graphs, "OPENERS", {"no_such_module": None})
    stored = StoredEncoder(Bundle(folder), "eyes")
    assert isinstance(stored.open(), NetworkEncoder) and stored.key != by_graph.key
    np.testing.assert_array_equal(stored.open().encode(photographs()), encoder.encode(photographs()))


def test_a_graph_from_elsewhere_is_not_run(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(own_code, "_here", set())
    assert isinstance(StoredEncoder(Bundle(folder), "eyes").open(), NetworkEncoder)
    Bundle(folder).trust_code()
    own_code._here.clear()  # as in another process
    assert isinstance(StoredEncoder(Bundle(folder), "eyes").open(), GraphEncoder)


def test_a_changed_graph_is_refused(folder: Path, tmp_path: Path) -> None:
    path = folder / "encoders/eyes/model.onnx"
    data = path.read_bytes()
    try:
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(IntegrityError, match=r"model.onnx is not what its card says"):
            StoredEncoder(Bundle(folder), "eyes").open()
    finally:
        path.write_bytes(data)
    for wrong, said in ((b"no graph", "cannot be computed"), (data + b"location", "weights in other files")):
        with pytest.raises(IntegrityError, match=said):
            GraphEncoder(PREPROCESSING, wrong, path, find_opener())
