"""The queries that tune an index of images, and the phrases that are part of jointspace."""

import configparser
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
import yaml
from simplemma import langdetect
from synthetic_colours import draw
from synthetic_run import ingest, make_stage

import pipeline.index
from pipeline.config.registry import ALLOWED
from pipeline.errors import UsageError
from pipeline.index.tuning_queries import MIN_TEXTS, choose_queries, find_fitting, read_phrases, words_of_names
from pipeline.storage.index_shard import IndexShard

PHRASES = Path(pipeline.index.__file__).with_name("phrases.tsv")
ROOT = Path(__file__).parents[2]
LETTERS = """
import numpy as np
from pipeline.encoders.text_encoder import TextEncoder


class LetterCounts(TextEncoder):
    dim = 26

    def encode(self, texts):
        counts = [[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        return np.array(counts, np.float32).reshape(len(texts), 26)
"""
"""Source text of a module in which a user defines a text encoder: the counts of the 26 letters."""
METRIC = "inner_product"
IMAGES = np.arange(200, dtype=np.float32)[:, None]
SCRIPTS = {"ru": "CYRILLIC", "zh": "CJK", "ar": "ARABIC", "hi": "DEVANAGARI"}
"""Language -> its script, as Unicode names it, for languages that are not written in Latin letters. Japanese is left
out, because it mixes three scripts."""


class CountingEmbedder:
    """A model that embeds a text as its length, and knows the texts that contain the text `known`. `embedded` has the
    texts of the last call."""

    def __init__(self, known: str = "") -> None:
        self.known = known
        self.embedded: list[str] = []

    def knows(self, text: str) -> bool:
        return self.known in text

    def embed_sentences(self, sentences: Sequence[str]) -> np.ndarray:
        self.embedded = list(sentences)
        return np.array([[len(text)] for text in sentences], np.float32)


class ForeignEmbedder(CountingEmbedder):
    """A model whose text vectors were precomputed, so that it cannot embed texts. Its method `knows` already raises
    UsageError, like a QueryEncoder of such a model."""

    def knows(self, text: str) -> bool:
        raise UsageError("this index cannot be searched with text")


def phrases_by_language() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in PHRASES.read_text(encoding="utf-8").splitlines():
        language, phrase = line.split("\t")
        found.setdefault(language, []).append(phrase)
    return found


def scripts_of(text: str) -> set[str]:
    return {unicodedata.name(letter).split()[0] for letter in text if unicodedata.category(letter).startswith("L")}


def first_words(language: str, phrase: str) -> str:
    """Return the first two words of a phrase, or its first two characters in a language without spaces."""
    return phrase[:2] if language in ("zh", "ja") else " ".join(phrase.lower().split()[:2])


def test_the_phrases_are_a_thousand_different_ones_without_templates() -> None:
    every = [(language, phrase) for language, phrases in phrases_by_language().items() for phrase in phrases]
    phrases = [phrase for _, phrase in every]
    assert read_phrases() == every
    assert len(phrases) == len(set(phrases)) == 1000
    beginnings = Counter(first_words(*one) for one in every)
    assert max(beginnings.values()) <= 5, beginnings.most_common(3)
    firsts = Counter(phrase.lower().split()[0] for _, phrase in every)
    assert firsts.most_common(1)[0][1] <= 30  # No single word begins more than 30 phrases.
    assert all(phrase == unicodedata.normalize("NFC", phrase.strip()) for phrase in phrases)


def test_the_phrases_have_many_languages_and_scripts() -> None:
    languages = phrases_by_language()
    assert len(languages) >= 6 and min(map(len, languages.values())) >= 40
    for language, phrases in languages.items():
        found = set().union(*map(scripts_of, phrases))
        if language == "ja":
            assert found - {"KATAKANA-HIRAGANA", "IDEOGRAPHIC"} == {"HIRAGANA", "KATAKANA", "CJK"}
        else:
            assert found == {SCRIPTS.get(language, "LATIN")}, language
    assert len({SCRIPTS.get(language, "LATIN") for language in languages}) >= 4
    latin = tuple(languages.keys() - SCRIPTS.keys() - {"ja"})
    for language in latin:  # simplemma, which counts known words, finds the same language.
        assert langdetect(" ".join(languages[language]), latin)[0][0] == language


