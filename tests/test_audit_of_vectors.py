"""`jointspace.audit` of precomputed vectors: it finds the texts that a test has exchanged, and refuses wrong
arguments.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse

import jointspace
from jointspace.arguments import to_rows
from pipeline.errors import InputError, UsageError

IMAGES = 600
TEXTS_EACH = 3
EXCHANGED = np.arange(0, IMAGES * TEXTS_EACH, 36)
"""Rows of the texts that are wrong, before the texts are put into random order. Each of these texts describes the image
of the text before it in this list, and the first text describes the image of the last. No two of these texts belong to
the same image.
"""


class Pairs(NamedTuple):
    """Image vectors (n, 40), text vectors (m, 30) in random order, the image of each text (m,), and the rows of the
    wrong texts.
    """

    images: np.ndarray
    texts: np.ndarray
    owners: np.ndarray
    wrong: set[int]


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    rng = np.random.default_rng(0)
    meaning = rng.normal(size=(IMAGES, 12))
    owners = np.repeat(np.arange(IMAGES), TEXTS_EACH)
    said = owners.copy()
    said[EXCHANGED] = np.roll(owners[EXCHANGED], 1)
    images = meaning @ rng.normal(size=(12, 40)) + 0.3 * rng.normal(size=(IMAGES, 40))
    texts = meaning[said] @ rng.normal(size=(12, 30)) + 0.3 * rng.normal(size=(len(owners), 30))
    order = rng.permutation(len(owners))
    wrong = np.flatnonzero(np.isin(order, EXCHANGED)).tolist()
    return Pairs(images.astype(np.float32), texts[order].astype(np.float32), owners[order], set(wrong))


def listed(findings: jointspace.Findings) -> set[int]:
    """Return the rows of the texts that the findings report one by one as probably wrong."""
    single = [finding for finding in findings if finding["kind"] == "caption"]
    return {finding["sentence_id"] for finding in single if finding["score"] <= finding["threshold"]}


def test_wrong_texts_of_images_with_several_texts_are_found(pairs: Pairs) -> None:
    images, texts, owners, wrong = pairs
    words = [f"text {row}" for row in range(len(texts))]
    names = [f"{row}.jpg" for row in range(IMAGES)]
    findings = jointspace.audit(image_vectors=images, text_vectors=texts, owners=owners, names=names, texts=words)
    assert len(wrong & listed(findings)) >= 0.9 * len(wrong)
    assert len(wrong & listed(findings)) >= 0.8 * len(listed(findings))
    assert {finding["kind"] for finding in findings} == {"caption", "captions"}
    for finding in findings:
        row = finding["sentence_id"]
        image = finding["image_id"]
        own = [row] if finding["kind"] == "caption" else np.flatnonzero(owners == image).tolist()
        assert finding["image"] == names[image] and finding["captions"] == [words[number] for number in own]
        assert {int(owners[number]) for number in own} == {image} and words.index(finding["rather"]) not in own


def test_memory_mapped_vectors_give_the_same_findings_and_are_not_copied(pairs: Pairs, tmp_path: Path) -> None:
    mapped = []
    for name, array in (("images", pairs.images), ("texts", pairs.texts)):
        np.save(tmp_path / f"{name}.npy", array)
        mapped.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
        assert np.shares_memory(to_rows(mapped[-1], name), mapped[-1])
    findings = [
        jointspace.audit(image_vectors=x, text_vectors=y, owners=pairs.owners, seed=1)
        for x, y in (mapped, (pairs.images, sparse.csr_array(pairs.texts)), (pairs.images, pairs.texts))
    ]
    assert findings[0] == findings[2] and listed(findings[1]) == listed(findings[2])
    caption = next(finding for finding in findings[0] if finding["kind"] == "caption")
    assert caption["captions"][0].startswith(f"{caption['image_id']}#") and caption["image"] == str(caption["image_id"])


def test_equal_images_are_one_image(pairs: Pairs) -> None:
    """Each image and its texts are there twice. The audit takes two equal images as one image with six texts.

    A wrong text is there twice as well. Its two copies agree with each other, so they are less suspicious than one
    wrong text, and fewer of them are listed.
    """
    images = np.concatenate([pairs.images, pairs.images])
    texts = np.concatenate([pairs.texts, pairs.texts])
    owners = np.concatenate([pairs.owners, pairs.owners + IMAGES])
    findings = jointspace.audit(image_vectors=images, text_vectors=texts, owners=owners)
    wrong = pairs.wrong | {row + len(pairs.texts) for row in pairs.wrong}
    assert len(wrong & listed(findings)) >= max(0.6 * len(wrong), 0.9 * len(listed(findings)))
    whole = next(finding for finding in findings if finding["kind"] == "captions")
    assert whole["image_id"] < IMAGES and len(whole["captions"]) == 2 * TEXTS_EACH


def test_images_without_a_text_are_ignored(pairs: Pairs) -> None:
    images, texts, owners, wrong = pairs
    more = np.concatenate([np.ones((50, 40), np.float32), images, np.full((9, 40), 2, np.float32)])
    findings = jointspace.audit(image_vectors=more, text_vectors=texts, owners=owners + 50)
    assert len(wrong & listed(findings)) >= 0.9 * len(wrong)
    assert all(50 <= finding["image_id"] < 50 + IMAGES for finding in findings)


@pytest.mark.parametrize("count", [0, 1, 99])
def test_too_few_images_are_refused(count: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(count, 5))
    with pytest.raises(InputError, match=f"Only {count} images have a text, but an audit needs at least 100"):
        jointspace.audit(image_vectors=vectors, text_vectors=vectors)


def test_wrong_arguments_are_refused(pairs: Pairs, tmp_path: Path) -> None:
    images, texts, owners, _ = pairs
    both = {"image_vectors": images, "text_vectors": texts}
    for arguments in ({}, {"image_vectors": images}, {"text_vectors": texts}, {"run": tmp_path, **both}):
        with pytest.raises(UsageError, match="Pass either the folder of a run, or image_vectors and text_vectors"):
            jointspace.audit(**arguments)
    for error, said, arguments in (
        (InputError, "There are 600 images and 1800 texts. Pass owners", both),
        (InputError, r"owners\[0\] is -1", {**both, "owners": np.full(len(texts), -1)}),
        (InputError, "There are 2 names for 600 vectors", {**both, "owners": owners, "names": ["a", "b"]}),
        (InputError, "There are 1 texts for 1800 vectors", {**both, "owners": owners, "texts": ["a"]}),
        (InputError, "contains NaN", {**both, "image_vectors": np.full_like(images, np.nan)}),
        (UsageError, "seed is -1", {**both, "owners": owners, "seed": -1}),
        (UsageError, "is not the folder of a run|no run", {"run": tmp_path}),
    ):
        with pytest.raises(error, match=said):
            jointspace.audit(**arguments)
