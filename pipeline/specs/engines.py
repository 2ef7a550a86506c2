"""What computes an encoder on a processor."""

from dataclasses import dataclass
from importlib.util import find_spec

from pipeline.specs.places import Spec

AUTO, TORCH = "auto", "torch"


@dataclass(frozen=True, kw_only=True)
class EngineSpec(Spec):
    """A library that computes networks on a processor in place of torch.

    At `place` is a function of a torch.export.ExportedProgram, of one of `precisions`, and of the number of threads
    that will call what it returns: a function from pixels, of the shape of the program's example, to features (n, dim).
    It raises what it likes where it cannot compute the program, or not in that precision on this processor. `modules`
    are those that the extra brings.
    """

    modules: tuple[str, ...]
    precisions: tuple[str, ...] = ("float32",)

    @property
    def installed(self) -> bool:
        """Whether the modules are there; none is imported."""
        return all(map(find_spec, self.modules))


ENGINES: tuple[EngineSpec, ...] = (
    EngineSpec(
        name="openvino",
        place="pipeline.images.openvino_graphs:compile_program",
        extra="openvino",
        modules=("openvino",),
        precisions=("float32", "bfloat16"),
    ),
    EngineSpec(
        name="onnxruntime",
        place="pipeline.images.onnxruntime_graphs:compile_program",
        extra="onnxruntime",
        modules=("onnxruntime", "onnxscript"),
    ),
)
