"""What `study` and `sweep` measure with: moments in folds, and the grids of the configuration."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pipeline.run import Inputs

if TYPE_CHECKING:
    from pipeline.config import Config
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


def measure_lengths(run: "Run", names: Iterable[str]) -> dict[str, float]:
    """Documents -> their mean number of words over the images that have some, of the auxiliary splits."""
    import re

    import numpy as np

    from pipeline.text.tfidf import join_fields
    from stages.texts import read_documents

    splits, lengths = run.manifest.splits, {}
    for name in names:
        table = read_documents(run, name)
        texts = join_fields(table.to_pylist(), run.config.documents[name].fields)
        learned = np.isin(splits[table["image_id"].to_numpy()], run.config.auxiliary.splits)
        words = [len(re.findall(r"\w+", text)) for text, wanted in zip(texts, learned, strict=True) if wanted and text]
        lengths[name] = float(np.mean(words)) if words else 0.0
    return lengths


def describe_text(config: "Config") -> str:
    """What the text view is."""
    keys = ("max_ngram", "stop_words", "lemmatise")
    settings = [{key: getattr(one.own, key) for key in keys if hasattr(one.own, key)} for one in config.text_encoders]
    return "; ".join(
        f"{one.kind} ({', '.join(f'{key} {value}' for key, value in own.items())})" if own else one.kind
        for one, own in zip(config.text_encoders, settings, strict=True)
    )


def study_keys(config: "Config") -> Mapping[str, Any]:
    """The sections that decide what is measured."""
    from pipeline.config.registry import made_by

    fitted = [spec.key for spec in made_by("fit") if spec.section]
    sections = {name: getattr(config, name).model_dump() for name in ("study", "transfer", "auxiliary", *fitted)}
    weights = {"text_weights": {one.name: one.weight for one in config.text_encoders}}
    documents = {name: config.documents[name].model_dump() for name in (*DOCUMENTS, *config.study.noise)}
    return {"seed": config.seed, "documents": documents, **sections, **weights}


def study_reads(config: "Config", layout: "Layout") -> Inputs:
    """What `read_study` reads."""
    documents, texts = [*DOCUMENTS, *config.study.noise], [one.name for one in config.text_encoders]
    return {
        "manifest": layout.manifest,
        **{f"text/{one}": layout.sentences(one) for one in texts},
        "moments/study/target": layout.moments("study/target"),
        **{f"features/{one.name}": layout.features(one.name) for one in config.every_encoder},
        **{f"documents/{name}/{one}": layout.documents(name, one) for name in documents for one in texts},
        **{f"moments/study/{name}": layout.moments(f"study/auxiliary/{name}") for name in documents},
    }
