"""`list-magnitudes`: the words and regions with the longest and shortest vectors, by the embeddings of a model."""

from pipeline.run import Job, Run, Stage
from stages.commands import count

WORDS, IMAGES, COLUMNS = 40, 24, 6


def list_magnitudes(
    run: Run, job: Job, model: str, split: str, words: int = WORDS, images: int = IMAGES, columns: int = COLUMNS
) -> None:
    """List words by the mean length of their vectors, and the regions with the longest ones; draw these."""
    import numpy as np

    from pipeline.images.contact_sheet import SheetPicture, draw_sheet, to_png
    from pipeline.models.neural.alignment import longest_vectors, word_magnitudes
    from pipeline.storage.commit import publish_record
    from stages.inputs import open_photographs, read_analyzer, read_words

    embeddings, pairs = run.embeddings(model), run.pairs(split)
    sentences = embeddings.read("sentences", pairs.sentence_id)
    spoken = read_words(run, pairs.sentence_id, read_analyzer(run), sentences)
    terms, ids = np.unique([word for own in spoken for word in own], return_inverse=True)
    table = word_magnitudes(sentences.vectors, ids, run.config.align.least_count)
    seen = embeddings.read("images", pairs.image_id)
    owners = seen.owners
    rows = longest_vectors(seen.vectors, owners, images)

    columns_of_words = (terms[table.words].tolist(), table.lengths.tolist(), table.counts.tolist())
    ranked = [
        {"word": word, "magnitude": length, "count": places}
        for word, length, places in zip(*columns_of_words, strict=True)
    ]
    regions = [
        {"image_id": int(pairs.image_id[owners[row]]), "box": seen.boxes[row].tolist(), "magnitude": float(length)}
        for row, length in zip(rows, np.linalg.norm(seen.vectors[rows], axis=1), strict=True)
    ]
    value = {
        "model": model,
        "split": split,
        "lowest": ranked[:words],
        "highest": ranked[::-1][:words],
        "regions": regions,
    }
    photographs = open_photographs(run, pairs.image_id[owners[rows]])
    pictures = [
        SheetPicture(image, np.array([one["box"]]), np.array([one["magnitude"]]), reason or f"{one['magnitude']:.2f}")
        for one, (image, reason) in zip(regions, photographs, strict=True)
    ]
    sheet = run.layout.magnitude_sheet(model, split).path
    publish_record(job.path, value, {sheet.name: to_png(draw_sheet(pictures, columns))}, job.provenance)


STAGE = Stage(
    list_magnitudes,
    version=2,
    names=("model", "split"),
    choices=lambda config: config.aligned_splits(),
    wanted=lambda config: config.aligned_splits(config.align.splits),
    keys=lambda config, model, split: {"least_count": config.align.least_count},
    reads=lambda config, layout, model, split: {
        "manifest": layout.manifest,
        "embeddings": layout.embeddings(model),
        "vocabulary": layout.token_vocabulary,
    },
    writes=lambda layout, model, split: (layout.magnitudes(model, split), layout.magnitude_sheet(model, split)),
    options=(
        count("--words", WORDS, "Words at each end."),
        count("--images", IMAGES, "Regions listed."),
        count("--columns", COLUMNS, "Images side by side."),
    ),
)
