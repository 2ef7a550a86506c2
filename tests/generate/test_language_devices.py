"""The generators `mrnn` and `sc-nlm` are trained on another device and on the CPU, with equal results, perplexities and
captions."""

import numpy as np
import pytest
import torch
from synthetic_text import (
    LOG_BILINEAR,
    RECURRENT,
    ThingSpace,
    make_material,
    make_pairs,
    make_sentences,
    make_vocabulary,
)
from test_logbilinear import TAGGER, make_sources
from test_mrnn import make_sources as make_recurrent_sources

from pipeline.generate.generator import HeldOut, Sources
from pipeline.generate.lm import StructureContentModel
from pipeline.generate.mrnn import MultimodalRNN
from pipeline.models.neural.training import Checkpoint

GENERATORS = {"mrnn": (MultimodalRNN, RECURRENT), "sc-nlm": (StructureContentModel, LOG_BILINEAR)}
FEATURES = {"eyes": np.eye(6, dtype=np.float32)[:4]}


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 1e-3) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert type(found[name]) is np.ndarray and found[name].dtype == value.dtype, name
        np.testing.assert_allclose(found[name], value, atol=tolerance, err_msg=name)


@pytest.fixture
def cpu_random_numbers(monkeypatch: pytest.MonkeyPatch, other_device: torch.device) -> None:
    """Let generators draw random numbers on the CPU if the other device is simulated, because a simulated device has no
    random number generator. A real GPU draws its own numbers."""
    if other_device.type != "cuda":
        monkeypatch.setattr(Sources, "generator", lambda self, device: torch.Generator().manual_seed(self.seed))


@pytest.mark.parametrize("name", ["mrnn", pytest.param("sc-nlm", marks=pytest.mark.gpu)])
def test_training_and_captions_equal_those_on_the_cpu(name: str, other_device, cpu_random_numbers: None) -> None:
    kind, settings = GENERATORS[name]
    settings = {**settings, "epochs": 2, "averaging": 0.5}
    kept: list[Checkpoint] = []
    material = {"tagger": TAGGER, "after_step": lambda training: kept.append(training.checkpoint())}
    here = kind.learn(make_material(settings, **material)).generator
    there = kind.learn(make_material(settings, tagger=TAGGER, device=other_device)).generator
    resumed = kind.learn(make_material(settings, tagger=TAGGER, device=other_device, checkpoint=kept[5])).generator
    for found in (there, resumed):
        assert_close(found.tensors(), here.tensors())
    pairs = make_pairs(8, 1)
    held_out = HeldOut(pairs, make_sentences(8)[0], make_vocabulary(), ThingSpace(), TAGGER)
    assert there.perplexities(held_out) == pytest.approx(here.perplexities(held_out), rel=1e-3)
    sources = make_recurrent_sources() if name == "mrnn" else make_sources()
    expected = here.generate_captions(FEATURES, sources, 3)
    moved = kind.from_parts(here.settings(), here.tensors()).to(other_device)
    found = moved.generate_captions(FEATURES, sources, 3)
    assert len(found) == 4 and all(1 <= len(group) <= 3 for group in found)
    # On a GPU, sc-nlm draws other parts of speech than on the CPU, so its captions differ.
    if name == "mrnn" or other_device.type != "cuda":
        assert [[one.words for one in group] for group in found] == [[one.words for one in group] for group in expected]
