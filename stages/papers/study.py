"""`study`: every number of the tables of Gong et al. 2014, each measured on test in several draws of the target set."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.run import Job, Run, stage
from stages.studies import DOCUMENTS, read_study, study_keys, study_reads

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.models.linear.study import Study
    from pipeline.papers.gong import GongSetting

NEAREST, BLOCK = 4, 4096
"""Images of each set that are shown beside a test image, and rows of features in memory at once."""


@stage(
    version=7,
    gpu=True,
    keys=study_keys,
    reads=study_reads,
    writes=lambda layout: layout.study,
)
def study(run: Run, job: Job) -> None:
    """Measure the numbers of Gong et al.'s tables that are still missing."""
    from dataclasses import asdict

    from tqdm import tqdm

    from pipeline.config.registry import model_spec
    from pipeline.models.linear.study import StudyCell, count_draws, pinned
    from pipeline.papers import gong
    from pipeline.storage.commit import Provenance, describe_file, publish_record
    from pipeline.storage.files import is_there
    from pipeline.storage.json_files import fingerprint
    from pipeline.storage.records import read_cell

    config, layout = run.config, run.layout
    chosen, study = config.study, read_study(run)
    target, count = study.target.source, study.target.source.n_folds

    def recorded(key: str, cell: StudyCell, draw: int) -> dict:
        """The measurement in its file, made now unless it is there."""
        inputs = {"target": target.digest}
        if cell.training != "target":
            inputs["auxiliary"] = study.auxiliary(cell.documents).source.digest
        own = study.own(cell.model)
        grids = [chosen.fit.model_dump(), config.transfer.model_dump(), own and own.model_dump()]
        digest = fingerprint("study", 4, [cell.key, draw, config.seed, *grids], inputs)
        name = f"{digest[:20]}.json"
        if not is_there(job.path / "cells" / name):
            of = Provenance(run.root, job.provenance.stage, job.provenance.version, {"cell": digest})
            publish_record(job.path / "cells" / name, {"key": key, **study.measure(cell, draw)}, provenance=of)
        return {"file": name, **read_cell(job.path, name, key)}

    setting = gong.GongSetting(
        encoders=tuple(encoder.name for encoder in config.encoders),
        standard=tuple(encoder.name for encoder in chosen.encoders),
        fold_images=target.fold_images,
        weak_fold_images=study.auxiliary("all").source.fold_images,
        betas=config.transfer.beta,
        weak_folds=(count - max(chosen.transfer_sizes) or None) if study.overlap else None,
        lengths=_measure_lengths(run, DOCUMENTS),
        text=_describe_text(config),
        **chosen.model_dump(
            include={"sizes", "transfer_sizes", "weak_sizes", "terms", "draws", "further_draws", "weights"}
        ),
    )
    cells: dict[str, StudyCell] = {}
    for cell in (cell for table in gong.tables(setting) for row in table.rows for cell in row.cells):
        cells[cell.key] = max(cells.get(cell.key, cell), cell, key=lambda one: one.draws)
    # What is trained by gradient takes the longest and comes last.
    cells = dict(sorted(cells.items(), key=lambda item: not model_spec(item[1].model).grid))
    todo = [(draw, key) for draw in range(count) for key, cell in cells.items() if draw < count_draws(cell, count)]
    files: dict[str, list[str]] = {key: [] for key in cells}
    first: dict[str, dict] = {}
    for draw, key in tqdm(todo, "study", unit="number", disable=None):
        cell = cells[key]
        made = recorded(key, pinned(cell, first[cell.model]) if cell.model in first else cell, draw)
        first.setdefault(cell.model, made["chosen"])
        files[key].append(made["file"])
    compared = {
        row.label: read_cell(job.path, files[row.cells[0].key][0], row.cells[0].key)
        for row in gong.find_table(setting, "Table 5").rows
    }
    transfer = list(_lay_beside(run, study, setting, compared))
    about = {"setting": asdict(setting), "study": chosen.model_dump(), "transfer": transfer}
    names = sorted({f"cells/{name}" for listed in files.values() for name in listed})
    vouched = {name: describe_file(job.path / name) for name in names}
    publish_record(layout.study.commit, {"cells": files, **about}, provenance=job.provenance, files=vouched)


