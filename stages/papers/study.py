"""`study`: measures the results in the tables of Gong et al. 2014, with models that are fitted from moments."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pipeline.run import Inputs, Job, Layout, Run, stage

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.models.linear.study import Study, StudyPairs
    from pipeline.papers.gong import Table
    from pipeline.papers.tables import Result

DOCUMENTS = ("all", "title", "tags", "description")
"""Sections of the key `documents`: the kinds of weak text that the published tables compare."""
NEAREST = 4
"""Number of images of each training set that the page shows for a test image."""
BLOCK_ROWS = 4096
"""Maximum number of rows of features in memory at once."""


def read_study(run: Run) -> "Study":
    """Return the inputs of the study.

    For training, the inputs are the stored moments of the training pairs, and the stored moments of the pairs of images
    and weak texts for each of DOCUMENTS. The moments have one sum for each fold. For dev (at most
    `study.fit.dev_images` images) and test, the inputs are the image features and the vectors of the captions. The
    values to try for each parameter come from the keys `study.fit` and `transfer`, from the sections of the models, and
    from the weights of the text encoders.
    """
    from pipeline.config.registry import model_spec
    from pipeline.models.linear.sets import FoldedMoments
    from pipeline.models.linear.study import Study
    from pipeline.storage.pairs import PairSet, read_split

    settings = run.config
    layout = run.layout
    features = run.features
    names = [encoder.name for encoder in settings.text_encoders]
    sentences = {name: layout.sentences(name) for name in names}
    target = FoldedMoments(PairSet(features, sentences, layout.moments("study/target").folder))

    @lru_cache(maxsize=2)  # Only two kinds of weak text stay in memory, because their moments are large.
    def auxiliary(documents: str) -> FoldedMoments:
        texts = {name: layout.documents(documents, name) for name in names}
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
        seed=settings.seed,
        text_weights=settings.study_text_weights,
        device=run.gpu,
    )


def study_keys(config: "Config") -> Mapping[str, Any]:
    """Return the values of the configuration that decide the numbers in the tables.

    These are the seed, the number of bootstrap resamples, the entries DOCUMENTS of the key `documents`, the weights of
    the text encoders, the sections `study`, `transfer` and `auxiliary`, and the sections of the models that `fit`
    makes.
    """
    from pipeline.config.registry import made_by

    fitted = [spec.key for spec in made_by("fit") if spec.section]
    sections = {name: getattr(config, name).model_dump() for name in ("study", "transfer", "auxiliary", *fitted)}
    weights = {"text_weights": {encoder.name: encoder.weight for encoder in config.text_encoders}}
    documents = {name: config.documents[name].model_dump() for name in DOCUMENTS}
    return {"seed": config.seed, "bootstrap": config.evaluate.bootstrap, "documents": documents, **sections, **weights}


def study_reads(config: "Config", layout: Layout) -> Inputs:
    """Return the inputs of `read_study`."""
    texts = [encoder.name for encoder in config.text_encoders]
    simulated = [name for name in DOCUMENTS if config.documents[name].simulate is not None]
    return {
        "manifest": layout.manifest,
        "target": layout.moments("study/target"),
        "sentences": {name: layout.sentences(name) for name in texts},
        "features": {encoder.name: layout.features(encoder.name) for encoder in config.every_encoder},
        "documents": [layout.documents(name, text) for name in DOCUMENTS for text in texts],
        "auxiliary": [layout.moments(f"study/auxiliary/{name}") for name in DOCUMENTS],
        "simulated": [layout.simulated(name) for name in simulated],
    }


@stage(
    version=9,
    gpu=True,
    threads=8,
    memory=4000,
    keys=study_keys,
    reads=study_reads,
    writes=lambda layout: layout.study,
)
def study(run: Run, job: Job) -> None:
    """Fill the tables of Gong et al. Numbers that an earlier job has stored are not measured again."""
    from tqdm import tqdm

    from pipeline.config.registry import model_spec
    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.models.linear.study import StudyCell, count_draws, pinned
    from pipeline.papers import gong
    from pipeline.storage.commit import Provenance, publish_record, read_record
    from pipeline.storage.json_files import fingerprint

    config = run.config
    layout = run.layout
    chosen = config.study
    study = read_study(run)
    target = study.target.source
    count = study.target.source.n_folds

    def recorded(cell: StudyCell, draw: int) -> dict:
        """Return the measurement of a draw from its file, and measure it if the file does not exist."""
        inputs = {"target": target.digest}
        if cell.training != "target":
            inputs["auxiliary"] = study.auxiliary(cell.documents).source.digest
        own = study.own(cell.model)
        grids = [chosen.fit.model_dump(), config.transfer.model_dump(), own and own.model_dump()]
        digest = fingerprint("study", 5, [cell.key, draw, config.seed, *grids], inputs)
        name = f"{digest[:20]}.json"
        if not (job.path / "cells" / name).exists():
            of = Provenance(run.root, job.provenance.stage, job.provenance.version, {"cell": digest})
            publish_record(job.path / "cells" / name, study.measure(cell, draw), provenance=of)
        return read_record(job.path / "cells" / name)

    facts = gong.FoldFacts(
        target.fold_images, study.auxiliary("all").source.fold_images, _measure_lengths(run, DOCUMENTS)
    )
    tables = gong.make_tables(config, facts)
    cells: dict[str, StudyCell] = {}
    for cell in (cell for table in tables for cell in gong.list_cells(table)):
        cells[cell.key] = max(cells.get(cell.key, cell), cell, key=lambda one: one.draws)
    # Models that are trained by gradient descent take longest and come last.
    cells = dict(sorted(cells.items(), key=lambda item: not model_spec(item[1].model).grid))
    todo = [(draw, key) for draw in range(count) for key, cell in cells.items() if draw < count_draws(cell, count)]
    measured: dict[str, list[dict]] = {key: [] for key in cells}
    first: dict[str, dict] = {}
    for draw, key in tqdm(todo, "study", unit="number", disable=None):
        cell = cells[key]
        made = recorded(pinned(cell, first[cell.model]["transfer"]) if cell.model in first else cell, draw)
        first.setdefault(cell.model, made["chosen"])
        measured[key].append(made)

    def draws(cell: StudyCell) -> list[dict]:
        return measured[cell.key][: cell.draws]

    bootstrap = Bootstrap(config.evaluate.bootstrap, config.seed)
    filled = [gong.measure_table(table, draws, bootstrap) for table in tables]
    seconds = sum(one["seconds"] for found in measured.values() for one in found)
    filled.append(gong.measure_time(gong.find_table(tables, "Table 4"), draws, seconds))
    transfer = gong.find_table(tables, "Table 5")
    compared = {row.label: draws(row.reproduced[0])[0] for row in transfer.rows if row.reproduced}
    examples = list(_find_examples(run, study, transfer, compared))
    publish_record(layout.study.commit, {"tables": filled, "transfer": examples}, provenance=job.provenance)


def _find_examples(
    run: Run, study: "Study", table: "Table", measured: "Mapping[str, Result]"
) -> Iterator[dict[str, Any]]:
    """Yield the examples of Figures 3 and 4 of Gong et al. 2014 for some test images.

    An example has the captions that two systems find in the first draw. One system is trained on the target set alone.
    The other system is the SAE system with the best recalls on dev. An example also has the nearest images of the
    target set and of the auxiliary set, and the texts of these images. `table` is Table 5, and `measured` maps the
    label of each row to its first draw.
    """
    import numpy as np
    import pyarrow.compute as pc

    from pipeline.encoders.tfidf import join_fields
    from pipeline.models.linear.study import draw_folds, nearest_images
    from pipeline.papers import gong
    from pipeline.report.photographs import first_sentence
    from pipeline.run.reading.texts import read_documents

    cells = {row.label: row.reproduced[0] for row in table.rows if row.reproduced}
    stacked = [label for label, cell in cells.items() if cell.training == "sae"]
    compared = gong.SUPERVISED, max(stacked, key=lambda label: measured[label]["chosen"]["recall_sum"])
    cell = cells[compared[1]]
    folds = draw_folds(cell, 0, study.target.source.n_folds, study.overlap)
    view = study.target.view.select(cell.encoders)
    image_ids = list(map(int, measured[gong.SUPERVISED]["answers"]))
    rows = np.searchsorted(study.test.image_id, image_ids)
    queries = view.stack({name: study.test.features[name][rows] for name in view.encoders})

    def nearest(pairs: "StudyPairs", chosen: tuple[int, ...]) -> list[list[int]]:
        blocks = pairs.blocks(chosen, view.encoders, study.target.text.encoders, BLOCK_ROWS)
        return nearest_images(queries, ((one.image_id, view.stack(one.features)) for one in blocks), NEAREST).tolist()

    target = nearest(study.target.source, folds.target)
    auxiliary = nearest(study.auxiliary("all").source, folds.auxiliary)
    documents = read_documents(run, "all")
    weak = documents.filter(pc.field("image_id").isin(sum(auxiliary, [])))
    texts = join_fields(weak.to_pylist(), run.config.documents["all"].fields)
    weak_texts = dict(zip(weak["image_id"].to_pylist(), texts, strict=True))
    sentences = run.manifest.sentences
    owners = run.manifest.sentence_images
    for row, image_id in enumerate(image_ids):
        answers = {
            label: [
                {"text": sentences["text"][sentence].as_py(), "right": bool(owners[sentence] == image_id)}
                for sentence in measured[label]["answers"][str(image_id)]
            ]
            for label in compared
        }
        yield {
            "image_id": image_id,
            "answers": answers,
            "nearest": {
                "target set": [
                    {"image_id": other, "text": first_sentence(run.manifest, other)} for other in target[row]
                ],
                "auxiliary set": [{"image_id": other, "text": weak_texts.get(other, "")} for other in auxiliary[row]],
            },
        }


def _measure_lengths(run: Run, names: Iterable[str]) -> dict[str, float]:
    """Return, for each kind of weak text in `names`, the mean number of words over the images of auxiliary.splits that
    have such a text."""
    import numpy as np

    from pipeline.encoders.tfidf import join_fields
    from pipeline.run.reading.texts import read_documents

    lengths = {}
    for name in names:
        table = read_documents(run, name)
        texts = join_fields(table.to_pylist(), run.config.documents[name].fields)
        learned = np.isin(run.manifest.splits[table["image_id"].to_numpy()], run.config.auxiliary.splits)
        words = [len(re.findall(r"\w+", text)) for text, wanted in zip(texts, learned, strict=True) if wanted and text]
        lengths[name] = float(np.mean(words)) if words else 0.0
    return lengths
