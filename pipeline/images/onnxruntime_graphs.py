"""Networks computed by ONNX Runtime."""

from collections.abc import Callable

import numpy as np
import onnxruntime
import onnxscript  # noqa: F401  by which torch exports
import torch
from torch.export import ExportedProgram


def compile_program(program: ExportedProgram, precision: str, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """See pipeline.specs.engines.EngineSpec. A graph is computed by the thread that asks; `threads` of them can."""
    exported = torch.onnx.export(program, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    data = exported.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()

    def compute(pixels: np.ndarray) -> np.ndarray:
        return session.run(None, {given.name: pixels})[0]

    return compute