def _lay_beside(
    run: Run, study: "Study", setting: "GongSetting", measured: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """For some test images the sentences that the target set alone and the better SAE find in the first draw, and the
    nearest images of both training sets with their texts (Gong et al. 2014, Figures 3 and 4). `measured` are the first
    numbers of Table 5's rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from pipeline.models.linear.study import draw_folds, nearest_images
    from pipeline.papers import gong
    from pipeline.text.tfidf import join_fields
    from stages.texts import read_documents

    cells = {row.label: row.cells[0] for row in gong.find_table(setting, "Table 5").rows}
    stacked = [label for label, cell in cells.items() if cell.training == "sae"]
    compared = gong.SUPERVISED, max(stacked, key=lambda label: measured[label]["chosen"]["recall_sum"])
    cell = cells[compared[1]]
    folds = draw_folds(cell, 0, study.target.source.n_folds, study.overlap)
    view = study.target.view.select(cell.encoders)
    image_ids = list(map(int, measured[gong.SUPERVISED]["answers"]))
    rows = np.searchsorted(study.test.image_id, image_ids)
    queries = view.stack({name: study.test.features[name][rows] for name in view.encoders})

    def nearest(pairs: Any, chosen: tuple[int, ...]) -> list[list[int]]:
        blocks = pairs.blocks(chosen, view.encoders, study.target.text.encoders, BLOCK)
        return nearest_images(queries, ((one.image_id, view.stack(one.features)) for one in blocks), NEAREST).tolist()

    target = nearest(study.target.source, folds.target)
    auxiliary = nearest(study.auxiliary("all").source, folds.auxiliary)
    documents = read_documents(run, "all")
    weak = documents.filter(pc.is_in(documents["image_id"], pa.array(sum(auxiliary, []), pa.int64())))
    texts = join_fields(weak.to_pylist(), run.config.documents["all"].fields)
    weak_texts = dict(zip(weak["image_id"].to_pylist(), texts, strict=True))
    sentences, owners = run.manifest.sentences, run.manifest.sentence_images

    def first_sentence(image_id: int) -> str:
        return sentences["text"][int(np.searchsorted(owners, image_id))].as_py()

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
                "target set": [{"image_id": other, "text": first_sentence(other)} for other in target[row]],
                "auxiliary set": [{"image_id": other, "text": weak_texts.get(other, "")} for other in auxiliary[row]],
            },
        }


def _measure_lengths(run: Run, names: Iterable[str]) -> dict[str, float]:
    """Documents -> their mean number of words over the images that have some, of the auxiliary splits."""
    import re

    import numpy as np

    from pipeline.text.tfidf import join_fields
    from stages.texts import read_documents

    lengths = {}
    for name in names:
        table = read_documents(run, name)
        texts = join_fields(table.to_pylist(), run.config.documents[name].fields)
        learned = np.isin(run.manifest.splits[table["image_id"].to_numpy()], run.config.auxiliary.splits)
        words = [len(re.findall(r"\w+", text)) for text, wanted in zip(texts, learned, strict=True) if wanted and text]
        lengths[name] = float(np.mean(words)) if words else 0.0
    return lengths


def _describe_text(config: "Config") -> str:
    """What the text view is."""
    keys = ("max_ngram", "stop_words", "lemmatise")
    views = []
    for encoder in config.text_encoders:
        settings = [f"{key} {getattr(encoder.own, key)}" for key in keys if hasattr(encoder.own, key)]
        views.append(f"{encoder.kind} ({', '.join(settings)})" if settings else encoder.kind)
    return "; ".join(views)
