"""Origins of features: what made them, compared from file to file."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import IntegrityError
from pipeline.storage.commit import Commit
from pipeline.storage.parameters import ENCODER, write_parameters
from pipeline.storage.provenance import (
    encoders_of,
    join_origins,
    origin_of,
    read_encoder,
    read_own_encoders,
    require_origins,
    require_same_origins,
)

A, B = {"encoder": "a"}, {"encoder": "b"}


def sidecar(**details: object) -> Commit:
    return Commit("features", 1, 1, "sha256", "fingerprint", details)


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


def test_members_share_what_both_have() -> None:
    assert join_origins([("x", {"eyes": A}), ("y", {"eyes": A, "nose": B})]) == {"eyes": A, "nose": B}
    with pytest.raises(IntegrityError, match="the encoder eyes of x and of y differ"):
        join_origins([("x", {"eyes": A}), ("y", {"eyes": B})])
    of = {"encoders": {"eyes": A}, "text_encoders": {"words": A}, "vocabulary": "v"}
    require_same_origins({"x": of, "y": {**of, "regions": {"eyes": A}}})
    for other in ({**of, "vocabulary": "w"}, {**of, "encoders": {"eyes": B}}, {**of, "text_encoders": {"words": B}}):
        with pytest.raises(IntegrityError, match="of x and of y differ"):
            require_same_origins({"x": of, "y": other})
    with pytest.raises(IntegrityError, match="the encoder eyes of x and of y differ"):
        require_same_origins({"x": {**of, "regions": {"eyes": A}}, "y": {**of, "regions": {"eyes": B}}})


def test_an_index_carries_the_encoders_that_made_the_features(tmp_path: Path) -> None:
    for name, held in (("eyes", "eyes"), ("nose", "ears")):
        path = tmp_path / name / "model.safetensors"
        tensors = {"x": np.zeros(1, np.float32)}
        write_parameters(path, ENCODER, tensors, settings={}, fingerprint="a", details={"name": held})
    origins = {"eyes": {**A, "projection": "p"}, "far": {"imported": "x"}, "old": {}}
    assert list(read_own_encoders(tmp_path, origins, "model")) == ["eyes"]
    with pytest.raises(IntegrityError, match="the encoder eyes of model and of .*eyes/model.safetensors differ"):
        read_own_encoders(tmp_path, {"eyes": B}, "model")
    with pytest.raises(IntegrityError, match="nose/model.safetensors is the encoder ears, not nose"):
        read_encoder(tmp_path, "nose")
