"""The ONNX graph of an encoder, which pipeline.images.graphs computes."""

import numpy as np
import torch

from pipeline.errors import UsageError, brief
from pipeline.images.encoders import ImageEncoder
from pipeline.images.engines import export_program
from pipeline.images.extraction import make_probes
from pipeline.images.graphs import ELSEWHERE, find_opener
from pipeline.specs.engines import ENGINES
from pipeline.specs.places import find

LEAST_COSINE = 0.9999
"""Between the features that torch and the graph make of probes."""


def export_graph(encoder: ImageEncoder, name: str) -> bytes:
    """The graph of the encoder `name`, which is on the processor, in float32.

    Raises UsageError where onnxruntime is not installed, and for an encoder of which there can be no graph.
    """
    find("engine", "onnxruntime", ENGINES).load()
    from pipeline.images.onnxruntime_graphs import to_onnx

    probes = make_probes(encoder.preprocessing.side)
    try:
        prepared = encoder.optimised(torch.device("cpu"), torch.float32)
        data = to_onnx(export_program(prepared, probes[:1].shape))
        if ELSEWHERE in data:
            raise ValueError(f"something in it is named {ELSEWHERE.decode()}")
        compute = find_opener()(data)
        cosine = _least_cosine(np.concatenate([compute(pixels[None]) for pixels in probes]), encoder, probes)
        if not cosine >= LEAST_COSINE:  # NaN neither
            raise ValueError(f"its features have a cosine of {cosine:.4f} to torch's")
    except Exception as error:  # the libraries have no class of exceptions in common
        raise UsageError(
            f"there can be no graph of the encoder {name} ({brief(error)}); set index.encoder_graphs to false"
        ) from error
    return data


def _least_cosine(features: np.ndarray, encoder: ImageEncoder, probes: np.ndarray) -> float:
    with torch.inference_mode():
        exact = encoder(torch.from_numpy(probes))
        return torch.nn.functional.cosine_similarity(torch.from_numpy(features), exact).min().item()
