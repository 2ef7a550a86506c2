"""What several commands read and hand to one computation; the commands keep what is their own."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from PIL import Image

    from pipeline.config import Config
    from pipeline.images.encoders import EncoderMaterial
    from pipeline.models.neural.training import Checkpoint, Training
    from pipeline.run import Run
    from pipeline.storage.embeddings import Embeddings
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.trees import ParseShard
    from pipeline.text.tree_encoding import SentenceTrees


def read_material(run: "Run") -> "EncoderMaterial":
    """What image encoders of the run are made from."""
    from pipeline.images.decode import ImageLimits
    from pipeline.images.encoders import EncoderMaterial, TrainImages
    from pipeline.storage.features import read_weights
    from pipeline.storage.sources import ImageSource

    settings, collection = run.config, run.config.collection

    def train_images() -> TrainImages:
        manifest = run.manifest
        return TrainImages(
            manifest.images,
            (manifest.splits == "train").nonzero()[0],
            manifest.fingerprint,
            ImageSource(manifest.root, collection.follow_links).read,
            ImageLimits.from_settings(collection),
            settings.extract.decode_workers,
        )

    return EncoderMaterial(
        settings.seed,
        settings.regions.decisive(),
        lambda file, sha256: read_weights(Path(settings.weights_root) / file, sha256),
        run.encoder,
        train_images,
    )


class DescribedImages(NamedTuple):
    """Images with their sentences by split, `pairs`, the `texts` of these, the `vocabulary` of their words, what all
    was made from, `inputs`, and the `origins` of the features (encoder -> file -> origin)."""

    pairs: dict[str, Any]
    texts: dict[str, list[str]]
    vocabulary: Any
    vocabulary_fingerprint: str
    inputs: dict[str, str]
    origins: dict[str, dict[str, Any]]

    @property
    def encoders(self) -> dict[str, Any]:
        """The origin of each encoder's features."""
        return {name: next(iter(files.values())) for name, files in self.origins.items()}


def read_described(run: "Run", encoders: tuple[str, ...], splits: tuple[str, ...]) -> DescribedImages:
    """The images of `splits` that have sentences, with these, as generators learn from them and are judged by them."""
    import numpy as np

    from pipeline.models.neural.task import TrainingPairs
    from pipeline.storage.embeddings import split_pairs
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.gather import Features
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.rows import FeatureRows, TokenRows
    from pipeline.text.sequences import Tokens
    from pipeline.text.vocabulary import Vocabulary

    manifest, words, folder = run.manifest, run.layout.token_vocabulary.path, run.layout.sentences("tokens").folder
    value, stored = read_vocabulary(words), TokenRows(manifest, folder)
    require_same("vocabulary", {str(words): value["fingerprint"], str(folder): stored.vocabulary})
    features = Features(manifest, run.root / "features")
    tokens, pairs, texts = Tokens(stored.ids, stored.offsets), {}, {}
    inputs, origins = {"manifest": manifest.fingerprint, **stored.fingerprints}, {}
    for split in splits:
        found = split_pairs(manifest, split)
        rows = {name: FeatureRows(features, name, found.image_id) for name in encoders}
        pairs[split] = TrainingPairs(rows, tokens.take(found.sentence_id), found.owners, found.sentence_id)
        texts[split] = manifest.sentences["text"].take(np.asarray(found.sentence_id)).to_pylist()
        inputs |= {key: digest for block in rows.values() for key, digest in block.fingerprints.items()}
        origins |= {name: block.origins for name, block in rows.items()}
    return DescribedImages(pairs, texts, Vocabulary.from_dict(value), value["fingerprint"], inputs, origins)


def read_trees(
    parses: "ParseShard", texts: list[str], analyze: "Callable[[str], list[str]]"
) -> "Iterator[SentenceTrees]":
    """The trees of one shard's `texts`, over the words that `analyze` finds in them."""
    from pipeline.text.brackets import read_brackets
    from pipeline.text.conllu import read_conllu
    from pipeline.text.tree_encoding import fit_trees

    found = (entry.parse for entry in read_conllu(parses.conllu, str(parses.path)))
    trees = (tree for _, tree in read_brackets(parses.brackets, str(parses.brackets_path)))
    return fit_trees(found, trees, texts, analyze)


def open_photographs(
    manifest: "Manifest", image_id: "np.ndarray", settings: "Config"
) -> "Iterator[tuple[Image.Image | None, str]]":
    """The photographs `image_id` (k,) of a manifest, each with an empty text, or None with the reason why not."""
    from pipeline.errors import InputError
    from pipeline.images.decode import ImageLimits
    from pipeline.images.preprocess import Photograph, open_photograph
    from pipeline.storage.sources import ImageSource, find_photographs

    limits = ImageLimits.from_settings(settings.collection)
    root, follow_links = find_photographs(manifest.root, Path(settings.data_root)), settings.collection.follow_links
    read = ImageSource(root, follow_links).read
    for row in manifest.images.take(image_id).to_pylist():
        photograph = Photograph.from_row(row)
        try:
            yield open_photograph(read, limits, photograph), ""
        except InputError as error:
            yield None, f"{photograph.name}: {error}"


def read_bundled_embeddings(run: "Run", bundle_folder: Path) -> "Embeddings":
    """The vectors that a run has of the model that a bundle is of."""
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.embeddings import Embeddings
    from pipeline.storage.names import plain

    model = plain(Bundle(bundle_folder).card["model"], bundle_folder)
    return Embeddings(run.manifest, run.layout.embeddings(model).folder)


def read_analyzer(run: "Run", embeddings: "Embeddings") -> "Callable[[str], list[str]]":
    """What finds the words of a sentence. IntegrityError where `embeddings` were made with another vocabulary."""
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.records import read_vocabulary
    from pipeline.text.tokens import make_analyzer
    from pipeline.text.vocabulary import Vocabulary

    path = run.layout.token_vocabulary.path
    value = read_vocabulary(path)
    require_same("vocabulary", {str(path): value["fingerprint"], str(embeddings.folder): embeddings.vocabulary})
    return make_analyzer(Vocabulary.from_dict(value).settings)


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
        raise IntegrityError(f"the sentences have other words by {path} than vectors; run embed again")
    return words


@contextmanager
def follow_training(
    name: str, settings: Any, folder: Path, digest: str
) -> "Iterator[tuple[Checkpoint | None, Callable[[Training], None]]]":
    """Where the training of fingerprint `digest` goes on from, and what to call after each step: it moves a bar and
    keeps a checkpoint in `folder` as often as its `settings` say. Checkpoints go when the block ends well."""
    from tqdm import tqdm

    from pipeline.models.neural.training import Checkpoint
    from pipeline.storage.checkpoints import Checkpoints

    checkpoints = Checkpoints(folder, digest, getattr(settings, "checkpoint_seconds", 0))
    found = checkpoints.latest()
    with tqdm(desc=f"train {name}", unit="batch", disable=None) as bar:

        def after_step(training: "Training") -> None:
            bar.total, bar.n = training.steps * settings.epochs, training.steps_done
            bar.update(0)
            checkpoints.offer(lambda: vars(training.checkpoint()).values())

        yield Checkpoint(found.tensors, found.settings) if found else None, after_step
    checkpoints.clear()
