"""What several commands read and hand to one computation; the commands keep what is their own."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from PIL import Image

    from pipeline.config.schema.encoders import Encoder
    from pipeline.images.image_encoder import EncoderMaterial
    from pipeline.images.networks import NetworkEncoder
    from pipeline.models.neural.training import Checkpoint, Training
    from pipeline.run import Run
    from pipeline.storage.embeddings import Embeddings
    from pipeline.storage.parameters import Parameters
    from pipeline.storage.trees import ParseShard
    from pipeline.text.trees import SentenceTrees
    from pipeline.text.vocabulary import Vocabulary

COMPARED = 4
"""Images on which features made elsewhere are compared with what the encoder named for them makes."""


def read_material(run: "Run") -> "EncoderMaterial":
    """What image encoders of the run are made from."""
    from pipeline.errors import InputError
    from pipeline.images.decode import ImageLimits
    from pipeline.images.image_encoder import EncoderMaterial, GivenFeatures, TrainImages
    from pipeline.storage.features import read_weights
    from stages.given import match_given

    settings, collection = run.config, run.config.collection

    def train_images() -> TrainImages:
        manifest = run.manifest
        return TrainImages(
            manifest.images,
            (manifest.splits == "train").nonzero()[0],
            manifest.fingerprint,
            run.images.read,
            ImageLimits.from_settings(collection),
            run.decoders,
        )

    def folder(name: str) -> Path | None:
        place = Path(settings.weights_root) / name
        return place if place.is_dir() else None

    def given(entry: "Encoder") -> GivenFeatures:
        matched = match_given(run, entry)
        rows = range(min(COMPARED, len(matched.labels)))
        pictures, reasons = zip(*open_photographs(run, list(rows)), strict=True)
        if any(reasons):
            raise InputError(f"{max(reasons)}; it could be used before: run ingest again")
        return GivenFeatures(pictures, matched.names(rows), matched.features(rows))

    return EncoderMaterial(
        settings.seed,
        settings.regions.decisive(),
        lambda file, sha256: read_weights(Path(settings.weights_root) / file, sha256),
        folder,
        run.encoder,
        train_images,
        given,
    )


def describe_model(run: "Run", name: str) -> dict[str, Any]:
    """What the details of a fitted or trained model say of its place in the configuration."""
    known = run.config.model(name)
    return {
        "model": name,
        "refits": run.config.refitted(name),
        "registered": known.spec.name,
        "hyperparameters": known.hyperparameters,
        "named": known.named,
        "training": known.training,
    }


def restore_model(run: "Run", name: str) -> "tuple[Any, Parameters]":
    """A model of the run, on its GPU where it has one, and what is stored of it."""
    from pipeline.config.registry.stored import restore

    stored = run.model(name)
    where = run.layout.model(name).path
    model = restore(stored.details["registered"], stored.settings, stored.tensors, where)
    if (gpu := run.gpu) is not None:
        model.to(gpu)
    return model, stored


def read_token_vocabulary(run: "Run") -> "tuple[Vocabulary, str]":
    """The vocabulary of words, and its fingerprint."""
    from pipeline.storage.records import read_vocabulary
    from pipeline.text.vocabulary import Vocabulary

    value = read_vocabulary(run.layout.token_vocabulary.path)
    return Vocabulary.from_dict(value), value["fingerprint"]


class DescribedImages(NamedTuple):
    """Images with their sentences, by split (`pairs`), the `texts` of these, the `vocabulary` of their words, and the
    origins of the features of the `encoders`."""

    pairs: dict[str, Any]
    texts: dict[str, list[str]]
    vocabulary: Any
    vocabulary_fingerprint: str
    encoders: dict[str, Any]


def read_described(run: "Run", encoders: tuple[str, ...], splits: tuple[str, ...]) -> DescribedImages:
    """The images of `splits` that have sentences, with these: what generators learn from and are judged by."""
    import numpy as np

    from pipeline.models.neural.task import TrainingPairs
    from pipeline.storage.rows import FeatureRows, TokenRows
    from pipeline.text.sequences import Tokens

    manifest = run.manifest
    vocabulary, digest = read_token_vocabulary(run)
    stored = TokenRows(manifest, run.layout.sentences("tokens").folder)
    tokens, pairs, texts, origins = Tokens(stored.ids, stored.offsets), {}, {}, {}
    for split in splits:
        found = run.pairs(split)
        rows = {name: FeatureRows(run.features, name, found.image_id) for name in encoders}
        pairs[split] = TrainingPairs(rows, tokens.take(found.sentence_id), found.owners, found.sentence_id)
        texts[split] = manifest.sentences["text"].take(np.asarray(found.sentence_id)).to_pylist()
        origins |= {name: block.origin for name, block in rows.items()}
    return DescribedImages(pairs, texts, vocabulary, digest, origins)


def read_trees(
    parses: "ParseShard", texts: list[str], analyze: "Callable[[str], list[str]]"
) -> "Iterator[SentenceTrees]":
    """The trees of one shard's `texts`, over the words that `analyze` finds in them."""
    from pipeline.text.dependencies import read_conllu
    from pipeline.text.phrase_trees import read_brackets
    from pipeline.text.trees import fit_trees

    found = (entry.parse for entry in read_conllu(parses.conllu, str(parses.path)))
    trees = (tree for _, tree in read_brackets(parses.brackets, str(parses.brackets_path)))
    return fit_trees(found, trees, texts, analyze)


