"""Tests of weights files: fitting weights are loaded, others are refused by name, and code in them is never run."""

import io
import pickle
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from pictures import make_encoder, make_spec
from safetensors.torch import save

from pipeline.config.encoders import NetworkEntry
from pipeline.encoders import weights
from pipeline.encoders.material import EncoderMaterial
from pipeline.encoders.networks import NetworkEncoder, build, trained
from pipeline.errors import InputError

SPEC = make_spec("squeezenet1_1")


def whole_state(seed: int = 3) -> dict[str, torch.Tensor]:
    return dict(build("squeezenet1_1", seed).state_dict())


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def load_body(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return trained(SPEC, state, {"origin": "net.pt"}).body.state_dict()


def test_both_formats_give_the_same_tensors() -> None:
    state = whole_state()
    for parsed in (weights.parse(save(state), "net.safetensors"), weights.parse(saved(state), "net.pth")):
        assert set(parsed) == set(state)
        assert all(torch.equal(parsed[name], tensor) for name, tensor in state.items())


def test_the_loaded_weights_are_used() -> None:
    state = whole_state()
    taken = load_body(whole_state())
    assert set(taken) == {name for name in state if name.startswith("features.")}
    assert all(torch.equal(tensor, state[name]) for name, tensor in taken.items())
    drawn = make_encoder("squeezenet1_1", seed=0).body.state_dict()
    assert not torch.equal(taken["features.0.weight"], drawn["features.0.weight"])


def test_tensors_that_do_not_fit_are_named() -> None:
    state = whole_state()
    bias = "features.0.bias"
    missing = {name: tensor for name, tensor in state.items() if name != "features.0.bias"}
    for wrong, named in (
        (missing, bias),
        ({**state, "features.99.bias": torch.zeros(1)}, "features.99.bias"),
        ({**state, bias: torch.zeros(7)}, bias),
        ({**state, bias: torch.full((64,), torch.nan)}, bias),
        ({**state, bias: torch.zeros(1).expand(1 << 34)}, bias),  # The file declares 64 GiB in a few bytes.
    ):
        with pytest.raises(InputError, match=rf"net\.pt.*{named}"):
            load_body(wrong)


class Intruder:
    def __reduce__(self) -> tuple:
        return (pytest.fail, ("code from a weights file was run",))


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (pickle.dumps(Intruder(), protocol=2), "net.pt"),
        (saved({"features.0.bias": Intruder()}), "net.pt"),
        (saved(whole_state())[:-2000], "net.pt"),
        (b"", "net.pt"),
        (b"\x80\x00", "net.safetensors"),
        (save(whole_state())[:-10], "net.safetensors"),
    ],
    ids=["pickle", "code", "cut", "empty", "short", "cut safetensors"],
)
def test_files_that_are_not_weights_are_refused(data: bytes, source: str) -> None:
    with pytest.raises(InputError, match=f"{source} is neither a safetensors file nor a state dict"):
        weights.parse(data, source)


def test_torchs_advice_to_run_the_code_in_a_file_is_not_passed_on() -> None:
    """Checks that the error about a file with code does not repeat torch's advice to load it with weights_only=False.
    torch gives this advice in different exceptions for pickled objects and for TorchScript archives."""
    script = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), script)
    for data in (pickle.dumps(Intruder(), protocol=2), saved({"features.0.bias": Intruder()}), script.getvalue()):
        with pytest.raises(InputError) as caught:
            weights.parse(data, "net.pt")
        assert "weights_only" not in str(caught.value) and "torch.load" not in str(caught.value)


def test_a_failed_download_names_the_folder_for_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(url: str, *arguments: object, **options: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    entry = NetworkEntry(name="net", architecture="squeezenet1_1", weights="torchvision")
    with pytest.raises(InputError) as caught:
        NetworkEncoder.prepare(entry, EncoderMaterial(0, tmp_path))
    said = str(caught.value)
    assert said.startswith("jointspace cannot download https://download.pytorch.org/models/squeezenet1_1-")
    assert f"into the folder {tmp_path} (weights_root)" in said and "init --weights FILE" in said
