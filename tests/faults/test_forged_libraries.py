"""Forged encoders of transformers, sentence-transformers, open_clip and timm: a message refuses each forgery.

Code that a forged folder contains or names is never run.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_library_models import DIM, WIDTH, WORDS, make_tokenizer, parts_of, save_dual, store

from pipeline.config.loading import validate
from pipeline.encoders.image_encoder import ImageEncoder
from pipeline.encoders.libraries.folder import MAX_CONFIG_BYTES, check_folder
from pipeline.encoders.material import EncoderMaterial, EncoderParts
from pipeline.encoders.restore import restore_encoder
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.errors import IntegrityError
from pipeline.storage.parameters import LibraryFiles

Forge = Callable[[Path], None]
"""A function that changes the folder of an encoder."""


def listed(folder: Path) -> LibraryFiles:
    """Return the folder as if its commit record listed every file in it."""
    names = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    return LibraryFiles(folder, frozenset(path.relative_to(folder).as_posix() for path in names))


def write(name: str, content: str) -> Forge:
    """Return a function that writes `content` to the file `name` of a folder."""

    def forge(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(content)

    return forge


def change(name: str, /, **values: Any) -> Forge:
    """Return a function that sets top-level keys of a JSON file, which is created if it does not exist."""

    def forge(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))

    return forge


def link(name: str) -> Forge:
    """Return a function that makes a link to a file outside of the folder."""

    def forge(folder: Path) -> None:
        os.symlink("/etc/passwd", folder / name)

    return forge


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the files of a valid encoder by hand, without a library, and return their folder."""
    (folder := tmp_path / "library").mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "clip", "text_config": {"num_hidden_layers": 2}}))
    (folder / "model.safetensors").write_bytes(b"\0" * 16)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    return folder


def test_a_valid_folder_is_accepted(folder: Path) -> None:
    assert check_folder(listed(folder)) == folder


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (write("pytorch_model.bin", "pickle"), r"contains pytorch_model\.bin, but only files of the types \.safetens"),
        (write("weights.pt", "pickle"), r"the folder of the encoder contains weights\.pt"),
        (write("sub/model.pkl", "pickle"), r"the folder of the encoder contains sub/model\.pkl"),
        (write("modeling_evil.py", "import os"), r"the folder of the encoder contains modeling_evil\.py"),
        (change("config.json", auto_map={"AutoModel": "evil.Model"}), "in config.json: the key auto_map names code"),
        (change("tokenizer_config.json", auto_map={"AutoTokenizer": ["e.T", None]}), "in tokenizer_config.json"),
        (change("config.json", backbone_config={"model_type": "resnet"}), "the key backbone_config names code"),
        (change("config.json", vision_config={"backbone": "someone/net"}), "the key backbone names"),
        (change("config.json", vision_cfg={"timm_model_name": " local-dir:/etc"}), "names ' local-dir:/etc'"),
        (change("config.json", vision_cfg={"timm_model_name": "hf-\thub:a/b"}), r"names 'hf-\\thub:a/b'"),
        (change("config.json", quantization_config={"quant_method": "evil"}), "the key quantization_config names"),
        (change("config.json", _attn_implementation="someone/kernel"), "the key _attn_implementation names code"),
        (change("config.json", vision_cfg={"timm_model_name": "local-dir:/etc"}), "names 'local-dir:/etc'"),
        (change("config.json", name="hf-hub:someone/net"), "names 'hf-hub:someone/net'"),
        (change("config.json", hidden_size=10**9), "hidden_size is 1000000000, which is more than"),
        (change("adapter_config.json", base_model_name_or_path="someone/net"), "base_model_name_or_path names"),
        (write("big.json", " " * (MAX_CONFIG_BYTES + 1)), r"the file big\.json of the encoder is larger than"),
        (write("odd.json", "{"), r"in odd\.json: "),
        (change("model.safetensors.index.json", weight_map={"a": "../a.safetensors"}), "weight_map does not map"),
        (change("model.safetensors.index.json", weight_map={"a": "/etc/evil.bin"}), "weight_map does not map"),
        (change("model.safetensors.index.json", weight_map=["a"]), "weight_map does not map"),
        (change("config.json", transformers_weights="../x.safetensors"), "transformers_weights is an instruction"),
        (change("tokenizer_config.json", fast_tokenizer_files=["../tokenizer.4.json"]), "fast_tokenizer_files is"),
        (change("sentence_bert_config.json", tokenizer_name_or_path="/etc"), "tokenizer_name_or_path is an instr"),
        (change("sentence_bert_config.json", model_kwargs={"gguf_file": "/x"}), "model_kwargs is an instruction"),
        (lambda folder: os.mkfifo(folder / "vocab.txt"), r"the file vocab\.txt of the encoder is not a regular file"),
        (link("README.md"), "the file README.md of the encoder is a link"),
        (lambda folder: os.symlink(folder.parent, folder / "1_Pooling"), "the file 1_Pooling of the encoder is a link"),
    ],
)  # fmt: skip
def test_a_forged_folder_is_refused(folder: Path, forge: Forge, message: str) -> None:
    forge(folder)
    with pytest.raises(ValueError, match=message):
        check_folder(listed(folder))


