"""Encoders as ONNX graphs, which are computed without torch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline import runtime
from pipeline.errors import IntegrityError, brief
from pipeline.images.preprocess import Preprocessing, prepare

Compute = Callable[[np.ndarray], np.ndarray]
"""From pixels (1, side, side, 3) uint8 to features (1, dim) float32."""
ELSEWHERE = b"location"
"""In every graph that keeps weights in other files: the key of a file's name."""


class GraphEncoder:
    """`encode(images)` as of the pipeline.images.encoders.ImageEncoder whose graph is in `data`, the bytes of the file
    `path`; `compute` is what an opener makes of it.

    Raises IntegrityError for a graph that cannot be computed, or reads other files.
    """

    def __init__(self, preprocessing: Preprocessing, data: bytes, path: Path, opener: Callable[[bytes], Compute]):
        self.preprocessing, self._path = preprocessing, path
        with self._computed():
            if ELSEWHERE in data:
                raise ValueError("it keeps weights in other files")
            self._compute = opener(data)

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray:
        """(n, dim) float32 of RGB images."""
        with self._computed():
            return np.concatenate([self._compute(prepare(image, self.preprocessing)[None]) for image in images])

    @contextmanager
    def _computed(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the libraries have no class of exceptions in common
            raise IntegrityError(
                f"{self._path} cannot be computed as the graph of an encoder ({brief(error)}); run build-index again"
            ) from error


def find_opener() -> Callable[[bytes], Compute] | None:
    """What opens the bytes of a graph: the first of the libraries that is installed. None: none is."""
    return next((opener for module, opener in OPENERS.items() if find_spec(module)), None)


def _open_by_onnxruntime(data: bytes) -> Compute:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = runtime.threads(), 1
    # Another layout of the weights takes longer to make than it saves one photograph.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4  # what it refuses is raised
    session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return lambda pixels: session.run(None, {given.name: pixels})[0]


def _open_by_openvino(data: bytes) -> Compute:
    import openvino

    asked = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": runtime.threads()}
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(data), "CPU", asked)
    return lambda pixels: compiled.create_infer_request().infer([pixels])[0]


OPENERS = {"onnxruntime": _open_by_onnxruntime, "openvino": _open_by_openvino}
"""By the modules that they need, the one that is ready first before the other."""
