"""Settings of linear models that are small enough for synthetic pairs."""

from collections.abc import Sequence
from typing import Any

from pipeline.config.models import (
    AnchorSettings,
    FitSettings,
    KernelsSettings,
    TransferSettings,
    WsabieAdaGradSettings,
    WsabieSettings,
)  # fmt: skip
from pipeline.config.registry import model_spec
from pipeline.models.linear.views import TextView

OWN_SETTINGS = {
    "KernelsSettings": KernelsSettings(image_kernel="rbf", text_kernel="cosine", score="cosine"),
    "AnchorSettings": AnchorSettings(nonzero=[5, 20], power=[1, 4], anchors=200),
    "WsabieSettings": WsabieSettings(learning_rate=[0.1], max_norm=[100], dimensions=4, epochs=10),
}
OWN_SETTINGS["WsabieAdaGradSettings"] = WsabieAdaGradSettings(**OWN_SETTINGS["WsabieSettings"].model_dump())
TRANSFER = TransferSettings(
    beta=[0.3], auxiliary_dimensions=[4], auxiliary_power=[1], auxiliary_eigenvalues=["correlation"], weight=[1],
    second_beta=[0.1], rule=["cosine-sine"], bandwidth=[1], features=30, neighbours=5,
    neighbour_share=[0.3],
)  # fmt: skip


def make_grid(
    dimensions: Sequence[int], image_ridge: Sequence[float], text_ridge: Sequence[float], power: Sequence[float],
    search: str = "grid",
) -> FitSettings:  # fmt: skip
    return FitSettings(
        dimensions=dimensions, image_ridge=image_ridge, text_ridge=text_ridge, eigenvalue_power=power,
        eigenvalues=["correlation"], search=search, dev_images=1000, text_weights={},
    )  # fmt: skip


def text_view(dim: int, sparse: bool = True) -> TextView:
    """Return the view of one text encoder, `tfidf`, whose vectors have `dim` dimensions and are not transformed."""
    return TextView(("tfidf",), (dim,), (sparse,), ((),), (1.0,))


def own_settings(name: str) -> Any:
    """Return the settings that only the registered linear model `name` has, or None if it has no settings of its
    own.
    """
    section = model_spec(name).section
    return section and OWN_SETTINGS[section.partition(":")[2]]
