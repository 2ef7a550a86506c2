"""Origins of features: what made them, compared from file to file."""

import pytest

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import Sidecar
from pipeline.storage.provenance import (
    encoders_of,
    origin_of,
    require_origins,
)

A, B = {"encoder": "a"}, {"encoder": "b"}


def sidecar(**details: object) -> Sidecar:
    return Sidecar("features", 1, 1, "sha256", "fingerprint", details)


def test_an_origin_is_the_encoder_its_projection_or_the_files_that_were_imported() -> None:
    assert origin_of(sidecar(inputs={"encoder": "a", "images": "i"})) == A
    assert origin_of(sidecar(inputs={"encoder": "a"}, projection="p")) == {**A, "projection": "p"}
    one, other = (origin_of(sidecar(inputs={}, encoder={"imported": {"f.npy": digest}})) for digest in "xy")
    assert one.keys() == {"imported"} and one != other
    # Rows made elsewhere by an encoder of the run are that encoder's, whichever file they came in.
    assert origin_of(sidecar(inputs={"encoder": "a"}, encoder={"imported": {"f.npy": "x"}})) == A
    assert origin_of(sidecar()) == {}


def test_features_of_another_encoder_are_refused_naming_both_files() -> None:
    require_origins({"eyes": A, "more": B}, "model", {"eyes": {"shard 0": A, "shard 1": A}})
    with pytest.raises(IntegrityError, match="the encoder eyes of model and of shard 1 differ"):
        require_origins({"eyes": A}, "model", {"eyes": {"shard 0": A, "shard 1": B}})
    with pytest.raises(IntegrityError, match=r"model was made without the encoder nose \(eyes\)"):
        require_origins({"eyes": A}, "model", {"nose": {"shard 0": A}})
    with pytest.raises(IntegrityError, match="the encoder eyes of model and of shard 0 differ"):
        require_origins({"eyes": A}, "model", {"eyes": {"shard 0": {**A, "projection": "p"}}})
    assert encoders_of("model", {"eyes": A, "more": B}, ["more"]) == {"more": B}
