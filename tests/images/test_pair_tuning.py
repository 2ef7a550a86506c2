"""Training on images with sentences: the loss by hand, portions, what learns, and that it goes on exactly."""

import numpy as np
import pytest
import torch
from pictures import encode_jpeg, make_encoder, make_image

from pipeline.errors import InputError
from pipeline.images.decode import ImageLimits
from pipeline.images.descent import DescentSchedule
from pipeline.images.pair_tuning import CropSampler, Pair, PairBatch, PairTuning, batch_pairs, random_crop
from pipeline.images.preprocess import Photograph
from pipeline.workers import Failure

CPU = torch.device("cpu")
COLOURS = ((220, 40, 40), (40, 60, 220), (40, 200, 60), (230, 230, 230))


def make_batch(seed: int, count: int = 12) -> PairBatch:
    """Pictures of one colour each, and sentences of one to three words, one of which is the colour's."""
    rng = np.random.default_rng(seed)
    kinds = rng.permutation(count) % len(COLOURS)
    noise = rng.integers(-20, 20, (count, 32, 32, 3))
    pixels = (np.array(COLOURS)[kinds][:, None, None] + noise).clip(0, 255).astype(np.uint8)
    sentences = [[kind, *rng.integers(4, 8, rng.integers(3))] for kind in kinds]
    starts = np.cumsum([0, *map(len, sentences[:-1])])
    return PairBatch(pixels, np.concatenate(sentences).astype(np.int64), starts, np.arange(count))


def start(**changes: object) -> PairTuning:
    chosen = {
        "words": 8, "dimensions": 6, "schedule": DescentSchedule(30, 0.02, 0.1, 10.0), "device": CPU,
        "dtype": torch.float32, "seed": 3, "loss": "info-nce", "temperature": 0.2, "margin": 0.2, "unfreeze": 0.5,
        "at_once": 32, "weight_decay": 0.0, "frozen_norms": True, **changes,
    }  # fmt: skip
    return PairTuning(make_encoder("shufflenet_v2_x0_5", side=32), **chosen)


def cosines(task: PairTuning, batch: PairBatch) -> np.ndarray:
    ends = [*batch.starts[1:], len(batch.words)]
    head = task.head
    with torch.no_grad():
        images = task.head.embed_images(task.features(batch.pixels)).numpy()
        table = head.words.weight.numpy()
        means = np.stack([table[batch.words[a:b]].mean(axis=0) for a, b in zip(batch.starts, ends, strict=True)])
        sentences = means @ head.sentences.weight.numpy().T + head.sentences.bias.numpy()
    return images @ (sentences / np.linalg.norm(sentences, axis=1, keepdims=True)).T


@pytest.mark.parametrize("loss", ["info-nce", "hardest"])
def test_the_loss_is_that_of_a_loop_without_sentences_of_the_same_image(loss: str) -> None:
    task, batch = start(loss=loss), make_batch(0)
    batch = batch._replace(images=np.array([0, 0, *range(1, 11)]))
    task.network.eval()
    s, n = cosines(task, batch), 12
    total = 0.0
    for i in range(n):
        others = [j for j in range(n) if j != i and batch.images[j] != batch.images[i]]
        for row in (s[i], s[:, i]):
            if loss == "info-nce":
                total += -np.log(np.exp(row[i] / 0.2) / np.exp(row[[i, *others]] / 0.2).sum()) / (2 * n)
            else:
                total += max(0, 0.2 - row[i] + row[others].max()) / (2 * n)
    assert task._descend(batch).item() == pytest.approx(total, rel=1e-4)


def test_portions_have_the_gradient_of_the_whole_batch() -> None:
    gradients = []
    for at_once in (32, 5):
        task = start(at_once=at_once)
        task._start_learning()
        task._descend(make_batch(1))
        gradients.append({n: p.grad for n, p in task.network.named_parameters() if p.grad is not None})
    whole, portions = gradients
    assert whole.keys() == portions.keys() and len(whole) > 10
    for name, gradient in whole.items():
        torch.testing.assert_close(portions[name], gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("unfreeze", [0.25, 1.0])
def test_the_last_layers_learn_and_the_loss_falls(unfreeze: float) -> None:
    task = start(unfreeze=unfreeze, frozen_norms=False, schedule=DescentSchedule(60, 0.02, 0.5, 10.0))
    before = {name: p.detach().clone() for name, p in task.network[0].named_parameters()}
    losses = list(task.learn(make_batch(seed) for seed in range(60)))
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:3])
    changed = [not torch.equal(p, before[name]) for name, p in task.network[0].named_parameters()]
    assert changed == sorted(changed) and sum(changed) == pytest.approx(unfreeze * len(changed), abs=1)
    images, sentences = task.judged_vectors([make_batch(99).pixels], np.arange(4), np.arange(4))
    kinds = np.random.default_rng(99).permutation(12) % 4
    assert np.mean((images @ sentences.T).argmax(axis=1) == kinds) > 0.6


def test_a_training_goes_on_exactly() -> None:
    whole, first, second = start(), start(), start()
    expected = list(whole.learn(map(make_batch, range(6))))
    losses = list(first.learn(map(make_batch, range(3))))
    second.restore(first.tensors(), 3)
    losses += second.learn(map(make_batch, range(3, 6)))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    restored = second.tensors()
    for name, tensor in whole.tensors().items():
        np.testing.assert_allclose(restored[name], tensor, rtol=1e-4, atol=1e-6)


def test_crops_follow_from_seed_and_number_and_lie_in_the_image() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        left, top, right, bottom = random_crop((90, 60), 0.5, rng)
        assert left >= 0 and top >= 0 and right <= 90 and bottom <= 60
        assert 0.3 < (right - left) * (bottom - top) / (90 * 60) <= 1
    data = encode_jpeg(make_image(4))
    import hashlib

    pair = Pair(Photograph("a.jpg", hashlib.sha256(data).hexdigest(), ("a.jpg", 0, len(data))), 7, np.array([1]))
    limits = ImageLimits(max_pixels=10**6, min_side=8, max_aspect=20)
    sampler = CropSampler(lambda *_: data, limits, make_encoder(side=32).preprocessing, 0.5, seed=1)
    (first, told), (again, _), (other, _) = (sampler((number, pair)) for number in (5, 5, 6))
    assert first.shape == (32, 32, 3) and told.image == 7
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_an_image_that_changed_is_named() -> None:
    with pytest.raises(InputError, match="a.jpg: changed; it could be used before: run ingest again"):
        next(batch_pairs([Failure("a.jpg: changed")], 4))
