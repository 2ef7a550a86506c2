"""Functions that make tiny networks of other libraries with random weights, stored as users of these libraries store
networks.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.encoders.material import EncoderParts
from pipeline.storage.parameters import LibraryFiles

WIDTH = 16
DIM = 12
LENGTH = 9
SIDES = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
"""Settings that the text side and the image side of a model of transformers share."""
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "red", "dog", "runs", "on", "the", "beach")
CLIP_MEAN = (0.48, 0.46, 0.41)
CLIP_STD = (0.27, 0.26, 0.28)


def store(kind: str, side: int, root: Path) -> Path:
    """Write a tiny model of the library `kind` into the folder `kind` in `root`, and return `root`. The model takes
    square images of `side` pixels.

    If `kind` is not a key of STORES, the kind needs no files, and nothing is written.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        STORES.get(kind, lambda *_: None)(side, root)
    return root


def parts_of(encoder: Any, folder: Path) -> EncoderParts:
    """Return the parts of an encoder as a run stores them: its settings as JSON, its tensors, and the files of its
    library, which are saved into the new folder `library` in `folder`.
    """
    (library := folder / "library").mkdir()
    encoder.save(library)
    names = frozenset(path.relative_to(library).as_posix() for path in library.rglob("*") if path.is_file())
    files = LibraryFiles(library, names) if names else None
    return EncoderParts(json.loads(json.dumps(encoder.settings())), encoder.tensors(), files)


def make_tokenizer(words: tuple[str, ...] = WORDS) -> Any:
    """Make a tokenizer that splits a text at spaces and punctuation and knows only `words`. The first four of `words`
    stand for padding, an unknown word, the beginning and the end.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=LENGTH, **names)


def save_dual(kind: str, folder: Path, side: int, words: tuple[str, ...] = WORDS) -> tuple[Any, Any]:
    """Save a tiny model of images and text of transformers, with its tokenizer and its preprocessing, in `folder`.
    Return the model and its tokenizer. The test is skipped if transformers is not installed.

    `kind` is `CLIP` or `Siglip`. The model takes square images of `side` pixels, and knows `words`.
    """
    transformers = pytest.importorskip("transformers")
    ends = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    text = {**SIDES, "vocab_size": len(words), "max_position_embeddings": LENGTH, **ends}
    vision = {**SIDES, "image_size": side, "patch_size": 8}
    more = {"projection_dim": DIM} if kind == "CLIP" else {}
    config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=vision, **more)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = getattr(transformers, f"{kind}Model")(config).eval()
        tokenizer = make_tokenizer(words)
    geometry = {"size": {"shortest_edge": side + 8}, "crop_size": {"height": side, "width": side}}
    images = transformers.CLIPImageProcessor(**geometry, image_mean=CLIP_MEAN, image_std=CLIP_STD)
    for part in (model, tokenizer, images):
        part.save_pretrained(folder)
    return model, tokenizer


def _store_transformers(side: int, root: Path) -> None:
    save_dual("CLIP", root / "transformers", side)


def save_open_clip(folder: Path, side: int, tokens: int = 99) -> None:
    """Save a tiny CLIP model of OpenCLIP in `folder`, which must not exist. The model takes square images of `side`
    pixels, and has vectors for only the first `tokens` of the 49,408 tokens of OpenCLIP's tokenizer. The test is
    skipped if OpenCLIP is not installed.
    """
    open_clip = pytest.importorskip("open_clip")
    from safetensors.torch import save_file

    vision = {"image_size": side, "layers": 2, "width": WIDTH, "head_width": 8, "patch_size": 8}
    text = {"context_length": 8, "vocab_size": tokens, "width": WIDTH, "heads": 2, "layers": 1}
    config = {"embed_dim": DIM, "vision_cfg": vision, "text_cfg": text}
    said = {"size": side, "mean": CLIP_MEAN, "std": CLIP_STD, "interpolation": "bicubic", "resize_mode": "shortest"}
    folder.mkdir(parents=True)
    written = json.dumps({"model_cfg": config, "preprocess_cfg": said})
    (folder / "open_clip_config.json").write_text(written)
    save_file(open_clip.CLIP(**config).state_dict(), folder / "open_clip_model.safetensors")


def _store_open_clip(side: int, root: Path) -> None:
    save_open_clip(root / "open_clip", side)


STORES = {"transformers": _store_transformers, "open_clip": _store_open_clip}