def test_a_file_that_the_commit_record_does_not_list_is_refused(folder: Path) -> None:
    files = listed(folder)
    (folder / "extra.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"the folder of the encoder contains extra\.json, which its commit record does not list"
    ):
        check_folder(files)
    (folder / "extra.json").unlink()
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"the file config\.json of the encoder is missing"):
        check_folder(files)
    os.symlink(folder, linked := folder.parent / "linked")
    with pytest.raises(ValueError, match="the folder of the encoder is a link"):
        check_folder(LibraryFiles(linked, files.names))


# --- encoders that the libraries themselves have written


def prepare(kind: str, modality: str, root: Path, folder: str) -> EncoderParts:
    """Prepare an encoder of the kind `kind` from the model in `root / folder`, save it in the new folder `root /
    saved`, and return its parts. `modality` is image or text.
    """
    section = "encoders" if modality == "image" else "text_encoders"
    config = validate({section: [{"name": "theirs", "kind": kind, "architecture": folder}]})
    entry = (config.encoder if modality == "image" else config.text_encoder)("theirs")
    (saved := root / "saved").mkdir()
    return parts_of(entry.spec.load().prepare(entry, EncoderMaterial(0, root)), saved)


def refusal(expected: type, parts: EncoderParts, forge: Forge) -> str:
    """Forge the folder of an encoder, and return the message with which restoring the encoder fails."""
    assert parts.library is not None
    forge(parts.library.folder)
    with pytest.raises(IntegrityError, match="has a form that this version cannot read") as caught:
        restore_encoder(expected, parts._replace(library=listed(parts.library.folder)), "an index")
    return str(caught.value)


def swap_tensors(name: str) -> Forge:
    """Return a function that replaces the largest tensor of a file by a tensor of another shape."""

    def forge(folder: Path) -> None:
        import safetensors.numpy

        tensors = safetensors.numpy.load_file(folder / name)
        largest = max(tensors, key=lambda key: tensors[key].size)
        safetensors.numpy.save_file({**tensors, largest: np.zeros((2, 3), np.float32)}, folder / name)

    return forge


def store_sentence_transformer(root: Path) -> None:
    """Write a small random sentence-transformers model to the folder `st`."""
    library = pytest.importorskip("sentence_transformers")
    transformers = pytest.importorskip("transformers")
    from sentence_transformers import models

    sides = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**sides, vocab_size=len(WORDS), max_position_embeddings=32, pad_token_id=0)
    transformers.BertModel(config).save_pretrained(root / "bert")
    make_tokenizer().save_pretrained(root / "bert")
    parts = [models.Transformer(str(root / "bert")), models.Pooling(WIDTH, "mean"), models.Dense(WIDTH, DIM)]
    library.SentenceTransformer(modules=parts, device="cpu").save(str(root / "st"), create_model_card=False)


