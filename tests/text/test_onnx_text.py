"""ONNX files as text encoders: a table of words and what the graph makes of it, against numbers worked by hand."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
tokenizers = pytest.importorskip("tokenizers")

from pipeline.config.registry.stored import restore_text_encoder  # noqa: E402
from pipeline.errors import InputError, IntegrityError  # noqa: E402
from pipeline.text.encoders import TextMaterial  # noqa: E402
from pipeline.text.onnx_text import OnnxTextEncoder  # noqa: E402

WORDS = ("[UNK]", "[PAD]", "a", "dog", "runs")
TABLE = np.array([[9, 9], [7, 7], [1, 0], [0, 2], [4, 4]], np.float32)


def make_graph(shape: Sequence[int | str] = ("n", "t"), mask: bool = True, pooled: bool = False) -> bytes:
    """TABLE[input_ids], (n, t, 2); `pooled`: the largest over t instead, (n, 2). The mask is an input that is not read,
    but by an output of its own."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["states"])]
    outputs = [helper.make_tensor_value_info("states", TensorProto.FLOAT, [*shape, 2])]
    if pooled:
        nodes.append(helper.make_node("ReduceMax", ["states", "axes"], ["vectors"], keepdims=0))
        outputs.insert(0, helper.make_tensor_value_info("vectors", TensorProto.FLOAT, [shape[0], 2]))
    names = ["input_ids", *(["attention_mask"] if mask else [])]
    if mask:
        nodes.append(helper.make_node("Identity", ["attention_mask"], ["own"]))
        outputs.append(helper.make_tensor_value_info("own", TensorProto.INT64, shape))
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in names]
    weights = [numpy_helper.from_array(TABLE, "table"), numpy_helper.from_array(np.array([1]), "axes")]
    graph = helper.make_graph(nodes, "words", inputs, outputs, weights if pooled else weights[:1])
    opset = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def make_tokenizer(pad: bool = True) -> bytes:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    if pad:
        made.enable_padding(pad_id=1, pad_token="[PAD]")
    return made.to_str().encode()


def prepare(graph: bytes, tokenizer: bytes, **own: Any) -> OnnxTextEncoder:
    """The encoder of an entry, restored from what is stored of it."""
    entry = SimpleNamespace(own=SimpleNamespace(**{"file": "x.onnx", "length": None, "output": None, **own}))
    material = TextMaterial(0, None, None, None, None, None, files=lambda: [graph, tokenizer])
    made = OnnxTextEncoder.prepare(entry, material)
    return restore_text_encoder(made.settings(), made.tensors())


@pytest.mark.parametrize("shape", [("n", "t"), (3, "t"), ("n", 4), (2, 4)])
def test_states_are_averaged_over_a_texts_own_tokens(shape: Sequence[int | str]) -> None:
    made = prepare(make_graph(shape), make_tokenizer())
    rows = made.encode(["a dog", "dog", "a dog runs cat", "", "runs runs"])
    np.testing.assert_allclose(rows, [[0.5, 1], [0, 2], [3.5, 3.75], [0, 0], [4, 4]], rtol=1e-6)
    assert made.dim == 2 and rows.dtype == np.float32 and made.encode([]).shape == (0, 2)
    assert not made.encode([""]).any()
    np.testing.assert_allclose(made.encode(["\N{FULLWIDTH LATIN SMALL LETTER A} dog"]), [[0.5, 1]], rtol=1e-6)


def test_vectors_are_taken_as_they_are_and_other_outputs_by_name() -> None:
    graph = make_graph(mask=False, pooled=True)
    np.testing.assert_allclose(prepare(graph, make_tokenizer()).encode(["a dog"]), [[1, 2]], rtol=1e-6)
    made = prepare(graph, make_tokenizer(), output="states")
    np.testing.assert_allclose(made.encode(["a dog"]), [[0.5, 1]], rtol=1e-6)


