"""Text encoders that are models of sentence-transformers. The library's own `save` writes their files."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from pipeline.encoders.libraries.folder import is_file_name, read_config
from pipeline.encoders.libraries.library_encoders import LibraryTexts
from pipeline.encoders.libraries.transformers_encoders import max_length, quiet
from pipeline.encoders.material import WeightsOrigin

try:
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
except ModuleNotFoundError:  # Versions of the library before 6 have these classes in the module `models`.
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

if TYPE_CHECKING:
    from pipeline.config.encoders import SentenceTransformersEntry

MODULES = {"Transformer": Transformer, "Pooling": Pooling, "Dense": Dense, "Normalize": Normalize}
"""The modules that a stored model may have, by the last component of their type in `modules.json`."""

ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")
"""The activations of torch.nn that a dense layer may have."""

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""The inputs of a transformer, in the order in which they are passed to it."""


class SentenceFeatures(nn.Module):
    """The modules of a model, which map the tensors of its tokenizer to vectors (n, dim).

    `names` are the names of the tensors, in the order in which `forward` takes the tensors.
    """

    def __init__(self, modules: SentenceTransformer, names: Sequence[str]) -> None:
        super().__init__()
        self.whole = modules
        self.names = names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.whole(dict(zip(self.names, tensors, strict=True)))["sentence_embedding"]


class SentenceTransformersTexts(LibraryTexts):
    """Text encoder that consists of a transformer, a pooling, and dense layers.

    Normalize modules at the end are removed, because `normalise` of the text encoder scales vectors to unit length.
    """

    kind = "sentence-transformers"

    def __init__(self, whole: SentenceTransformer, weights: WeightsOrigin) -> None:
        first, pooling, *rest = whole
        if not isinstance(first, Transformer) or not isinstance(pooling, Pooling):
            raise ValueError("the first two layers of the model are not a Transformer and a Pooling")
        if others := [module for module in rest if not isinstance(module, Dense | Normalize)]:
            raise ValueError(f"the layer {type(others[0]).__name__} of the model is not supported")
        if whole.default_prompt_name:
            raise ValueError("the model has a default prompt, which is not supported")
        self.whole = whole
        self.names = [name for name in INPUTS if name in self._features(["a"])]
        super().__init__(SentenceFeatures(whole, self.names), weights)

    @classmethod
    def fetch(
        cls, entry: "SentenceTransformersEntry", weights: dict[str, str | int], repository: str | Path
    ) -> "SentenceTransformersTexts":
        whole = open_model(repository)
        modules = list(whole)
        while isinstance(modules[-1], Normalize):
            modules.pop()
        first = modules[0]
        if isinstance(first, Transformer) and not first.max_seq_length:
            first.max_seq_length = max_length(first.auto_model, first.tokenizer)
        if entry.layer is not None and isinstance(first, Transformer):
            keep_layers(first.auto_model, entry.layer)
        kept = SentenceTransformer(modules=modules, device="cpu").float()
        kept.default_prompt_name = whole.default_prompt_name
        return cls(kept, weights)

    def save(self, folder: Path) -> None:
        with quiet():
            self.whole.save(str(folder), create_model_card=False, safe_serialization=True)

    @classmethod
    def load(cls, folder: Path, weights: WeightsOrigin) -> "SentenceTransformersTexts":
        check_modules(folder)
        return cls(open_model(folder, local_files_only=True), weights)

    def tokenise(self, texts: Sequence[str]) -> tuple[torch.Tensor, ...]:
        features = self._features(texts)
        return tuple(features[name] for name in self.names)

    def _features(self, texts: Sequence[str]) -> Mapping[str, Any]:
        """Tokenise texts to named tensors. From version 6.0 on, the library's method for tokenising is called
        `preprocess`."""
        preprocess = getattr(self.whole, "preprocess", None) or self.whole.tokenize
        return preprocess(list(texts))


def keep_layers(network: nn.Module, count: int) -> None:
    """Remove all layers of a transformer after the first `count`. With 0, only the embeddings are left.

    Raises ValueError if the transformer has fewer layers, or if its layers cannot be found.
    """
    config: Any = network.config
    depth = config.num_hidden_layers
    if count > depth:
        raise ValueError(f"the model has {depth} layers, but the key layer is {count}. Lower this key")
    stacks = [part for part in network.modules() if isinstance(part, nn.ModuleList) and len(part) == depth]
    if len(stacks) != 1:
        raise ValueError("the layers of the model cannot be told from the other parts. Remove the key layer")
    del stacks[0][count:]
    config.num_hidden_layers = count


def open_model(repository: str | Path, local_files_only: bool = False) -> SentenceTransformer:
    """Open the model in the folder `repository`, or the model with this name on the hub.

    The model computes in float32 on the CPU. Only safetensors are read, and no code of the hub is run. With
    `local_files_only`, nothing is downloaded. The exceptions of the library and of the hub are not converted here.
    """
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
    options: dict[str, Any] = {"local_files_only": local_files_only, "model_kwargs": {"use_safetensors": True}}
    with quiet():
        return SentenceTransformer(str(repository), device="cpu", trust_remote_code=False, **options).float().eval()


def check_modules(folder: Path) -> None:
    """Check the modules that a stored model names.

    Raises ValueError if `modules.json` is not a list of mappings, if this file names an unknown class or a path to
    another folder, if a module has `model_args`, or if a dense layer has an unknown activation.
    """
    modules = read_config(folder, "modules.json")
    if not isinstance(modules, list):
        raise ValueError("the modules.json of the model is not a list")
    for module in modules:
        if not isinstance(module, dict):
            raise ValueError("the modules.json of the model is not a list of mappings")
        path = module["path"]
        name = str(module["type"]).rpartition(".")[2]
        if name not in MODULES or str(module["type"]) not in known_types(MODULES[name]):
            raise ValueError(f"the modules.json of the model names the class {module['type']}, which is not supported")
        if not isinstance(path, str) or not (path == "" or is_file_name(path)):
            raise ValueError(
                f"the modules.json of the model names the folder {path}, which is not directly in the folder of"
                " the model"
            )
        for file in Path(folder, path).glob("sentence_*_config.json"):
            settings = read_config(file.parent, file.name)
            if not isinstance(settings, dict) or settings.get("model_args"):
                raise ValueError(f"the file {file.name} of the model has model_args, which are not followed")
        if name == "Dense":
            config = read_config(folder / path, "config.json")
            activation = str(config["activation_function"]) if isinstance(config, dict) else ""
            if not activation.startswith("torch.nn.modules.") or activation.rpartition(".")[2] not in ACTIVATIONS:
                raise ValueError(
                    f"the dense layer of the model has the activation {activation!r}, which is not supported"
                )


def known_types(module: type) -> tuple[str, ...]:
    """Return the names that the versions of the library write for a class into `modules.json`."""
    name = module.__name__
    former = (f"sentence_transformers.models.{name}", f"sentence_transformers.models.{name}.{name}")
    return (f"{module.__module__}.{name}", *former)