def test_a_wheel_has_every_data_file_of_the_packages() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    patterns = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, listed in setup["options.package_data"].items()
        for pattern in listed.split()
    ]
    files = [
        path.relative_to(ROOT).as_posix()
        for folder in ("pipeline", "jointspace")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert PHRASES.relative_to(ROOT).as_posix() in files
    assert [file for file in files if not any(fnmatch(file, pattern) for pattern in patterns)] == []


def test_captions_come_first_then_texts_then_images() -> None:
    captions = IMAGES[:3] + 0.5
    embedder = CountingEmbedder()
    assert choose_queries(IMAGES, METRIC, captions, embedder) == (captions, "captions")
    assert embedder.embedded == []
    vectors, measured_with = choose_queries(IMAGES, METRIC, captions[:0], embedder)
    assert measured_with == "phrases" and len(embedder.embedded) == len(IMAGES)
    lengths = {float(len(text)) for text in embedder.embedded}
    assert 0 < len(vectors) < len(IMAGES) and {*vectors[:, 0].tolist()} <= lengths
    assert choose_queries(IMAGES, METRIC, None, None) == (IMAGES, "images")
    assert choose_queries(IMAGES, METRIC, None, ForeignEmbedder()) == (IMAGES, "images")


def test_half_of_the_texts_may_be_the_users_own() -> None:
    own = [f"a query of the user {number}" for number in range(1000)]
    embedder = CountingEmbedder()
    vectors, _ = choose_queries(np.ones((5000, 1), np.float32), METRIC, None, embedder, own + own)
    assert len(embedder.embedded) == len(set(embedder.embedded)) == 1000
    assert set(embedder.embedded[:500]) < set(own) and not set(own) & {*embedder.embedded[500:]}
    # No query of the user is left out, although only some phrases fit the images.
    assert vectors[:500, 0].tolist() == [len(text) for text in embedder.embedded[:500]]
    for language, phrases in phrases_by_language().items():
        assert len({*phrases} & {*embedder.embedded}) == pytest.approx(len(phrases) / 2, abs=1), language


def test_one_image_is_measured_with_one_phrase() -> None:
    vectors, measured_with = choose_queries(IMAGES[1:2], METRIC, None, CountingEmbedder())
    assert (len(vectors), measured_with) == (1, "phrases")


def test_a_model_that_knows_hardly_any_phrase_is_measured_with_images() -> None:
    own = [f"xqx {number}" for number in range(MIN_TEXTS)]
    assert choose_queries(IMAGES, METRIC, None, CountingEmbedder("xqx"), own).measured_with == "phrases"
    assert choose_queries(IMAGES, METRIC, None, CountingEmbedder("xqx"), own[1:]) == (IMAGES, "images")


def test_phrases_about_other_things_and_in_unknown_languages_do_not_fit() -> None:
    """English has the greatest median, 5.5, and the lower quartile 3.25. The median of German, 4, is above this
    quartile, and the median of Russian, 3, is below it. 60 % of the 15 phrases in English and German are nine phrases.
    """
    scores = {"en": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "de": [0, 3, 4, 5.5, 6.5], "ru": [1, 2, 3, 20, 30]}
    languages = np.repeat(list(scores), [len(each) for each in scores.values()])
    fitting = find_fitting(languages, np.concatenate(list(scores.values())))
    assert fitting.tolist() == [3, 4, 5, 6, 7, 8, 9, 13, 14]  # The rows 0 to 9 are English, and 10 to 14 are German.
    assert find_fitting(languages[:0], np.zeros(0)).tolist() == []


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["trip/sunset_over-the sea.jpg", "other/sunset over the sea.png"], ["sunset over the sea"]),
        (["IMG_2041.jpg", "1000268201_693b08cb0e.jpg", "00012.png", "20210708T101112.heic", ""], []),
        (["mädchen1.JPG", "चाय.jpg", "奶奶包饺子.webp"], ["mädchen", "चाय", "奶奶包饺子"]),
        (["archive.tar.gz"], ["archive tar"]),
    ],
)
def test_the_words_of_file_names(names: list[str], words: list[str]) -> None:
    assert words_of_names(names) == words


@pytest.mark.parametrize("has_encoder", [True, False])
def test_build_index_measures_photos_without_captions_with_phrases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_encoder: bool
) -> None:
    """If the text vectors are precomputed, the index is measured with its photos instead, because no text can be
    encoded."""
    (tmp_path / "letters.py").write_text(LETTERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(ALLOWED, "letters:LetterCounts")
    names = draw(tmp_path / "data", 30, 0)
    vectors = np.random.default_rng(0).normal(size=(30, 26)).astype(np.float32)
    np.save(tmp_path / "data/images.npy", vectors)
    np.save(tmp_path / "data/texts.npy", vectors[:0])
    (tmp_path / "data/names.txt").write_text("\n".join(names))
    (tmp_path / "asked.txt").write_text("what the users of this collection ask\n\n")
    letters = {"kind": "letters:LetterCounts"} if has_encoder else {"kind": "imported", "path": "texts.npy"}
    values = {
        "name": "silent",
        "data_root": str(tmp_path / "data"),
        "demo": {"generate": False},
        "collection": {"default_split": "gallery"},
        "models": ["zero-shot"],
        "encoders": [{"name": "eyes", "kind": "imported", "path": "images.npy", "names": "names.txt"}],
        "text_encoders": [{"name": "letters", **letters}],
        "hubness": {"queries": str(tmp_path / "asked.txt")} if has_encoder else {},
    }
    (run := tmp_path / "results/silent").mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    ingest(run, tmp_path / "data")
    prepare = [("prepare_encoder", "letters"), ("encode_sentences", "letters")]
    for stage, *of in (
        ("import_vectors", "features/eyes"),
        *(prepare if has_encoder else [("import_vectors", "text/letters")]),
        ("adopt", "zero-shot"),
        ("embed", "zero-shot"),
        ("build_index", "zero-shot"),
    ):
        make_stage(stage, run, *of)
    card = IndexShard(run / "index/zero-shot").card.images
    assert card is not None
    assert card.measured_with == ("phrases" if has_encoder else "images")
    assert card.to_json()["queries"] < 30 if has_encoder else card.to_json()["queries"] == 30
    sys.modules.pop("letters", None)
