"""Networks computed by OpenVINO."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import openvino
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
from torch.export import ExportedProgram

HINTS = {"float32": "f32", "bfloat16": "bf16"}
"""A precision -> OpenVINO's name for it."""


def compile_program(program: ExportedProgram, precision: str, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """See pipeline.specs.engines.EngineSpec. Each of `threads` streams computes on one core."""
    frontend = FrontEndManager().load_by_framework("pytorch")
    # Not openvino.convert_model, which tells Google Analytics of each use unless its user has objected before.
    with _without_warnings():
        decoder = TorchFXPythonDecoder.from_exported_program(program)
    model = frontend.convert(frontend.load(decoder))
    model.reshape(_shape(program))
    asked = {"INFERENCE_PRECISION_HINT": HINTS[precision], "NUM_STREAMS": threads, "INFERENCE_NUM_THREADS": threads}
    compiled = openvino.Core().compile_model(model, "CPU", asked)
    if compiled.get_property("INFERENCE_PRECISION_HINT").to_string() != HINTS[precision]:
        raise ValueError(f"this processor does not compute {precision}")

    def compute(pixels: np.ndarray) -> np.ndarray:
        return compiled.create_infer_request().infer([pixels])[0]

    return compute


def _shape(program: ExportedProgram) -> list[int]:
    """That of its pixels; -1 for a length that is free."""
    given = next(node for node in program.graph.nodes if node.name == program.graph_signature.user_inputs[0])
    return [length if isinstance(length, int) else -1 for length in given.meta["val"].shape]


@contextmanager
def _without_warnings() -> Iterator[None]:
    """OpenVINO logs, with a traceback, each operation of its list that this version of torch does not know."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
