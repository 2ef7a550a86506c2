"""ONNX files as text encoders: a table of words and what the graph makes of it, against numbers worked by hand."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
tokenizers = pytest.importorskip("tokenizers")

from pipeline.config.stored import restore_text_encoder  # noqa: E402
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
    material = SimpleNamespace(files=lambda: [graph, tokenizer])
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
