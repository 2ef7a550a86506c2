"""Models and encoders as they were stored."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pipeline.config.registry import EncoderSpec, encoder_spec, import_place, model_spec
from pipeline.config.text_encoders import text_encoder_spec
from pipeline.errors import MALFORMED, IntegrityError, brief

PREPARE_TEXT = "prepare-text-encoder"
CORRECTED = "pipeline.models.linear.corrected:HubCorrected"
"""What corrects the scores of any model for hubs."""
CENTRED = "pipeline.text.centred:Centred"
"""What moves the vectors of any text encoder about their mean."""


def restore(name: str, settings: Mapping[str, Any], tensors: Mapping[str, Any], where: object = "") -> Any:
    """The registered model `name` from the `settings` and `tensors` that were stored (`where`, for errors), its scores
    corrected for hubs where these say so. IntegrityError where their form is not that of its class."""
    spec = model_spec(name)
    registered = spec.load()
    with _known_form(f"{name} in {where}" if where else name, spec.made_by):
        if "hubness" in settings:
            return import_place(CORRECTED).from_parts(registered, settings, tensors)
        return registered.from_parts(settings, tensors)


def stored_kind(settings: Mapping[str, Any]) -> EncoderSpec:
    """The kind of the image encoder whose `settings()` these are. IntegrityError where they are of another form."""
    with _known_form("encoder", "prepare-encoder"):
        return encoder_spec(settings.get("kind"), settings["architecture"])


def restore_encoder(settings: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    """The image encoder whose `settings()` and `tensors()` these are. IntegrityError where they are of another form."""
    registered = stored_kind(settings).load()
    with _known_form("encoder", "prepare-encoder"):
        return registered.from_parts(settings, tensors)


def restore_text_encoder(settings: Mapping[str, Any], tensors: Mapping[str, Any], where: object = "") -> Any:
    """The text encoder whose `settings()` and `tensors()` these are. IntegrityError where they are of another form."""
    what = f"text encoder in {where}" if where else "text encoder"
    with _known_form(what, PREPARE_TEXT):
        spec = text_encoder_spec(settings["kind"])
    registered = spec.load()
    with _known_form(what, PREPARE_TEXT):
        made = registered.from_parts(settings, tensors)
        return import_place(CENTRED).around(made, tensors) if "centred" in settings else made


@contextmanager
def _known_form(what: str, stage: str) -> Iterator[None]:
    """IntegrityError where the settings and tensors of `what` are not of the form that its class wrote."""
    try:
        yield
    except MALFORMED as error:
        raise IntegrityError(
            f"the stored {what} has another form than this version reads ({brief(error)}); run {stage} again"
        ) from error
