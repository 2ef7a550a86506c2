"""What several commands read and hand to one computation; the commands keep what is their own."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.config.images import Encoder as EncoderSection
    from pipeline.images.encoders import Encoder
    from pipeline.linear.study import Study


def read_study(
    settings: "Config",
    manifest_folder: Path,
    features_root: Path,
    tfidf_folder: Path,
    moments_folder: Path,
    auxiliary_root: Path,
    documents_root: Path,
) -> "Study":
    """The stored pairs in folds, with the dev and test rows and the grids that `study` and `sweep` measure with."""
    from pipeline.linear.sets import FoldedMoments
    from pipeline.linear.study import Study
    from pipeline.linear.training import Transfer
    from pipeline.linear.tuning import Grid
    from pipeline.models import model_class
    from pipeline.storage.gather import Features, Sentences, read_split
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.moments import PairSet

    features = Features(Manifest(manifest_folder), features_root)
    sentences = Sentences(features.manifest, tfidf_folder)
    target = FoldedMoments(PairSet(features, sentences, moments_folder))

    @lru_cache(maxsize=2)  # moments are large, and tables go from one set of documents to the next
    def auxiliary(documents: str) -> FoldedMoments:
        texts = Sentences(features.manifest, documents_root / documents)
        return FoldedMoments(PairSet(features, texts, auxiliary_root / documents))

    def own(model: str) -> Any:
        values = settings.own_section(model)
        return model_class(model).settings_type(**values) if values else None

    every = features.manifest.images.num_rows
    return Study(
        target,
        auxiliary,
        overlap="train" in settings.auxiliary.splits,
        dev=read_split(features, sentences, target.view.encoders, "dev", settings.study.fit.dev_images),
        test=read_split(features, sentences, target.view.encoders, "test", every),
        grid=Grid(**settings.study.fit.model_dump(exclude={"dev_images"})),
        transfer=Transfer(**settings.transfer.model_dump()),
        own=own,
        protocol=settings.study.protocol,
        seed=settings.seed,
    )


def read_network(
    settings: "Config", chosen: "EncoderSection", weights: str, file: str | None, sha256: str | None
) -> "Encoder":
    """The network of an encoder cut off after its layer, its `weights` untrained, torchvision's, or those of `file`."""
    from pipeline.images.encoders import EncoderSpec, trained, untrained
    from pipeline.images.preprocess import Preprocessing
    from pipeline.images.weights import download, parse
    from pipeline.storage.features import read_weights

    preprocessing = Preprocessing(chosen.resize, chosen.crop, chosen.mean, chosen.std)
    spec = EncoderSpec(chosen.architecture, chosen.layer, preprocessing, chosen.flip)
    if weights == "untrained":
        return untrained(spec, settings.seed)
    if weights == "torchvision":
        state, origin = download(chosen.architecture)
        return trained(spec, state, {"origin": origin})
    data, sha256 = read_weights(Path(settings.weights_root) / file, sha256)
    return trained(spec, parse(data, file), {"origin": file, "sha256": sha256})
