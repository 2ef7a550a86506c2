"""What `study` and `sweep` measure with: moments in folds, and the grids of the configuration."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pipeline.run import Inputs

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.models.linear.study import Study
    from pipeline.run import Run
    from pipeline.run.layout import Layout

DOCUMENTS = ("all", "title", "tags", "description")
"""Weak texts of the printed tables."""


def read_study(run: "Run") -> "Study":
    """The stored pairs in folds, with the dev and test rows and the grids that `study` and `sweep` measure with."""
    from pipeline.config.registry import model_spec
    from pipeline.models.linear.sets import FoldedMoments
    from pipeline.models.linear.study import Study
    from pipeline.storage.pairs import PairSet, read_split

    settings, layout, features = run.config, run.layout, run.features
    names = [encoder.name for encoder in settings.text_encoders]
    sentences = run.texts({name: layout.sentences(name) for name in names})
    target = FoldedMoments(PairSet(features, sentences, layout.moments("study/target").folder))

    @lru_cache(maxsize=2)  # moments are large, and tables go from one set of documents to the next
    def auxiliary(documents: str) -> FoldedMoments:
        texts = run.texts({name: layout.documents(documents, name) for name in names})
        folder = layout.moments(f"study/auxiliary/{documents}").folder
        return FoldedMoments(PairSet(features, texts, folder))

    every = run.manifest.n_images
    return Study(
        target,
        auxiliary,
        overlap="train" in settings.auxiliary.splits,
        dev=read_split(features, sentences, target.view.encoders, "dev", settings.study.fit.dev_images),
        test=read_split(features, sentences, target.view.encoders, "test", every),
        grid=settings.study.fit,
        transfer=settings.transfer,
        own=lambda model: settings.section(model_spec(model)),
        protocol="first-sentence",  # as in Gong et al. 2014
        seed=settings.seed,
        text_weights=settings.study_text_weights,
        device=run.gpu,
    )


def study_keys(config: "Config") -> Mapping[str, Any]:
    """The sections that decide what is measured."""
    from pipeline.config.registry import made_by

    fitted = [spec.key for spec in made_by("fit") if spec.section]
    sections = {name: getattr(config, name).model_dump() for name in ("study", "transfer", "auxiliary", *fitted)}
    weights = {"text_weights": {encoder.name: encoder.weight for encoder in config.text_encoders}}
    documents = {name: config.documents[name].model_dump() for name in DOCUMENTS}
    return {"seed": config.seed, "documents": documents, **sections, **weights}


def study_reads(config: "Config", layout: "Layout") -> Inputs:
    """What `read_study` reads."""
    texts = [encoder.name for encoder in config.text_encoders]
    return [
        layout.manifest,
        layout.moments("study/target"),
        *map(layout.sentences, texts),
        *(layout.features(encoder.name) for encoder in config.every_encoder),
        *(layout.documents(name, text) for name in DOCUMENTS for text in texts),
        *(layout.moments(f"study/auxiliary/{name}") for name in DOCUMENTS),
    ]
