"""Networks computed by ONNX Runtime."""

from collections.abc import Callable

import numpy as np
import onnxruntime
import onnxscript  # noqa: F401  by which torch exports
import torch
from torch.export import ExportedProgram


def compile_program(program: ExportedProgram, precision: str, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """See pipeline.specs.engines.EngineSpec. A graph is computed by the thread that asks; `threads` of them can."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(to_onnx(program), options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()

    def compute(pixels: np.ndarray) -> np.ndarray:
        return session.run(None, {given.name: pixels})[0]

    return compute


def to_onnx(program: ExportedProgram) -> bytes:
    """The program as a graph, without the places of the source that each of its nodes comes from."""
    model = torch.onnx.export(program, dynamo=True, verbose=False).model_proto
    for part in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.graph.initializer):
        del part.metadata_props[:]
    return model.SerializeToString(deterministic=True)
