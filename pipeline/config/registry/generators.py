"""The generators of descriptions."""

from dataclasses import dataclass
from typing import Any

from pipeline.config.registry.spec import Spec, find


@dataclass(frozen=True, kw_only=True)
class GeneratorSpec(Spec):
    """A generator: its class at `place` (see pipeline.generate.describing.Generator), the class of its settings,
    `section`, with `defaults` below them; whether it learns from `regions` with the snippets that were aligned with
    them and `ranks` these by the model that did, from `text` without images, and needs a `treebank` of parts of speech;
    whether it says how probable a sentence of an image is (`log_probabilities`, `likelihood`), so that it can rank
    them."""

    defaults: str | None = "language_defaults"
    regions: bool = False
    ranks: bool = False
    text: bool = False
    treebank: bool = False
    likelihood: bool = True


def _spec(name: str, place: str, section: str, **more: Any) -> GeneratorSpec:
    place, section = f"pipeline.generate.{place}", f"pipeline.config.schema.generators:{section}Settings"
    return GeneratorSpec(name=name, place=place, section=section, **more)


GENERATORS: tuple[GeneratorSpec, ...] = (
    _spec("nearest", "nearest:Nearest", "Nearest", defaults=None, likelihood=False),
    _spec("mrnn", "mrnn:MultimodalRNN", "Recurrent"),
    _spec("mrnn-regions", "mrnn:MultimodalRNN", "RegionRecurrent", regions=True, likelihood=False),
    _spec("ranked-snippets", "snippets:RankedSnippets", "RankedSnippets", defaults=None, regions=True, ranks=True,
          likelihood=False),
    _spec("lbl", "lm:LogBilinearModel", "LogBilinear", text=True),
    _spec("mlbl", "lm:AdditiveModel", "LogBilinear", text=True),
    _spec("mnlm", "lm:MultiplicativeModel", "LogBilinear", text=True),
    _spec("sc-nlm", "lm:StructureContentModel", "LogBilinear", text=True, treebank=True),
)  # fmt: skip


def generator_spec(name: str) -> GeneratorSpec:
    """The generator `name`; UsageError lists the known ones."""
    return find("generator", name, GENERATORS)


def ranker(name: str) -> str:
    """The name of a generator among evaluated models, where it ranks by perplexity."""
    return f"{name}-perplexity"
