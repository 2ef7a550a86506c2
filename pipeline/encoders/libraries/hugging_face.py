"""Models of Hugging Face's transformers, built again from their configuration, without what is not used."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel

from pipeline.encoders.libraries.hubs import require_plain_config

FOREIGN = ("auto_map", "quantization_config", "attn_implementation", "_attn_implementation", "_name_or_path", "dtype")
"""Keys of a configuration that name code, kernels or places of others."""


def fetch_model(place: Any) -> tuple[nn.Module, list[str]]:
    """The model in a folder or of the hub, in float32, and the parameters that its weights lack. Only safetensors are
    read, and no code of the hub's is run."""
    safe = {"use_safetensors": True, "trust_remote_code": False}
    model, loading = AutoModel.from_pretrained(place, **safe, output_loading_info=True)
    return model.float().eval(), sorted(loading["missing_keys"])


def require_weights(missing: Sequence[str], but: str = "pooler.") -> None:
    """Raises ValueError for parameters that are `missing`, but for those whose names begin so."""
    if lost := [name for name in missing if not name.startswith(but)]:
        raise ValueError(f"its weights lack {lost[0]}")


def config_of(model: nn.Module) -> dict[str, Any]:
    """The configuration that `build_model` takes."""
    return without_foreign(model.config.to_dict())


def without_foreign(config: Any) -> Any:
    """`config` without the keys of FOREIGN, however deep."""
    if isinstance(config, Mapping):
        return {key: without_foreign(value) for key, value in config.items() if key not in FOREIGN}
    return [without_foreign(value) for value in config] if isinstance(config, list | tuple) else config


def build_model(config: Mapping[str, Any]) -> nn.Module:
    """The model of `config_of`, without its weights. Raises ValueError for one that would fetch another."""
    require_plain_config(config)
    values = without_foreign(config)
    kind = values.pop("model_type")
    return AutoModel.from_config(AutoConfig.for_model(kind, **values))


def remove_unused(body: nn.Module, compute: Callable[[], torch.Tensor]) -> list[str]:
    """Remove the modules of whose parameters `compute()` does not depend on any, such as the side of text; returns
    their names."""
    with torch.enable_grad():
        compute().sum().backward()
    used = {name for name, parameter in body.named_parameters() if parameter.grad is not None}
    body.zero_grad(set_to_none=True)
    unused = list(_without(body, used))
    remove(body, unused)
    return unused


def _without(body: nn.Module, used: set[str]) -> Iterator[str]:
    """The largest modules that have parameters, and none of the `used` ones."""
    found: tuple[str, ...] = ()
    for name, module in body.named_modules():
        own = {f"{name}.{one}" for one, _ in module.named_parameters()}
        if name and own and not used & own and not name.startswith(found or "."):
            found = (*found, f"{name}.")
            yield name


def remove(body: nn.Module, unused: Sequence[str]) -> None:
    for name in unused:
        body.set_submodule(name, nn.Identity())
