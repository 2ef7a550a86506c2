"""What a configuration names and is not here: said before the first job, all of it at once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import JointspaceError, UsageError, meant

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.run import Run, Stage
    from pipeline.run.stage import Names

MODULES = {
    "standard": "cv2",
    "selective-search": "cv2.ximgproc",
    "open-clip": "open_clip",
    "timm": "timm",
    "transformers": "transformers",
    "sentence-transformers": "sentence_transformers",
    "onnx": "onnxruntime",
    "fisher": "skimage",
    "words": "gensim",
    "parse": "spacy",
}
"""Extra of the distribution -> a module that it brings."""


SHOWN = 10
"""Of what is missing."""


def require_all(run: "Run", stages: "Mapping[str, Stage]") -> None:
    """Raises UsageError that names every file and extra that the run of `stages` needs and that is not here, and where
    the demo would be drawn into a folder that was not meant for it."""
    _require_demo_folder(run.config)
    unmade = [(stage, names) for stage, names in _needed(stages, run) if not _is_made(run, stage, names)]
    missing = list(dict.fromkeys([*_files(run, unmade), *_extras(run.config, unmade)]))
    if missing:
        more = [f"and {len(missing) - SHOWN} more"] if len(missing) > SHOWN else []
        raise UsageError("; ".join([*missing[:SHOWN], *more]))


def _needed(stages: "Mapping[str, Stage]", run: "Run") -> "list[tuple[Stage, Names]]":
    """The stages and names that `all` makes, each after what it reads."""
    from pipeline.run.stage import Outside

    every = [(stage, tuple(names)) for stage in stages.values() for names in stage.choices(run.config)]
    makers = {made.name: (stage, names) for stage, names in every for made in stage.outputs(run.layout, *names)}
    found = {}

    def visit(stage: "Stage", names: "Names") -> None:
        if (stage.name, names) in found:
            return
        with suppress(JointspaceError):  # of a collection that is gone
            for artefact in stage.reads(run.config, run.layout, *names).values():
                if not isinstance(artefact, Outside):
                    visit(*makers[artefact.name])
        found[stage.name, names] = (stage, names)

    for stage in stages.values():
        for names in stage.wanted(run.config):
            visit(stage, tuple(names))
    return list(found.values())


def _require_demo_folder(config: "Config") -> None:
    """The demo is drawn into its own folder, into one that has it, or where the section `demo` says which demo."""
    from pipeline.config import load
    from pipeline.storage.demo_folder import MARK

    usual, root = load(), Path(config.data_root)
    meant_for_it = root.name == Path(usual.data_root).name or (root / MARK).exists()
    if not config.demo.generate or meant_for_it or config.demo != usual.demo:
        return
    beside = (str(one) for one in root.parent.glob("*") if one.is_dir())
    other = "" if root.exists() else meant(str(root), beside)
    raise UsageError(
        f"data_root {root} is not the demo's folder, and demo.generate would have the demo drawn into it; {other}for"
        " photographs of your own set demo: {generate: false}"
    )


def _files(run: "Run", unmade: "Sequence[tuple[Stage, Names]]") -> Iterator[str]:
    """What persons have to bring for stages whose results are not there yet."""
    from pipeline.run.stage import Outside

    data_root = run.layout.data_root
    for stage, names in unmade:
        try:
            reads = stage.reads(run.config, run.layout, *names)
        except JointspaceError as error:
            yield str(error)
            continue
        for one in reads.values():
            if not isinstance(one, Outside) or not isinstance(one.path, Path) or one.path.exists():
                continue
            if not (run.config.demo.generate and one.path.is_relative_to(data_root)):  # which are drawn
                yield f"{one.path} does not exist, which {' '.join([stage.command, *names])} reads"


def _is_made(run: "Run", stage: "Stage", names: tuple[str, ...]) -> bool:
    from pipeline.run.layout import Artefact

    outputs = stage.outputs(run.layout, *names)
    return all((one.commit if isinstance(one, Artefact) else one.part(0)).exists() for one in outputs)


def _extras(config: "Config", unmade: "Sequence[tuple[Stage, Names]]") -> Iterator[str]:
    """The extras that are not installed, with what needs them."""
    for stage, names in unmade:
        for what, extra in _extras_of(config, stage.name, *names):
            module = MODULES.get(extra)
            if module is not None and not _is_installed(module):
                yield f"{what} needs {module}: pip install 'jointspace[{extra}]'"


def _extras_of(config: "Config", stage: str, *names: str) -> Iterator[tuple[str, str | None]]:

    from pipeline.config.registry.encoders import encoder_spec

    if stage in ("prepare_encoder", "extract"):
        encoder = config.encoder(names[0])
        yield f"encoder {encoder.name}", encoder_spec(encoder.kind, encoder.architecture).extra
    if stage in ("prepare_text_encoder", "encode_sentences"):
        yield f"text encoder {names[0]}", config.text_encoder(names[0]).spec.extra
    if stage == "extract_regions" and config.regions.proposals == "selective-search":
        yield "regions.proposals selective-search", "selective-search"
    if stage == "parse" and config.parse.engine == "spacy":
        yield "parse.engine spacy", "parse"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package above it
        return False
