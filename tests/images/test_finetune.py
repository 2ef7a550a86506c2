"""Tests of finetuning: the sampled regions, that the network learns, and that training resumes exactly."""

import numpy as np
import pytest
import torch
from pictures import make_encoder

from pipeline.encoders.finetune import DescentSchedule, Finetuning
from pipeline.encoders.networks import CLASSIFIER, NetworkEncoder
from pipeline.encoders.preparation import RegionSample, sample_regions
from pipeline.encoders.regions import Classifier
from pipeline.images.boxes import overlaps

CPU = torch.device("cpu")
COLOURS = ((220, 40, 40), (40, 60, 220))


def make_batch(seed: int, count: int = 18) -> RegionSample:
    """Return `count` noisy regions of the classes 0, 1 and 2 in turn. Class 0 is plain grey, and classes 1 and 2 have a
    square of a different colour on grey."""
    rng = np.random.default_rng(seed)
    classes = np.arange(count) % 3
    pixels = np.full((count, 32, 32, 3), 128, np.uint8)
    for picture, label in zip(pixels, classes, strict=True):
        if label:
            x, y = rng.integers(0, 12, 2)
            picture[y : y + 20, x : x + 20] = COLOURS[label - 1]
    noise = rng.integers(-20, 20, pixels.shape)
    return RegionSample((pixels + noise).clip(0, 255).astype(np.uint8), classes.astype(np.int64))


@pytest.mark.parametrize("size", [(200, 150), (40, 300), (9, 9)])
def test_sampled_regions_overlap_the_boxes_of_their_classes(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    truth = np.float32([[0.1, 0.1, 0.4, 0.5], [0.5, 0.5, 0.9, 0.95]]) * np.tile(size, 2)
    seen = []
    for _ in range(50):
        boxes, classes = sample_regions(size, truth, np.array([4, 7]), rng)
        assert classes[0] > 0 and (classes[1:] == 0).all() and len(boxes) == 4
        assert (boxes >= 0).all() and (boxes <= np.tile(size, 2)).all() and (boxes[:, 2:] > boxes[:, :2]).all()
        iou = overlaps(boxes, truth)
        assert iou[0, int(classes[0] == 7)] >= 0.5 - 1e-6 and (iou[1:] < 0.5).all()
        seen.append(boxes)
    assert len(np.unique(np.concatenate(seen), axis=0)) == 200


def test_a_network_learns_the_contents_of_boxes() -> None:
    encoder = make_encoder("shufflenet_v2_x0_5", side=32)
    before = {name: tensor.copy() for name, tensor in encoder.tensors().items()}
    # After only 30 steps, the running means of batch normalisation would lag behind, so that rounding would decide the
    # result.
    schedule = DescentSchedule(80, 0.05, 1, clip=1e6)
    task = Finetuning(encoder, 2, schedule, CPU, torch.float32, seed=3, pretrained=False)
    losses = list(task.learn(make_batch(seed) for seed in range(80)))
    assert losses[0] == pytest.approx(np.log(3), abs=0.05) and np.mean(losses[-5:]) < 0.3
    unseen = make_batch(99)
    learned = task.encoder({"origin": "finetuned"})
    with torch.inference_mode():
        features = learned(torch.from_numpy(unseen.pixels)).numpy()
    classifier = {name.removeprefix(CLASSIFIER): tensor for name, tensor in task.classifier().items()}
    predicted = Classifier(**classifier, iou=0.5, most=9).probabilities(features).argmax(1)
    assert (predicted == unseen.classes).mean() > 0.75  # The accuracy by chance is 1/3.
    # The finetuned encoder is restored from its parts. The original encoder must not have changed.
    back = NetworkEncoder.from_parts(learned.settings(), {**learned.tensors(), **task.classifier()})
    with torch.inference_mode():
        np.testing.assert_allclose(back(torch.from_numpy(unseen.pixels)).numpy(), features, rtol=1e-4, atol=1e-5)
    assert all(np.array_equal(tensor, before[name]) for name, tensor in encoder.tensors().items())
