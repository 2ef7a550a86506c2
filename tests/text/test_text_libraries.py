"""Tests that text encoders of other libraries return the vectors of their own library."""

import json
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from tiny_library_models import DIM, LENGTH, SIDES, WIDTH, WORDS, make_tokenizer, parts_of, save_dual

from pipeline.config.loading import default_path, read_mapping, validate
from pipeline.config.section import merge
from pipeline.encoders.material import EncoderMaterial
from pipeline.encoders.restore import restore_encoder
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.errors import InputError

TEXTS = ["a red dog", "the dog runs on the beach", "", "a dog on the red beach runs a dog on the red beach runs"]


def prepare(root: Path, kind: str, **own: Any) -> Any:
    """Make the text encoder of an entry, store it, and return the restored encoder. Check that the restored encoder
    gives the same vectors, also in batches on a device."""
    key = kind.replace("-", "_")
    pytest.importorskip(key)
    values = {"text_encoders": [{"name": "theirs", "kind": kind, **own}]}
    entry = validate(merge(read_mapping(default_path()), values)).text_encoder("theirs")
    made = entry.spec.load().prepare(entry, EncoderMaterial(0, root))
    restored = restore_encoder(TextEncoder, parts_of(made, Path(mkdtemp(dir=root))))
    np.testing.assert_allclose(restored.encode(TEXTS), made.encode(TEXTS), rtol=1e-5, atol=1e-6)
    on_device = restored.on_device("cpu", "float32", 3)(TEXTS)  # The four texts are encoded in two batches.
    np.testing.assert_allclose(on_device, made.encode(TEXTS), rtol=1e-5, atol=1e-6)
    return restored


def store_bert(folder: Path) -> tuple[Any, Any]:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIDES, vocab_size=len(WORDS), max_position_embeddings=32, pad_token_id=0)
    model = transformers.BertModel(config).eval()
    tokenizer = make_tokenizer()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def test_a_model_without_an_image_side_gives_the_mean_of_its_tokens(tmp_path: Path) -> None:
    """The reference encodes one text after another, so that texts are not padded."""
    model, tokenizer = store_bert(tmp_path / "bert")
    encoder = prepare(tmp_path, "transformers", architecture="bert")
    for text, found in zip(TEXTS, encoder.encode(TEXTS), strict=True):
        with torch.inference_mode():
            states = model(**tokenizer(text, return_tensors="pt", truncation=True)).last_hidden_state
        np.testing.assert_allclose(found, states[0].mean(0), rtol=1e-4, atol=1e-5)
    wide = encoder.encode(["\N{FULLWIDTH LATIN SMALL LETTER A} red dog"])
    np.testing.assert_allclose(wide, encoder.encode(TEXTS[:1]), rtol=1e-4, atol=1e-5)
    assert encoder.dim == WIDTH


def test_the_text_side_of_clip_gives_the_vectors_of_transformers(tmp_path: Path) -> None:
    model, tokenizer = save_dual("CLIP", tmp_path / "clip", 32)
    encoder = prepare(tmp_path, "transformers", architecture="clip")
    given = tokenizer(TEXTS, return_tensors="pt", truncation=True, padding=True)
    with torch.inference_mode():
        states = model.text_model(input_ids=given["input_ids"], attention_mask=given["attention_mask"]).pooler_output
        expected = states @ model.text_projection.weight.T
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, rtol=1e-4, atol=1e-5)
    assert not [name for name in encoder.body.state_dict() if "vision" in name] and encoder.dim == DIM


def test_an_encoder_of_sentence_transformers_gives_the_vectors_of_the_library(tmp_path: Path) -> None:
    theirs = pytest.importorskip("sentence_transformers")
    from sentence_transformers import models

    store_bert(tmp_path / "bert")
    for pooling in ("mean", "cls", "max", "lasttoken"):
        parts = [models.Transformer(str(tmp_path / "bert")), models.Pooling(WIDTH, pooling)]
        whole = theirs.SentenceTransformer(modules=[*parts, models.Dense(WIDTH, 5), models.Normalize()], device="cpu")
        whole.save(str(tmp_path / pooling), create_model_card=False)
        found = prepare(tmp_path, "sentence-transformers", architecture=pooling).encode(TEXTS)
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        np.testing.assert_allclose(found, whole.encode(TEXTS), rtol=1e-3, atol=1e-4, err_msg=pooling)


def test_the_first_layers_of_sentence_transformers_give_the_hidden_states(tmp_path: Path) -> None:
    theirs = pytest.importorskip("sentence_transformers")
    from sentence_transformers import models

    model, tokenizer = store_bert(tmp_path / "bert")
    parts = [models.Transformer(str(tmp_path / "bert")), models.Pooling(WIDTH, "mean")]
    theirs.SentenceTransformer(modules=parts, device="cpu").save(str(tmp_path / "mean"), create_model_card=False)
    with torch.inference_mode():
        states = model(**tokenizer(TEXTS[0], return_tensors="pt"), output_hidden_states=True).hidden_states
    for layer, state in enumerate(states):
        found = prepare(tmp_path, "sentence-transformers", architecture="mean", layer=layer).encode(TEXTS[:1])
        np.testing.assert_allclose(found[0], state[0].mean(0), rtol=1e-3, atol=1e-4)
    with pytest.raises(InputError, match="the model has 2 layers, but the key layer is 3"):
        prepare(tmp_path, "sentence-transformers", architecture="mean", layer=3)


def test_the_text_side_of_open_clip_gives_the_vectors_of_the_library(tmp_path: Path) -> None:
    open_clip = pytest.importorskip("open_clip")
    from safetensors.torch import save_file

    torch.manual_seed(0)
    vision = {"image_size": 32, "layers": 1, "width": WIDTH, "head_width": 8, "patch_size": 8}
    text = {"context_length": LENGTH, "vocab_size": 49408, "width": WIDTH, "heads": 2, "layers": 2}
    config = {"embed_dim": DIM, "vision_cfg": vision, "text_cfg": text}
    (folder := tmp_path / "oc").mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    model = open_clip.CLIP(**config).eval()
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    encoder = prepare(tmp_path, "open_clip", architecture="oc")
    with torch.inference_mode():
        expected = model.encode_text(open_clip.get_tokenizer(f"local-dir:{folder}")(TEXTS))
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, rtol=1e-4, atol=1e-5)
    assert not [name for name in encoder.body.state_dict() if "visual" in name]


UNNORMALISED_TEXTS = [
    "A RED dog!",
    "The dog: runs_on the beach.",
    "",
    "a dog on the red beach runs a dog on the red beach runs",
]
"""Texts with capital letters and punctuation. SigLIP was trained on texts in lower case without punctuation. The texts
were padded to the full length of the text input, and had no mask."""


def test_siglip_normalises_texts_like_its_own_processor(tmp_path: Path) -> None:
    model, tokenizer = save_dual("Siglip", tmp_path / "siglip", 32)
    encoder = prepare(tmp_path, "transformers", architecture="siglip")
    cleaned = ["a red dog", "the dog runs on the beach", *UNNORMALISED_TEXTS[2:]]
    ids = tokenizer(cleaned, return_tensors="pt", truncation=True, padding="max_length", max_length=LENGTH)["input_ids"]
    with torch.inference_mode():
        expected = model.get_text_features(input_ids=ids).pooler_output
    np.testing.assert_allclose(encoder.encode(UNNORMALISED_TEXTS), expected, rtol=1e-4, atol=1e-5)
