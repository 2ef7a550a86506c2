"""Moments of mapped views, and embeddings, that PyTorch computes on a device equal the results of NumPy, also if the
memory of the device is full."""

import numpy as np
import pytest
import torch
from fake_devices import FullOnce, full_beyond
from synthetic_tasks import make_fit_task
from test_feature_maps import BLOCKS, MAPS, assert_same, moments_of

from pipeline.compute.device import OomBatcher
from pipeline.config.registry import model_spec
from pipeline.errors import IntegrityError
from pipeline.models.linear import projection
from pipeline.models.linear.accumulation import mapped_moments
from pipeline.models.linear.device import DeviceMappedAccumulator

ON_DEVICES = {name: maps for name, maps in MAPS.items() if maps.can_use_gpu()}


@pytest.mark.parametrize("maps", list(ON_DEVICES.values())[:2])
def test_moments_of_mapped_views_equal_those_of_the_cpu(device, maps, monkeypatch: pytest.MonkeyPatch) -> None:
    known = moments_of(*BLOCKS)
    done = []
    monkeypatch.setattr(OomBatcher, "map", full_beyond(7, done))
    found = mapped_moments(known, BLOCKS, maps, device)
    assert sum(done) == sum(len(block.x) for block in BLOCKS) and len(done) > len(BLOCKS)
    assert_same(found, mapped_moments(known, BLOCKS, maps))


@pytest.mark.parametrize("maps", list(MAPS.values())[:2])
def test_each_pair_counts_once_if_the_memory_is_full_at_any_step(maps) -> None:
    known = moments_of(*BLOCKS[::2])
    blocks = BLOCKS[::2]

    def accumulate(memory: FullOnce) -> DeviceMappedAccumulator:
        accumulator = DeviceMappedAccumulator(known, maps, torch.device("cpu"))
        with memory:
            for block in blocks:
                accumulator.add(block)
        return accumulator

    expected = accumulate(memory := FullOnce()).result()
    for at in range(memory.count):
        assert_same(accumulate(FullOnce(at)).result(), expected)


@pytest.mark.parametrize(("name", "training"), [("cca", "target"), ("ncca", "sae")])
def test_embeddings_equal_those_of_numpy(device, name: str, training: str, monkeypatch) -> None:
    """The embeddings by a linear model do not depend on the number of rows that are projected at once. The embeddings
    on a device, whose memory holds at most 13 rows, equal the embeddings by NumPy. The result for no sentences is an
    array without rows."""
    task, pairs = make_fit_task(name, training)
    model = model_spec(name).load().fit(task).model
    images = model.embed_images(pairs.features)
    sentences = model.embed_sentences(pairs.sentences)
    monkeypatch.setattr(projection, "EMBEDDED_ROWS", 7)
    np.testing.assert_allclose(model.embed_images(pairs.features), images, atol=2e-5)
    np.testing.assert_allclose(model.embed_sentences(pairs.sentences), sentences, atol=2e-5)
    done: list[int] = []
    monkeypatch.setattr(OomBatcher, "map", full_beyond(13, done))
    assert model.to(device) is model
    np.testing.assert_allclose(model.embed_images(pairs.features), images, atol=2e-5)
    np.testing.assert_allclose(model.embed_sentences(pairs.sentences), sentences, atol=2e-5)
    assert sum(done) == len(images) + len(sentences)
    with pytest.raises(IntegrityError, match="are missing"):
        model.embed_images({})
    nothing = model.embed_sentences({"tfidf": pairs.sentences["tfidf"][:0]})
    assert nothing.shape == (0, images.shape[1]) and nothing.dtype == images.dtype == np.float32
