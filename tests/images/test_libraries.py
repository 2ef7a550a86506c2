"""Networks of other libraries make the features that their own library makes, and nothing else is stored or asked."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from libraries import CLIP_MEAN, DIM, SIDES, save_onnx, save_transformers, store, stored_in, tiny_network
from pictures import MEAN, STD, make_image
from PIL import Image

from pipeline.config import default_path, read_mapping, validate
from pipeline.config.registry.encoders import encoder_spec
from pipeline.config.registry.stored import restore_encoder
from pipeline.config.schema.section import merge
from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.images.encoders import EncoderMaterial
from pipeline.images.preprocess import Preprocessing
from pipeline.images.preprocess import prepare as prepare_pixels

SIDE = 32
IMAGES = [make_image(seed) for seed in range(5)]
GIVEN = {"mean": MEAN, "std": STD, "interpolation": "bicubic"}


def entry_of(kind: str, **keys: Any) -> Any:
    values = {"encoders": [{"name": "theirs", "kind": kind, **keys}]}
    return validate(merge(read_mapping(default_path()), values)).encoder("theirs")


def prepare(root: Path, kind: str, **keys: Any) -> Any:
    """The encoder of an entry, restored from what is stored of it."""
    pytest.importorskip(kind)
    entry = entry_of(kind, **keys)
    material = EncoderMaterial(0, {}, *stored_in(root), None, None, None)
    made = entry.spec.load().prepare(entry, material)
    return restore_encoder(json.loads(json.dumps(made.settings())), made.tensors())


def require_alike(found: np.ndarray, expected: torch.Tensor) -> None:
    """The same but for how pictures are rounded: theirs are resized, then cropped, ours in one pass."""
    expected = expected.detach().numpy()
    cosines = (found * expected).sum(axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.999
    between = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected - np.roll(expected, 1, 0), axis=1)
    assert between.max() < 0.2


def test_clip_of_transformers_is_what_it_is_there_and_without_its_text_side(tmp_path: Path) -> None:
    encoder = prepare(store("transformers", SIDE, tmp_path), "transformers", architecture="transformers")
    from transformers import CLIPImageProcessor, CLIPModel

    theirs = CLIPModel.from_pretrained(tmp_path / "transformers").eval()
    pixels = CLIPImageProcessor.from_pretrained(tmp_path / "transformers")(IMAGES, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        expected = theirs.vision_model(pixels).pooler_output @ theirs.visual_projection.weight.T
    require_alike(encoder.encode(IMAGES), expected)
    assert not [name for name in encoder.tensors() if "text" in name] and encoder.dim == DIM


@pytest.mark.parametrize("pooled", [True, False])
def test_a_vision_transformer_without_pooling_weights_gives_its_first_token(tmp_path: Path, pooled: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**SIDES, image_size=SIDE, patch_size=8)
    theirs = transformers.ViTModel(config, add_pooling_layer=pooled).eval()
    save_transformers(theirs, SIDE, tmp_path)
    encoder = prepare(tmp_path, "transformers", architecture="transformers")
    pixels = encoder.normalise(torch.from_numpy(np.stack([np.asarray(one.resize((SIDE, SIDE))) for one in IMAGES])))
    with torch.inference_mode():
        found = theirs(pixels)
        expected = found.pooler_output if pooled else found.last_hidden_state[:, 0]
        np.testing.assert_allclose(encoder.body(pixels), expected, rtol=1e-4, atol=1e-5)
    assert any("pooler" in name for name in encoder.tensors()) == pooled


@pytest.mark.parametrize("kind", ["ConvNext", "Swin", "Dinov2"])
def test_networks_of_many_kinds_come_back_as_they_are_there(tmp_path: Path, kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "ConvNext": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
        "Swin": {
            "image_size": SIDE,
            "patch_size": 4,
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
        },
        "Dinov2": {**SIDES, "image_size": SIDE, "patch_size": 8},
    }
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes[kind])).eval()
    save_transformers(theirs, SIDE, tmp_path)
    encoder = prepare(tmp_path, "transformers", architecture="transformers")
    pixels = encoder.normalise(torch.from_numpy(np.stack([np.asarray(one.resize((SIDE, SIDE))) for one in IMAGES])))
    with torch.inference_mode():
        expected = theirs(pixels).pooler_output.flatten(1)
        np.testing.assert_allclose(encoder.body(pixels), expected, rtol=1e-4, atol=1e-5)


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    save_transformers(transformers.Dinov2Model(transformers.Dinov2Config(**SIDES)), SIDE, tmp_path)
    path = tmp_path / "transformers/model.safetensors"
    state = safetensors.load_file(path)
    del state["encoder.layer.1.norm1.weight"]
    safetensors.save_file(state, path, {"format": "pt"})
    with pytest.raises(InputError, match=r"cannot get transformers .*its weights lack encoder\.layer\.1"):
        prepare(tmp_path, "transformers", architecture="transformers")


def test_open_clip_is_what_it_is_there(tmp_path: Path) -> None:
    encoder = prepare(store("open_clip", SIDE, tmp_path), "open_clip", architecture="open_clip")
    import open_clip

    theirs, transform = open_clip.create_model_from_pretrained(f"local-dir:{tmp_path / 'open_clip'}")
    with torch.inference_mode():
        expected = theirs.eval().encode_image(torch.stack(list(map(transform, IMAGES))))
    require_alike(encoder.encode(IMAGES), expected)
    assert all(name.startswith("visual.") for name in encoder.tensors()) and encoder.dim == DIM
    assert encoder.preprocessing.mean == CLIP_MEAN and encoder.preprocessing.interpolation == "bicubic"


def test_open_clip_has_to_be_told_which_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name in weights which of its pretrained weights are meant: .*openai"):
        prepare(tmp_path, "open_clip", architecture="ViT-B-32")


def test_timm_is_what_it_is_there_from_a_folder_and_from_a_file(tmp_path: Path) -> None:
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


def test_what_the_entry_says_goes_before_what_the_model_says(tmp_path: Path) -> None:
    store("open_clip", SIDE, tmp_path)
    entry = {"architecture": "open_clip", "resize": SIDE, "crop": None, "std": [1, 1, 1], "interpolation": "bilinear"}
    chosen = prepare(tmp_path, "open_clip", **entry).preprocessing
    assert (chosen.resize, chosen.crop, chosen.mean, chosen.std) == (SIDE, None, CLIP_MEAN, (1, 1, 1))
    assert chosen.interpolation == "bilinear"
    with pytest.raises(InputError, match="does not map images of 40 x 40 pixels to vectors"):
        prepare(tmp_path, "open_clip", architecture="open_clip", resize=40)


@pytest.mark.parametrize("batch", [None, 1, 2])
def test_an_onnx_file_makes_what_the_network_made_that_it_was_exported_from(tmp_path: Path, batch: int | None) -> None:
    pytest.importorskip("onnx")
    save_onnx(network := tiny_network(), SIDE, tmp_path / "network.onnx", batch)
    encoder = prepare(tmp_path, "onnx", file="network.onnx", **GIVEN)
    pixels = torch.from_numpy(np.stack([np.asarray(one.resize((SIDE, SIDE))) for one in IMAGES]))
    images = (pixels.permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    with torch.inference_mode():
        np.testing.assert_allclose(encoder(pixels), network(images), rtol=1e-4, atol=1e-5)
    assert (encoder.preprocessing.resize, encoder.preprocessing.crop) == (SIDE, SIDE)


def test_the_documented_export_of_a_torchvision_network_is_an_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines of docs/own-data.md, with random weights and fewer pixels."""
    pytest.importorskip("onnx")
    page = (Path(__file__).parents[2] / "docs/own-data.md").read_text()
    (lines,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "torch.onnx.export" in block)
    monkeypatch.chdir(tmp_path)
    spoken: dict[str, Any] = {}
    exec(lines.replace('"DEFAULT"', "None").replace("224", str(SIDE)), spoken)
    encoder = prepare(tmp_path, "onnx", file="mobilenet.onnx", **GIVEN)
    pixels = torch.from_numpy(np.stack([np.asarray(one.resize((SIDE, SIDE))) for one in IMAGES]))
    images = (pixels.permute(0, 3, 1, 2) / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
    with torch.inference_mode():
        expected = spoken["network"](images)
    assert expected.shape[1] == 1280
    np.testing.assert_allclose(encoder(pixels), expected, rtol=1e-3, atol=1e-5)


class Pair(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return images.mean((2, 3)), images.amax((2, 3))


def test_an_onnx_file_that_is_no_encoder_is_named(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    store("onnx", SIDE, tmp_path)
    with pytest.raises(InputError, match="network.onnx does not say its preprocessing; give mean, std, interpolation"):
        prepare(tmp_path, "onnx", file="network.onnx")
    onnx.save(
        onnx.load(tmp_path / "network.onnx"), tmp_path / "split.onnx", save_as_external_data=True, size_threshold=0
    )
    (tmp_path / "broken.onnx").write_bytes((tmp_path / "network.onnx").read_bytes()[:300])
    save_onnx(Pair(), SIDE, tmp_path / "pair.onnx")
    save_onnx(tiny_network()[:2], SIDE, tmp_path / "maps.onnx")
    for file, said in (
        ("split.onnx", "keeps weights in other files; save it as one"),
        ("broken.onnx", "broken.onnx cannot be used as an encoder"),
        ("pair.onnx", "it has 1 inputs and 2 outputs"),
        ("maps.onnx", r"it makes \(2, 12, 7, 7\) of two images"),
    ):
        with pytest.raises(InputError, match=said):
            prepare(tmp_path, "onnx", file=file, **GIVEN)


@pytest.mark.parametrize("kind", ["timm", "transformers", "open_clip", "onnx"])
def test_a_missing_extra_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = encoder_spec(kind, "any")
    monkeypatch.setitem(__import__("sys").modules, kind, None)
    monkeypatch.delitem(__import__("sys").modules, spec.place.split(":")[0], raising=False)
    with pytest.raises(UsageError, match=rf"{kind} needs {kind}; pip install 'jointspace\[{kind.replace('_', '-')}\]'"):
        spec.load()


def test_a_hub_that_has_no_such_model_or_is_not_reached_is_told(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    from pipeline.hubs import offline

    for kind, name in (
        ("transformers", "nobody/nothing"),
        ("timm", "hf-hub:nobody/x"),
        ("open_clip", "hf-hub:nobody/x"),
    ):
        with offline(), pytest.raises(InputError, match=f"encoder theirs: cannot get {name} from {kind} .*go online"):
            prepare(tmp_path, kind, architecture=name)


def test_what_is_stored_can_name_no_hub_and_no_file(tmp_path: Path) -> None:
    """The settings of a bundle are others'."""
    pytest.importorskip("timm"), pytest.importorskip("transformers")
    preprocessing = {"resize": 32, "crop": 32, "mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bilinear"}
    about = {"architecture": "x", "layer": "output", "weights": {}, "flip": False, "preprocessing": preprocessing}
    backbone = {"model_type": "timm_backbone", "backbone": "resnet18", "use_pretrained_backbone": True}
    for kind, config in (
        ("timm", {"name": "hf-hub:evil/model", "arguments": {}}),
        ("timm", {"name": f"local-dir:{tmp_path}", "arguments": {}}),
        ("timm", {"name": "test_resnet", "arguments": {"checkpoint_path": str(tmp_path / "evil.pth")}}),
        ("transformers", {"model": backbone, "pooled": True, "unused": []}),
        ("transformers", {"model": {"model_type": "evil", "auto_map": {"AutoModel": "evil--x.E"}}, "pooled": True}),
    ):
        with pytest.raises(IntegrityError, match="the stored encoder has another form"):
            restore_encoder({"kind": kind, "config": config, **about}, {})


@pytest.mark.parametrize(
    ("kind", "keys", "resize", "crop"),
    [
        ("CLIP", {}, 224, 224),
        ("ConvNext", {"size": {"shortest_edge": 224}}, 256, 224),
        ("ConvNext", {"size": {"shortest_edge": 384}}, 384, None),
        ("PoolFormer", {}, 248, 224),
        ("Flava", {}, 224, None),
        ("ViT", {"do_normalize": False}, 224, None),
    ],
)
def test_preprocessing_is_that_of_the_library(
    tmp_path: Path, kind: str, keys: dict, resize: int, crop: int | None
) -> None:
    transformers = pytest.importorskip("transformers")
    from pipeline.images.transformers_models import _own_preprocessing

    theirs = getattr(transformers, f"{kind}ImageProcessor")(**keys)
    theirs.save_pretrained(tmp_path)
    chosen = Preprocessing.from_dict(_own_preprocessing(tmp_path, "theirs"))
    assert (chosen.resize, chosen.crop) == (resize, crop)
    image = IMAGES[0].resize((300, 500), Image.Resampling.BICUBIC)
    expected = theirs(images=image, return_tensors="pt")["pixel_values"][0].permute(1, 2, 0).numpy()
    found = (prepare_pixels(image, chosen) / 255 - np.array(chosen.mean)) / np.array(chosen.std)
    assert np.abs(found - expected).mean() < 0.05 * expected.std()


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("MobileViT", {"size": {"shortest_edge": 288}}),
        ("MobileViT", {"do_flip_channel_order": False}),
        ("CLIP", {"do_resize": False}),
        ("CLIP", {"do_rescale": False}),
        ("DeiT", {}),
        ("Levit", {}),
        ("EfficientNet", {}),
    ],
)
def test_preprocessing_that_is_not_ours_is_refused(tmp_path: Path, kind: str, keys: dict) -> None:
    transformers = pytest.importorskip("transformers")
    from pipeline.images.transformers_models import _own_preprocessing

    getattr(transformers, f"{kind}ImageProcessor")(**keys).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="encoder theirs: the model's images are not resized.* give resize, crop"):
        _own_preprocessing(tmp_path, "theirs")


def test_an_entry_that_says_all_needs_no_processor(tmp_path: Path) -> None:
    (store("transformers", SIDE, tmp_path) / "transformers/preprocessor_config.json").unlink(missing_ok=True)
    (tmp_path / "transformers/processor_config.json").unlink(missing_ok=True)
    chosen = prepare(tmp_path, "transformers", architecture="transformers", resize=SIDE, **GIVEN).preprocessing
    assert (chosen.resize, chosen.crop, chosen.mean, chosen.interpolation) == (SIDE, None, MEAN, "bicubic")


def test_images_that_keep_their_shape_are_refused() -> None:
    pytest.importorskip("transformers")
    from pipeline.images.transformers_models import _preprocessing

    said = {"image_mean": MEAN, "image_std": STD, "resample": 3}
    assert _preprocessing({**said, "size": {"height": 64, "width": 64}})["crop"] is None
    convnext = _preprocessing({**said, "size": {"shortest_edge": 224}, "crop_pct": 0.875})
    assert (convnext["resize"], convnext["crop"], convnext["interpolation"]) == (256, 224, "bicubic")
    with pytest.raises(ValueError, match="no squares"):
        _preprocessing({**said, "size": {"shortest_edge": 224}})
    with pytest.raises(ValueError, match="no square"):
        _preprocessing({**said, "size": {"height": 64, "width": 32}})
