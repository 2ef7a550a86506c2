"""Models and encoders as they were stored."""

from collections.abc import Mapping
from typing import Any

from pipeline.errors import MALFORMED, IntegrityError, brief
from pipeline.specs.encoders import stored_spec
from pipeline.specs.models import model_spec
from pipeline.specs.places import import_place

SCALED = "pipeline.models.linear.csls:Scaled"
"""What scales the scores of any model."""


def restore(name: str, settings: Mapping[str, Any], tensors: Mapping[str, Any], where: object = "") -> Any:
    """The registered model `name` from the `settings` and `tensors` that were stored (`where`, for errors), its scores
    scaled where these say so (models.linear.csls). IntegrityError where their form is not that of its class."""
    spec = model_spec(name)
    registered = spec.load()
    try:
        if "csls" in settings:
            return import_place(SCALED).from_parts(registered, settings, tensors)
        return registered.from_parts(settings, tensors)
    except MALFORMED as error:
        place = f" in {where}" if where else ""
        raise IntegrityError(
            f"the stored {name}{place} has another form than this version reads ({brief(error)}); run"
            f" {spec.made_by} again"
        ) from error


def restore_encoder(settings: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    """The image encoder whose `settings()` and `tensors()` these are. IntegrityError where they are of another form."""
    try:
        return stored_spec(settings).load().from_parts(settings, tensors)
    except MALFORMED as error:
        raise IntegrityError(
            f"the stored encoder has another form than this version reads ({brief(error)}); run prepare-encoder again"
        ) from error
