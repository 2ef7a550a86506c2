"""Tests of searches in one language for captions in another language, with multilingual encoders of two libraries."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from synthetic_colours import COLOURS, make_colours
from tiny_library_models import DIM, LENGTH, SIDES, WIDTH, make_tokenizer

import jointspace

GERMAN = {"a": "ein", "picture": "bild", "red": "rotes", "green": "grünes", "blue": "blaues", "white": "weißes"}
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *GERMAN, *GERMAN.values())


def translate(weights: torch.Tensor) -> None:
    """Give each German word the vector of the English word, as a multilingual model has learned to do."""
    with torch.no_grad():
        for english, german in GERMAN.items():
            weights[WORDS.index(german)] = weights[WORDS.index(english)]


def save_sentence_transformer(folder: Path) -> None:
    theirs = pytest.importorskip("sentence_transformers")
    transformers = pytest.importorskip("transformers")
    from sentence_transformers import models

    config = transformers.BertConfig(**SIDES, vocab_size=len(WORDS), max_position_embeddings=32, pad_token_id=0)
    model = transformers.BertModel(config)
    translate(model.embeddings.word_embeddings.weight)
    for part in (model, make_tokenizer(WORDS)):
        part.save_pretrained(folder / "bert")
    parts = [models.Transformer(str(folder / "bert")), models.Pooling(WIDTH, "mean")]
    theirs.SentenceTransformer(modules=parts, device="cpu").save(str(folder / "model"), create_model_card=False)


def save_open_clip(folder: Path) -> None:
    open_clip = pytest.importorskip("open_clip")
    from safetensors.torch import save_file

    vision = {"image_size": 32, "layers": 1, "width": WIDTH, "head_width": 8, "patch_size": 8}
    text = {"context_length": LENGTH, "vocab_size": len(WORDS), "width": WIDTH, "heads": 2, "layers": 2}
    text |= {"hf_tokenizer_name": "model", "no_causal_mask": True, "pool_type": "last"}
    config = {"embed_dim": DIM, "vision_cfg": vision, "text_cfg": text}
    model = open_clip.CLIP(**config)
    translate(model.token_embedding.weight)
    make_tokenizer(WORDS).save_pretrained(folder / "model")
    written = json.dumps({"model_cfg": config, "preprocess_cfg": {}})
    (folder / "model/open_clip_config.json").write_text(written)
    save_file(model.state_dict(), folder / "model/open_clip_model.safetensors")


@pytest.mark.parametrize(
    ("kind", "save"), [("sentence-transformers", save_sentence_transformer), ("open_clip", save_open_clip)]
)
def test_english_captions_are_searched_in_german(tmp_path: Path, kind: str, save: Callable[[Path], None]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        save(tmp_path / "weights")
    encoder = {"name": "bilingual", "kind": kind, "architecture": "model"}
    run = make_colours(tmp_path / "run", text_encoders=[encoder], weights_root=str(tmp_path / "weights"))
    index = jointspace.load(run / "bundle")
    for colour in COLOURS:
        answer = index.search(f"ein {GERMAN[colour]} bild", k=10)
        assert {hit.row["path"].partition("-")[0] for hit in answer} == {colour}
        assert not answer[0].matches, "the photo is found by its vector"
