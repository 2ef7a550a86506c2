"""`show-phrases`: the region that each noun phrase speaks of, on photographs and in a plane."""

from pipeline.run import Job, Run, Stage
from stages.commands import count

IMAGES, COLUMNS, TOP, POINTS = 24, 6, 5, 60


def show_phrases(
    run: Run,
    job: Job,
    model: str,
    split: str,
    images: int = IMAGES,
    columns: int = COLUMNS,
    top: int = TOP,
    points: int = POINTS,
) -> None:
    """Draw the noun phrases of the first sentence of some images of a split, and the regions that they speak of."""
    import numpy as np

    from pipeline.errors import InputError
    from pipeline.evaluate.phrases import best_within
    from pipeline.images.contact_sheet import draw_sheet, picture_spoken_of, to_png
    from pipeline.index.vectors import evenly_spaced
    from pipeline.report.plane import draw_links, scatter_in_plane
    from pipeline.storage.batch import FileBatch
    from pipeline.storage.commit import DRAWING, publish
    from pipeline.storage.phrases import PhraseVectors
    from stages.inputs import open_photographs

    manifest, folder = run.manifest, run.layout.phrases(model, split).path
    stored = PhraseVectors(folder)
    parts = np.flatnonzero(stored.regions["number"].to_numpy() > 0)
    owners, sentences = (stored.phrases[name].to_numpy() for name in ("image_id", "sentence_id"))
    best, scores = best_within(
        owners, stored.phrase_vectors, stored.regions["image_id"].to_numpy()[parts], stored.region_vectors[parts]
    )
    first = np.unique(owners, return_index=True)[1]
    spoken = np.flatnonzero(np.isin(sentences, sentences[first]) & (best >= 0))
    if not len(spoken):
        raise InputError(f"{folder} has no noun phrase whose image has regions; run embed-phrases on another")
    texts = np.array(stored.phrases["text"].to_pylist(), object)

    shown = np.unique(sentences[spoken])
    drawn = shown[evenly_spaced(len(shown), images)]
    lines = manifest.sentences["text"].take(drawn).to_pylist()
    photographs = open_photographs(run, manifest.sentence_images[drawn])
    pictures = []
    for sentence_id, line, (image, reason) in zip(drawn, lines, photographs, strict=True):
        own = spoken[sentences[spoken] == sentence_id]
        boxes = stored.boxes[parts[best[own]]]
        pictures.append(picture_spoken_of(image, reason or line, boxes, texts[own], scores[own], top))

    shown = spoken[np.isin(sentences[spoken], shown[evenly_spaced(len(shown), points)])]
    regions, links = np.unique(best[shown], return_inverse=True)
    vectors = np.concatenate([stored.phrase_vectors[shown], stored.region_vectors[parts[regions]]])
    places = scatter_in_plane(vectors, run.config.seed)
    groups = np.unique(owners[shown], return_inverse=True)[1]
    plane = draw_links(texts[shown], places[: len(shown)], places[len(shown) :], links, groups)
    details = {"model": model, "split": split}
    batch, about = FileBatch(), {"kind": DRAWING, "provenance": job.provenance, "details": details}
    publish(job.path, to_png(draw_sheet(pictures, columns)), rows=len(pictures), **about, batch=batch)
    publish(run.layout.phrase_plane(model, split).path, plane, rows=len(shown), **about, batch=batch)
    batch.publish()


STAGE = Stage(
    show_phrases,
    version=2,
    names=("model", "split"),
    choices=lambda config: config.phrase_splits(),
    wanted=lambda config: config.phrase_splits(config.phrases.splits),
    keys=lambda config, model, split: {"seed": config.seed},
    reads=lambda config, layout, model, split: {"manifest": layout.manifest, "phrases": layout.phrases(model, split)},
    writes=lambda layout, model, split: (layout.phrase_sheet(model, split), layout.phrase_plane(model, split)),
    options=(
        count("--images", IMAGES, "Images drawn."),
        count("--columns", COLUMNS, "Images side by side."),
        count("--top", TOP, "Regions drawn in each."),
        count("--points", POINTS, "Images whose phrases are in the plane."),
    ),
)
