"""`show-transfer`: what the target set alone and SAE find for the same images (Gong et al. 2014, Figures 3 and 4)."""

from pipeline.run import Job, Run, Stage
from stages.studies import read_study, study_keys, study_reads

NEAREST, BLOCK = 4, 4096


def show_transfer(run: Run, job: Job) -> None:
    """Show test images with the sentences that both find in the study's first draw, and their nearest images."""
    import numpy as np
    import pyarrow.compute as pc

    from benchmarks.papers import gong
    from pipeline.images.decode import ImageLimits
    from pipeline.models.linear.study import draw_folds
    from pipeline.report.thumbnails import Photographs
    from pipeline.report.transfer import TransferCase, find_nearest, render
    from pipeline.storage.commit import DRAWING, publish
    from pipeline.storage.forms import StudyFile
    from pipeline.storage.records import read_cell, read_record
    from pipeline.text.tfidf import join_fields
    from stages.texts import read_documents

    config, manifest, folder, found = run.config, run.manifest, run.layout.study.path, read_study(run)
    study = read_record(run.layout.study.commit, StudyFile)
    table = gong.transfer_table(gong.GongSetting.from_dict(study["setting"]))
    cells = {row.label: row.cells[0] for row in table.rows}
    measured = {label: read_cell(folder, study["cells"][cell.key][0], cell.key) for label, cell in cells.items()}
    stacked = [label for label, cell in cells.items() if cell.training == "sae"]
    compared = gong.FULLY, max(stacked, key=lambda label: measured[label]["chosen"]["recall_sum"])

    cell = cells[compared[1]]
    folds = draw_folds(cell, 0, found.target.source.n_folds, found.overlap)
    view = found.target.view.select(cell.encoders)
    image_ids = np.array([int(image_id) for image_id in measured[gong.FULLY]["answers"]])
    places = np.searchsorted(found.test.image_id, image_ids)
    queries = view.stack({name: found.test.features[name][places] for name in view.encoders})
    documents = read_documents(run, "all")
    fields = join_fields(documents.to_pylist(), config.documents["all"].fields)
    weak = dict(zip(documents["image_id"].to_pylist(), fields, strict=True))
    near = {}
    for name, pairs, own in (
        ("target set", found.target.source, folds.target),
        ("auxiliary set", found.auxiliary("all").source, folds.auxiliary),
    ):
        blocks = pairs.blocks(own, view.encoders, found.target.text.encoders, BLOCK)
        near[name] = find_nearest(queries, ((one.image_id, view.stack(one.features)) for one in blocks), NEAREST)

    owners, texts = manifest.sentence_images, manifest.sentences["text"]
    show = Photographs(run.photographs.read, ImageLimits.from_settings(config.collection))

    def picture(image_id: int):
        return show(manifest.images.slice(image_id, 1).to_pylist()[0])

    def text(name: str, image_id: int) -> str:
        if name == "auxiliary set":
            return weak.get(image_id, "")
        return texts[pc.index(manifest.sentences["image_id"], image_id).as_py()].as_py()

    cases = [
        TransferCase(
            picture(image_id),
            {
                label: [
                    (texts[row].as_py(), bool(owners[row] == image_id))
                    for row in measured[label]["answers"][str(image_id)]
                ]
                for label in compared
            },
            {name: [(picture(one), text(name, one)) for one in ids[place].tolist()] for name, ids in near.items()},
        )
        for place, image_id in enumerate(image_ids.tolist())
    ]
    page = render(f"{compared[0]} and {compared[1]}", cases).encode()
    about = {"kind": DRAWING, "rows": len(cases), "provenance": job.provenance}
    publish(job.path, page, **about)


STAGE = Stage(
    show_transfer,
    version=2,
    gpu=True,
    keys=study_keys,
    reads=lambda config, layout: {**study_reads(config, layout), "study": layout.study},
    writes=lambda layout: layout.transfer_page,
)
