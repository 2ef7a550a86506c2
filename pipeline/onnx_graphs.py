"""ONNX files, computed by onnxruntime."""

from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnxruntime
import torch
from onnx.external_data_helper import _get_all_tensors, uses_external_data

from pipeline.errors import brief

FILE = "onnx"
"""The name of the file's bytes among the tensors of an encoder."""
CPU, ROUTES = "CPUExecutionProvider", {"cuda": "CUDAExecutionProvider"}
"""What computes on a processor, and on other devices."""


def open_graph(data: bytes, device: str = "cpu") -> onnxruntime.InferenceSession:
    """The graph in the bytes of a file, on `device` where onnxruntime can use it. Raises ValueError for one that cannot
    be computed, or reads other files."""
    require_whole(data)
    routes = dict.fromkeys((ROUTES.get(device, CPU), CPU))
    known = onnxruntime.get_available_providers()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with explained():
        return onnxruntime.InferenceSession(data, options, [one for one in routes if one in known])


def require_whole(data: bytes) -> None:
    """Raises ValueError for a graph that reads other files."""
    with explained():
        outside = any(map(uses_external_data, _get_all_tensors(onnx.load_model_from_string(data))))
    if outside:
        raise ValueError("it keeps weights in other files; save it as one")


@contextmanager
def explained() -> Iterator[None]:
    """ValueError in place of the libraries' own exceptions."""
    try:
        yield
    except Exception as error:
        raise ValueError(brief(error)) from error
