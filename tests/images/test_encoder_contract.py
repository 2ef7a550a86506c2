"""The contract of image encoders, tested for every kind."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pictures import MEAN, STD, make_image
from tiny_library_models import parts_of, store

from pipeline.config.loading import default_path, read_mapping, validate
from pipeline.config.registry import ENCODERS, EncoderSpec, encoder_specs
from pipeline.config.section import merge
from pipeline.encoders.image_encoder import ImageEncoder
from pipeline.encoders.material import EncoderMaterial, EncoderParts
from pipeline.encoders.restore import restore_encoder, stored_spec
from pipeline.errors import IntegrityError, UsageError
from pipeline.images.preprocess import prepare
from pipeline.run.machine import EXTRAS

SIDE = 48
IMAGES = [make_image(seed) for seed in range(9)]
DIMENSIONS = {"gist": 3, "rgb": 2, "csift": 4, "rgbsift": 3, "hog": 2}
SMALL = {"images": 9, "codebook_images": 4, "codebook": 3, "descriptor_dim": 6, "dimensions": DIMENSIONS}
ENTRIES = {
    "network": {"architecture": "squeezenet1_1", "weights": "untrained"},
    "standard": {"kind": "standard", **SMALL},
    "colours": {"kind": "colours", "levels": 4},
    "pooled": {"kind": "pooled", "of": "network"},
    "timm": {"kind": "timm", "architecture": "test_vit", "weights": "untrained", "resize": 160, "crop": 160},
    "transformers": {"kind": "transformers", "architecture": "transformers"},
    "open_clip": {"kind": "open_clip", "architecture": "open_clip"},
}
"""Kind of image encoder -> the keys of its entry in the configuration that differ from the keys shared by all kinds."""


class DrawnImages:
    """Test double of TrainImages, whose images are always the first of IMAGES."""

    manifest = "0" * 64

    def draw(self, count: int, seed: int) -> list:
        return IMAGES[:count]

    def apply_to_pixels(self, what, images, preprocessing, describe) -> list:
        return [describe(prepare(image, preprocessing)) for image in images]


OWN = [spec for spec in encoder_specs("image") if spec.reads != "vectors"]
"""The specs of all kinds of image encoders except the kind for precomputed features, which has no encoder of its
own."""


@pytest.fixture(scope="module", params=OWN, ids=lambda spec: spec.name)
def spec(request: pytest.FixtureRequest) -> EncoderSpec:
    if request.param.extra:
        pytest.importorskip(EXTRAS[request.param.extra][0])
    return request.param


def make(spec: EncoderSpec, root: Path) -> ImageEncoder:
    shared = {"resize": SIDE, "crop": SIDE, "mean": MEAN, "std": STD}
    entries = {name: {"name": name, **shared, **ENTRIES[name]} for name in ("network", spec.name)}
    entries |= {"pooled": {"name": "pooled", **ENTRIES["pooled"]}} if spec.name == "pooled" else {}
    values = {"encoders": list(entries.values())}
    values["regions"] = {"encoders": ["network"], "proposals": "grid", "count": 3}
    config = validate(merge(read_mapping(default_path()), values))
    network = ENCODERS[0].load()

    material = EncoderMaterial(0, root, config.regions.decisive(), images=DrawnImages())
    other = network.prepare(config.encoder("network"), material)
    material = replace(material, base=EncoderParts(other.settings(), other.tensors()))
    entry = config.encoder(spec.name)
    assert entry.spec is spec
    made = spec.load().prepare(entry, material)
    assert entry.max_dim(300) in (None, made.dim)
    return made


@pytest.fixture(scope="module")
def root(spec: EncoderSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder weights_root, with the files from which an encoder of the kind `spec` is made."""
    return store(spec.name, SIDE, tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def encoder(spec: EncoderSpec, root: Path) -> ImageEncoder:
    return make(spec, root)


def test_a_stored_encoder_is_restored_with_its_kind_and_its_features(
    spec: EncoderSpec, encoder: ImageEncoder, tmp_path: Path
) -> None:
    stored = parts_of(encoder, tmp_path)
    settings = stored.settings
    tensors = stored.tensors
    assert {"architecture", "layer", "weights"} <= settings.keys() and settings["weights"]["origin"]
    assert all(isinstance(tensor, np.ndarray) for tensor in tensors.values())
    assert stored_spec(settings, "image") is spec
    again = restore_encoder(ImageEncoder, stored)
    assert json.loads(json.dumps(again.settings())) == settings
    assert np.array_equal(again.encode(IMAGES[:2]), encoder.encode(IMAGES[:2]))


def test_the_same_entry_makes_the_same_encoder(
    spec: EncoderSpec, encoder: ImageEncoder, root: Path, tmp_path: Path
) -> None:
    again = make(spec, root)
    (tmp_path / "again").mkdir()
    assert all(np.array_equal(tensor, again.tensors()[name]) for name, tensor in encoder.tensors().items())
    stored = parts_of(encoder, tmp_path)
    other = parts_of(again, tmp_path / "again")
    assert (stored.library is None) == (not spec.library)
    for name in stored.library.names if stored.library else ():
        assert (stored.library.folder / name).read_bytes() == (other.library.folder / name).read_bytes()


def test_extraction_of_many_images_equals_encoding_of_few_images(spec: EncoderSpec, encoder: ImageEncoder) -> None:
    features = encoder.encode(IMAGES)
    assert features.shape == (len(IMAGES), encoder.dim) and features.dtype == np.float32
    if spec.reads == "regions":
        with pytest.raises(UsageError, match="Use `jointspace stage extract-regions` and `jointspace stage pool"):
            encoder.extractor("cpu", "float32", 4)
        return
    extractor = encoder.extractor("cpu", "float32", 4)
    pictures = (prepare(image, encoder.preprocessing) for image in IMAGES)
    described = map(extractor.view.describe, pictures) if extractor.view.describe else pictures
    np.testing.assert_allclose(extractor(described), features, rtol=1e-4, atol=1e-4)


def test_stored_settings_of_another_form_are_named(spec: EncoderSpec, encoder: ImageEncoder, tmp_path: Path) -> None:
    stored = parts_of(encoder, tmp_path)
    settings = stored.settings
    for wrong in ({}, {**settings, "kind": []}, {name: settings.get(name) for name in ("kind", "architecture")}):
        with pytest.raises(IntegrityError, match="the stored encoder has a form .*Run the stage prepare-encoder again"):
            restore_encoder(ImageEncoder, stored._replace(settings=wrong))