def edit_modules(number: int, **values: str) -> Forge:
    """Return a function that sets keys of the module at position `number` in the `modules.json` of a folder."""

    def forge(folder: Path) -> None:
        modules = json.loads((folder / "modules.json").read_text())
        modules[number] |= values
        (folder / "modules.json").write_text(json.dumps(modules))

    return forge


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (edit_modules(1, type="os.system"), "modules.json of the model names the class os.system"),
        (edit_modules(1, type="evil.Pooling"), "modules.json of the model names the class evil.Pooling"),
        (edit_modules(1, type="sentence_transformers.base.modules.router.Router"), "names the class sentence_transf"),
        (edit_modules(1, path="../elsewhere"), "modules.json of the model names the folder ../elsewhere"),
        (edit_modules(1, path="/etc"), "modules.json of the model names the folder /etc"),
        (edit_modules(1, path=".."), "modules.json of the model names the folder .."),
        (edit_modules(2, path=""), ""),
        (change("sentence_bert_config.json", model_args={"a": "x"}), "config.json of the model has model_args"),
        (change("2_Dense/config.json", activation_function="os.system"), "the model has the activation 'os.sys"),
        (change("2_Dense/config.json", activation_function="torch.hub.load"), "has the activation 'torch.hub.load'"),
        (change("config.json", auto_map={"AutoModel": "evil.Model"}), "in config.json: the key auto_map"),
        (write("pytorch_model.bin", "pickle"), "contains pytorch_model.bin"),
        (write("modules.json", "{}"), "the modules.json of the model is not a list"),
    ],
)  # fmt: skip
def test_a_forged_pipeline_of_sentence_transformers_is_refused(tmp_path: Path, forge: Forge, message: str) -> None:
    store_sentence_transformer(tmp_path)
    parts = prepare("sentence-transformers", "text", tmp_path, "st")
    restore_encoder(TextEncoder, parts)
    assert message in refusal(TextEncoder, parts, forge)


@pytest.mark.parametrize("modality", ["image", "text"])
@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (change("config.json", model_type="evil"), ""),
        (change("config.json", auto_map={"AutoModel": "evil.Model"}), "the key auto_map names code"),
        (change("config.json", projection_dim=1 << 20), ""),
        (swap_tensors("model.safetensors"), ""),
        (lambda folder: (folder / "model.safetensors").unlink(), ""),
    ],
)
def test_a_forged_dual_encoder_of_transformers_is_refused(
    tmp_path: Path, modality: str, forge: Forge, message: str
) -> None:
    save_dual("CLIP", tmp_path / "clip", 32)
    parts = prepare("transformers", modality, tmp_path, "clip")
    expected = ImageEncoder if modality == "image" else TextEncoder
    restore_encoder(expected, parts)
    assert message in refusal(expected, parts, forge)


def edit_open_clip(**values: Any) -> Forge:
    """Return a function that sets keys in sections of the configuration of an open_clip model."""

    def forge(folder: Path) -> None:
        config = json.loads((folder / "open_clip_config.json").read_text())
        for section, changed in values.items():
            config["model_cfg"][section] |= changed
        (folder / "open_clip_config.json").write_text(json.dumps(config))

    return forge


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (edit_open_clip(vision_cfg={"timm_model_name": "local-dir:/etc"}), "names 'local-dir:/etc'"),
        (edit_open_clip(text_cfg={"hf_model_name": "someone/net"}), "the key hf_model_name names code or another"),
        (edit_open_clip(text_cfg={"tokenizer_kwargs": {"cache_dir": "/etc"}}), "has the option cache_dir"),
        (edit_open_clip(vision_cfg={"width": 64}), ""),
        (write("open_clip_pytorch_model.bin", "pickle"), "contains open_clip_pytorch_model.bin"),
        (swap_tensors("open_clip_model.safetensors"), ""),
    ],
)  # fmt: skip
def test_a_forged_model_of_open_clip_is_refused(tmp_path: Path, forge: Forge, message: str) -> None:
    pytest.importorskip("open_clip")
    parts = prepare("open_clip", "image", store("open_clip", 32, tmp_path), "open_clip")
    restore_encoder(ImageEncoder, parts)
    assert message in refusal(ImageEncoder, parts, forge)


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (change("config.json", architecture="local-dir:/etc"), "names 'local-dir:/etc'"),
        (change("config.json", architecture="evil"), "does not name a network of timm"),
        (
            change("config.json", model_args={"checkpoint_path": "/etc/evil.pth"}),
            "config.json of the model set checkpoint_path",
        ),
        (change("config.json", pretrained_cfg={"file": "local-dir:/etc"}), "names 'local-dir:/etc'"),
        (write("pytorch_model.bin", "pickle"), "contains pytorch_model.bin"),
        (swap_tensors("model.safetensors"), ""),
    ],
)
def test_a_forged_network_of_timm_is_refused(tmp_path: Path, forge: Forge, message: str) -> None:
    timm = pytest.importorskip("timm")
    timm.models.save_for_hf(timm.create_model("test_resnet"), tmp_path / "net", safe_serialization=True)
    parts = prepare("timm", "image", tmp_path, "net")
    restore_encoder(ImageEncoder, parts)
    assert message in refusal(ImageEncoder, parts, forge)