@pytest.mark.parametrize("shape", [("n", "t"), (2, "t")])
def test_without_a_mask_no_text_depends_on_its_neighbours(shape: Sequence[int | str]) -> None:
    made = prepare(make_graph(shape, mask=False, pooled=True), make_tokenizer())
    texts = ["a dog", "a dog runs runs", "a", "dog a", "a dog runs", "dog"] * 30
    rows = made.encode(texts)
    np.testing.assert_allclose(rows[:6], [[1, 2], [4, 4], [1, 0], [1, 2], [4, 4], [0, 2]], rtol=1e-6)
    assert np.array_equal(rows, np.tile(rows[:6], (30, 1)))


def test_without_a_mask_texts_are_padded_as_the_tokenizer_says() -> None:
    tokenizer = tokenizers.Tokenizer.from_str(make_tokenizer().decode())
    tokenizer.enable_padding(pad_id=1, pad_token="[PAD]", length=5)
    made = prepare(make_graph(mask=False, pooled=True), tokenizer.to_str().encode())
    np.testing.assert_allclose(made.encode(["a dog", "runs"]), [[7, 7], [7, 7]], rtol=1e-6)


def test_a_text_is_cut_to_the_length() -> None:
    made = prepare(make_graph(), make_tokenizer(), length=2)
    np.testing.assert_allclose(made.encode(["a dog runs runs"]), [[0.5, 1]], rtol=1e-6)


@pytest.mark.parametrize(
    ("graph", "tokenizer", "own", "message"),
    [
        (b"no graph", make_tokenizer(), {}, "cannot be used as a text encoder"),
        (make_graph(), b"{}", {}, "cannot be used as a text encoder"),
        (make_graph(), b"\xff", {}, "cannot be used as a text encoder"),
        (make_graph(), make_tokenizer(), {"output": "elsewhere"}, "cannot be used as a text encoder"),
        (make_graph(), make_tokenizer(), {"output": "own"}, "its output own is int64"),
        (make_graph().replace(b"input_ids", b"input_idx"), make_tokenizer(), {}, "its inputs are input_idx, attention"),
    ],
)
def test_what_is_no_text_encoder_is_refused(graph: bytes, tokenizer: bytes, own: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(graph, tokenizer, **own)


def test_stored_parts_of_another_form_are_refused() -> None:
    made = prepare(make_graph(), make_tokenizer())
    for name in made.tensors():
        with pytest.raises(IntegrityError, match="another form than this version reads"):
            restore_text_encoder(made.settings(), {**made.tensors(), name: made.tensors()[name][:9]})
    for name in ("output", "length"):
        with pytest.raises(IntegrityError, match="another form than this version reads"):
            restore_text_encoder({**made.settings(), name: ["a"]}, made.tensors())


def test_the_stage_reads_both_files(tmp_path: Path) -> None:
    from made_up import make_run, make_stage, open_run, write_config

    (tmp_path / "model.onnx").write_bytes(make_graph())
    entry = {"name": "theirs", "kind": "onnx", "onnx": {"file": "model.onnx"}}
    write_config(run := make_run(tmp_path / "run"), {"weights_root": str(tmp_path), "text_encoders": [entry]})
    with pytest.raises(InputError, match=r"cannot read .*tokenizer\.json"):
        make_stage("prepare_text_encoder", run, "theirs")
    (tmp_path / "tokenizer.json").write_bytes(make_tokenizer())
    make_stage("prepare_text_encoder", run, "theirs")
    make_stage("encode_sentences", run, "theirs")
    opened = open_run(run)
    vectors = opened.texts({"theirs": opened.layout.sentences("theirs")}).open(0)["theirs"].matrix
    assert opened.manifest.sentences["text"][2].as_py() != "a dog"
    np.testing.assert_allclose(vectors[0], [(1 + 0) / 2, (0 + 2) / 2], rtol=1e-3)