def prepare_start(run: "Run", encoder: "Encoder", training: Any) -> "NetworkEncoder":
    """The network that the training of an encoder begins with: with the weights that `training`, a section with
    `start`, `file` and `sha256`, names."""
    weights = {"weights": training.start, "file": training.file, "sha256": training.sha256}
    return encoder.spec.load().prepare(encoder.model_copy(update=weights), read_material(run))


def open_photographs(run: "Run", image_id: "np.ndarray | list[int]") -> "Iterator[tuple[Image.Image | None, str]]":
    """The photographs `image_id` (k,), each with an empty text, or None and the reason where one cannot be read."""
    from pipeline.errors import InputError
    from pipeline.images.decode import ImageLimits
    from pipeline.images.preprocess import Photograph, open_photograph

    limits, read = ImageLimits.from_settings(run.config.collection), run.photographs.read
    for row in run.manifest.pick(image_id):
        photograph = Photograph.from_row(row)
        try:
            yield open_photograph(read, limits, photograph), ""
        except InputError as error:
            yield None, f"{photograph.name}: {error}"


def read_bundled_embeddings(run: "Run", bundle: Any) -> "Embeddings":
    """The run's embeddings of the model of a bundle."""
    from pipeline.storage.embeddings import Embeddings
    from pipeline.storage.files import plain

    model = plain(bundle.card["model"], bundle.folder)
    return Embeddings(run.manifest, run.layout.embeddings(model).folder)


def read_analyzer(run: "Run") -> "Callable[[str], list[str]]":
    """What finds the words of a sentence."""
    from pipeline.text.tokens import make_analyzer

    return make_analyzer(read_token_vocabulary(run)[0].settings)


def read_words(
    run: "Run", sentence_id: "np.ndarray", analyze: "Callable[[str], list[str]]", stored: Any
) -> list[list[str]]:
    """The words of some sentences that have one vector for each, `stored`; a sentence without words has the vector of
    one unknown word. IntegrityError where there are more or fewer vectors."""
    import numpy as np

    from pipeline.errors import IntegrityError

    words = [analyze(text) or [""] for text in run.manifest.sentences["text"].take(sentence_id).to_pylist()]
    if not np.array_equal(list(map(len, words)), stored.lengths):
        path = run.layout.token_vocabulary.path
        raise IntegrityError(f"the words of the sentences by {path} do not match their vectors; run embed again")
    return words


@contextmanager
def follow_training(
    name: str, settings: Any, folder: Path, digest: str
) -> "Iterator[tuple[Checkpoint | None, Callable[[Training], None]]]":
    """The checkpoint to resume the training of fingerprint `digest` from, and what to call after each step: it moves a
    bar and saves a checkpoint in `folder` as often as `settings` say. They are removed when the block succeeds."""
    from tqdm import tqdm

    from pipeline.models.neural.training import Checkpoint
    from pipeline.storage.parameters import Checkpoints

    checkpoints = Checkpoints(folder, digest, getattr(settings, "checkpoint_seconds", 0))
    found = checkpoints.latest()
    with tqdm(desc=f"train {name}", unit="batch", disable=None) as bar:

        def after_step(training: "Training") -> None:
            bar.total, bar.n = training.steps * settings.epochs, training.steps_done
            bar.update(0)
            checkpoints.offer(lambda: vars(training.checkpoint()).values())

        yield Checkpoint(found.tensors, found.settings) if found else None, after_step
    checkpoints.clear()
