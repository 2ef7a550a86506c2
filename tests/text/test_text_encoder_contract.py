"""Tests of all registered text encoders, and comparisons of each encoder with its definition."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from pipeline.config.loading import default_path, merge, read_mapping, validate
from pipeline.config.registry import EncoderSpec, encoder_specs
from pipeline.encoders.averaged import AveragedEncoder
from pipeline.encoders.centred import Centred
from pipeline.encoders.material import EncoderMaterial, EncoderParts
from pipeline.encoders.restore import restore_encoder
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.errors import IntegrityError, JointspaceError
from pipeline.text.tokens import TermSettings
from pipeline.text.vocabulary import build_vocabulary
from pipeline.text.wordvectors import WordVectors

WORDS = ("dog", "cat", "horse", "red", "blue", "green", "runs", "sits")
PLAIN = TermSettings(False, (), 1)
TEXTS = [f"A {WORDS[3 + i % 3]} {WORDS[i % 3]} {WORDS[6 + i % 2]}." for i in range(60)]
VECTORS = np.random.default_rng(0).standard_normal((len(WORDS), 6)).astype(np.float32)
SMALL = {"text": {"lemmatise": False, "min_count": 1}}
TRAIN_TEXTS = SimpleNamespace(
    texts=lambda: TEXTS,
    vocabulary=lambda: None,
    corpus=lambda: WordVectors(WORDS, VECTORS),
    file=lambda wanted: WordVectors(WORDS, VECTORS),
    learn_vocabulary=partial(build_vocabulary, TEXTS),
)
MATERIAL = EncoderMaterial(0, Path(), texts=TRAIN_TEXTS)


def entry_of(kind: str, **own: object) -> Any:
    small = {"components": 2, "principal": 4} if kind == "fisher" else {}
    entry = merge({"name": "one", "kind": kind, **small}, own)
    return validate(merge(merge(read_mapping(default_path()), SMALL), {"text_encoders": [entry]})).text_encoder("one")


def looks_up_words(spec: EncoderSpec) -> bool:
    """Return whether an encoder of this kind has unknown words.

    If the library of the encoder is not installed, the result is false.
    """
    with suppress(JointspaceError):
        return getattr(spec.load(), "unknown", TextEncoder.unknown) is not TextEncoder.unknown
    return False


LEARNED = [spec.name for spec in encoder_specs("text") if looks_up_words(spec)]


def prepare(kind: str, **own: object) -> TextEncoder:
    chosen = entry_of(kind, **own)
    if chosen.spec.extra == "fisher":
        pytest.importorskip("skimage")
    made = chosen.spec.load().prepare(chosen, MATERIAL)
    return made if chosen.centre == "none" else Centred.fit(made, TEXTS, chosen.centre == "whiten")


def dense(rows: object) -> np.ndarray:
    return rows.toarray() if sparse.issparse(rows) else rows


@pytest.mark.parametrize("kind", LEARNED)
def test_vectors_are_finite_and_equal_for_single_texts_and_after_storing(kind: str) -> None:
    made = prepare(kind)
    spec = next(one for one in encoder_specs("text") if one.name == kind)
    rows = made.encode(TEXTS[:7])
    assert sparse.issparse(rows) == spec.sparse and rows.dtype == np.float32 and rows.shape == (7, made.dim)
    assert np.isfinite(dense(rows)).all() and len(np.unique(dense(rows), axis=0)) > 1
    assert made.encode([]).shape == (0, made.dim) and not dense(made.encode(["Zebra!", ""])).any()
    np.testing.assert_allclose(dense(made.encode(TEXTS[3:4])), dense(rows)[3:4], atol=1e-6)
    twin = restore_encoder(TextEncoder, EncoderParts(made.settings(), made.tensors()))
    np.testing.assert_allclose(dense(twin.encode(TEXTS)), dense(made.encode(TEXTS)), atol=1e-6)
    assert entry_of(kind).max_dim(VECTORS.shape[1]) >= made.dim


@pytest.mark.parametrize("kind", LEARNED)
def test_a_text_in_another_spelling_has_the_same_vector(kind: str) -> None:
    """The other spelling has full-width letters, which normalisation to NFC would not change."""
    made = prepare(kind)
    wide = "".join(chr(ord(letter) + 0xFEE0) if letter.isalpha() else letter for letter in TEXTS[0])
    assert wide != TEXTS[0] and made.searches(wide)
    np.testing.assert_array_equal(dense(made.encode([wide])), dense(made.encode(TEXTS[:1])))


ADDING = [
    (one.name, centre)
    for one in encoder_specs("text")
    for centre in (["none"] if one.sparse else ["none", "mean", "whiten"])
    if one.adds_words
]


@pytest.mark.parametrize(("kind", "centre"), ADDING, ids="-".join)
def test_the_vectors_of_words_sum_to_a_multiple_of_the_vector_of_the_sentence(kind: str, centre: str) -> None:
    made = prepare(kind, centre=centre, **({"max_ngram": 1} if kind == "tf-idf" else {}))
    words = ["a", "red", "dog", "runs"]
    total = dense(made.encode_words(words)).sum(axis=0)
    whole = dense(made.encode(["A red dog runs"]))[0]
    assert total @ whole / (np.linalg.norm(total) * np.linalg.norm(whole)) > 1 - 1e-6
    assert not dense(made.encode_words(["zebra", ""])).any()


@pytest.mark.parametrize("kind", LEARNED)
def test_unknown_words_are_named_with_suggestions(kind: str) -> None:
    made = prepare(kind)
    assert made.unknown("A hoarse zebra, a zebra runs") in (["hoarse", "zebra"], ["a", "hoarse", "zebra"])
    assert made.knows("the dog") and not made.knows("zebra") and not made.knows("")
    assert made.suggest("hoarse") == "horse" and made.suggest("xylophone") is None
    assert {"dog", "horse"} <= set(made.terms)


@pytest.mark.parametrize("kind", LEARNED)
@pytest.mark.parametrize("part", ["settings", "tensors"])
def test_parts_of_another_form_are_refused(kind: str, part: str) -> None:
    made = prepare(kind)
    settings = made.settings()
    tensors = made.tensors()
    if part == "settings":
        for name in set(settings) - {"kind", "n_sentences"}:
            for value in (None, 3, ["a", "a"], {"a": 1}):
                with pytest.raises(IntegrityError, match="has a form that this version cannot read"):
                    restore_encoder(TextEncoder, EncoderParts({**settings, name: value}, tensors))
    for name in tensors if part == "tensors" else ():
        for value in (tensors[name][:1], tensors[name][..., None], -np.abs(tensors[name]) * np.inf):
            with pytest.raises(IntegrityError, match="has a form that this version cannot read"):
                restore_encoder(TextEncoder, EncoderParts(settings, {**tensors, name: value}))
    with pytest.raises(IntegrityError, match="has a form that this version cannot read"):
        restore_encoder(TextEncoder, EncoderParts({}, {}))


@pytest.mark.parametrize("centre", ["mean", "whiten"])
def test_dense_vectors_are_centred_and_whitened_by_the_training_sentences(centre: str) -> None:
    plain = prepare("averaged")
    made = prepare("averaged", centre=centre)
    rows = plain.encode(TEXTS).astype(float)
    moved = made.encode(TEXTS).astype(float)
    np.testing.assert_allclose(moved.mean(axis=0), 0, atol=1e-5)
    if centre == "mean":
        np.testing.assert_allclose(moved, rows - rows.mean(axis=0), atol=1e-5)
    else:
        values = np.linalg.eigvalsh(np.cov(moved, rowvar=False, bias=True))
        rank = np.linalg.matrix_rank(rows - rows.mean(axis=0), tol=1e-3)
        np.testing.assert_allclose(np.sort(values)[-rank:], 1, atol=1e-3)
    twin = restore_encoder(TextEncoder, EncoderParts(made.settings(), made.tensors()))
    np.testing.assert_allclose(twin.encode(TEXTS), moved, atol=1e-6)
    assert not twin.encode(["zebra", ""]).any()
    again = Centred.fit(plain, [*TEXTS, "zebra", "", "xylophone"], centre == "whiten")
    np.testing.assert_allclose(again.encode(TEXTS), moved, atol=1e-6)
    assert twin.suggest("hoarse") == "horse" and twin.knows("a dog") and not twin.knows("zebra")


def test_the_mean_is_weighted_by_inverse_document_frequency() -> None:
    known = WordVectors(("dog", "runs"), np.array([[1, 0], [0, 1]], np.float32))
    train = SimpleNamespace(texts=lambda: ["dog dog", "dog runs", "dog", "cat"], corpus=lambda: known)
    made = AveragedEncoder.prepare(entry_of("averaged"), EncoderMaterial(0, Path(), texts=train))
    dog = np.log(5 / 4) + 1
    runs = np.log(5 / 2) + 1
    found = made.encode(["Dog dog runs cat", "runs", "cat"])
    np.testing.assert_allclose(
        found, [[2 * dog / (2 * dog + runs), runs / (2 * dog + runs)], [0, 1], [0, 0]], atol=1e-6
    )


def test_a_fisher_vector_is_the_gradient_of_the_log_likelihood() -> None:
    """The expected gradient is computed by finite differences of the mean log-likelihood of the words of a text. The
    gradient is scaled as in Perronnin et al. 2010."""
    made = prepare("fisher")
    mixture = made.mixture
    x = made.vectors[made.rows("a red dog runs")].astype(float)
    means = mixture.means_.copy()
    step = 1e-5
    gradient = np.zeros_like(means)
    for place in np.ndindex(*means.shape):
        for sign in (1, -1):
            mixture.means_ = means.copy()
            mixture.means_[place] += sign * step
            gradient[place] += sign * mixture.score(x) / (2 * step)
    mixture.means_ = means
    expected = gradient * np.sqrt(mixture.covariances_) / np.sqrt(mixture.weights_)[:, None]
    found = made.encode(["a red dog runs"])[0]
    k = len(mixture.weights_)
    size = means.size
    part = found[k : k + size]
    # The square undoes the signed square root, except for a common factor.
    signed = np.sign(part) * part.astype(float) ** 2
    factor = (signed @ expected.ravel()) / (expected.ravel() @ expected.ravel())
    np.testing.assert_allclose(signed, factor * expected.ravel(), atol=1e-4 * np.abs(signed).max() + 1e-7)
    np.testing.assert_allclose(np.linalg.norm(found), 1, atol=1e-6)
