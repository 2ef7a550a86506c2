"""Tests that collections in any script can be searched with words in this script."""

import json
import unicodedata
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from synthetic_run import ingest, make_stage, write_config

import jointspace
from pipeline.encoders.tfidf import encode
from pipeline.text.tokens import TermSettings, join_words, make_analyzer
from pipeline.text.vocabulary import Vocabulary, build_vocabulary

CONFIG = {
    "models": ["ncca"],
    "encoders": [{"name": "given", "kind": "imported", "path": "vectors.npy"}],
    "image_view": {"normalise": []},
    "fit": {"dimensions": [16], "image_ridge": [0.01], "text_ridge": [0.1], "eigenvalue_power": [1]},
    "evaluate": {"bootstrap": 5, "protocols": ["all-sentences"]},
}
SCRIPTS = {
    "thai": (
        "{1}สี{0}อยู่{2} / ที่{2}มี{1}สี{0}",
        "แดง เขียว น้ำเงิน ขาว ดำ เหลือง",
        "สุนัข แมว ม้า นก รถยนต์ เรือ",
        "บนหญ้า ริมทะเล ในป่า กลางถนน บนหิมะ ในบ้าน",
    ),
    "hindi": (
        "{2} एक {0} {1} है / यह {0} {1} {2} दिखता है",
        "लाल नीला सफ़ेद काला पीला हरा",
        "कुत्ता घोड़ा गाड़ी पक्षी बच्चा बिल्ली",
        "घास-पर समुद्र-तट-पर जंगल-में सड़क-पर बर्फ़-पर घर-में",
    ),
}
"""Two sentence patterns, and words for colours, things and places, for each script."""


def write_collection(folder: Path, script: str) -> list[str]:
    """Write a collection of 200 images, each with a colour, a thing and a place. Return the first sentence of each
    image."""
    sentences, *words = SCRIPTS[script]
    rng = np.random.default_rng(0)
    shown = rng.permutation(list(product(range(6), repeat=3)))[:200]
    vectors = np.concatenate([np.eye(6, dtype=np.float32)[shown[:, part]] for part in range(3)], axis=1)
    (folder / "images").mkdir(parents=True)
    names = [f"{number:03d}.png" for number in range(200)]
    captions = []
    for name, numbers in zip(names, shown, strict=True):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(folder / "images" / name)
        chosen = [of.split()[number].replace("-", " ") for of, number in zip(words, numbers, strict=True)]
        captions.append(sentences.format(*chosen).split(" / "))
    np.save(folder / "vectors.npy", vectors + rng.normal(0, 0.05, vectors.shape).astype(np.float32))
    (folder / "vectors.txt").write_text("\n".join(names))
    rows = [
        f"{name}\t{n}\t{text}\n" for name, texts in zip(names, captions, strict=True) for n, text in enumerate(texts)
    ]
    (folder / "captions.tsv").write_text("".join(rows))
    splits = ["train"] * 120 + ["dev"] * 40 + ["test"] * 40
    (folder / "splits.tsv").write_text("".join(f"{name}\t{split}\n" for name, split in zip(names, splits, strict=True)))
    return [texts[0] for texts in captions]


def start(folder: Path) -> Path:
    """Return a run in which the collection in `folder`/data is ingested."""
    (run := folder / "run").mkdir()
    write_config(run, {**CONFIG, "data_root": str(folder / "data"), "demo": {"generate": False}})
    ingest(run, folder / "data")
    return run


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_collection_in_any_script_is_searchable(script: str, tmp_path: Path) -> None:
    sentences = write_collection(tmp_path / "data", script)
    run = start(tmp_path)
    make_stage("import_vectors", run, "features/given")
    make_stage("prepare_encoder", run, "text/encoders/tfidf")
    make_stage("encode_sentences", run, "tfidf")
    for pairs in ("target", "dev"):
        make_stage("accumulate", run, pairs)
    make_stage("fit", run, "ncca")
    make_stage("embed", run, "ncca")
    make_stage("evaluate", run, "ncca", "test", "all-sentences")
    make_stage("build_index", run, "ncca")
    (path,) = (run / "evaluation").glob("ncca.test.*.json")
    value = json.loads(path.read_text())
    for direction in ("image_to_sentence", "sentence_to_image"):
        assert value[direction]["recall@1"] > 90, value[direction]
    details = json.loads((run / "text/encoders/tfidf/model.json").read_text())["details"]
    assert any(term.startswith("~") for term in details["settings"]["terms"]) == (script == "hindi")
    assert details["coverage"]["sentences"] == 80 and details["coverage"]["unknown"] == 0
    found = jointspace.load(run / "index/ncca")
    assert not any(term.startswith("~") for term in found._searcher._forms.terms)
    for number in (3, 170):
        for form in ("NFC", "NFD", "NFKD"):
            (hit,) = found.search(unicodedata.normalize(form, sentences[number]), k=1)
            assert hit.row["path"] == f"images/{number:03d}.png"


def test_a_vocabulary_that_does_not_know_dev_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_collection(tmp_path / "data", "hindi")
    captions = tmp_path / "data/captions.tsv"
    lines = captions.read_text().splitlines()
    foreign = [f"{line.rpartition(chr(9))[0]}\twords that nobody knows" for line in lines[240:320:2]]
    captions.write_text("\n".join([*lines[:240], *foreign, *lines[241:320:2], *lines[320:]]))
    make_stage("prepare_encoder", start(tmp_path), "text/encoders/tfidf")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "40 of 80 dev sentences have no known word" in warning and "text.min_count" in warning


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("小狗跑", "小 狗 跑 小狗 狗跑"),
        ("犬がいる", "犬 が い る 犬が がい いる 犬がい がいる"),
        ("小狗，跑", "小 狗 跑 小狗"),
        ("iPhone手机 red dog", "iphone 手 机 red dog 手机 red_dog"),
        ("ﾊﾞｽ", "バ ス バス"),
        ("กินข้าว", "กิ น ข้ า ว กิน นข้ ข้า าว กินข้ นข้า ข้าว"),
        ("कुत्ता दौड़ा", "कुत्ता दौड़ा कुत्ता_दौड़ा"),
        ("ｄｏｇ ｒｕｎｓ", "dog runs dog_runs"),
        ("كلب أسود", "كلب أسود كلب_أسود"),
        ("كَلْبٌ أَسْوَد", "كلب أسود كلب_أسود"),
        ("صورًا", "صور ا صور_ا"),
        ("כֶּלֶב", "כלב"),
        ("한국 개", "한국 개 한국_개"),
        ("٣ بنات", "3 بنات 3_بنات"),
        ("２匹 २", "2 匹 2"),
        ("ge\u00adbouw", "gebouw"),
        ("كل\u200fب", "كلب"),
        ("\u4e24\ufe00只\U000e0100狗", "\u4e24 只 狗 \u4e24只 只狗"),
        ("क्\u200dया क्या", "क्या क्या क्या_क्या"),
        ("উদ্\u200cযাপন", "উদ্যাপন"),
        ("می\u200cرود", "می رود می_رود"),
        ("İzmir", "izmir"),
        ("foto\u2019s м\u02bcяч", "foto's м'яч foto's_м'яч"),
    ],
)
def test_terms_are_words_in_scripts_with_spaces_and_characters_in_others(text: str, terms: str) -> None:
    analyze = make_analyzer(TermSettings(False, (), 2, max_characters=3))
    expected = [unicodedata.normalize("NFKC", term.replace("_", " ")) for term in terms.split()]
    assert sorted(analyze(text)) == sorted(expected)
    assert analyze(unicodedata.normalize("NFKD", text)) == analyze(text)


def test_token_models_read_characters_in_scripts_without_spaces() -> None:
    analyze = make_analyzer(TermSettings(False, (), 1))
    words = analyze("Two dogs . 两只狗。 หมา")
    assert words == ["two", "dogs", "两", "只", "狗", "ห", "ม", "า"]
    assert join_words(words[:5]) == "two dogs 两只狗" and join_words([]) == ""


PIECES = TermSettings(lemmatise=False, stop_words=(), max_ngram=2, max_characters=3, pieces=True)


def learn(sentences: list[str], size: int = 10_000) -> Vocabulary:
    return build_vocabulary(sentences, PIECES, size=size, min_count=1, idf=True, normalise=True)


@pytest.mark.parametrize(
    ("word", "pieces"),
    [
        ("hond", "_h ho on nd d_ _ho hon ond nd_ _hon hond ond_"),
        ("dé", "_d dé é_ _dé dé_"),
        ("개만", "_개 개만 만_ _개만 개만_"),
        ("कुत्ता", "_कु कुत् त्ता ता_ _कुत् कुत्ता त्ता_ _कुत्ता कुत्ता_"),
    ],
)
def test_a_piece_has_two_to_four_letters_with_their_marks(word: str, pieces: str) -> None:
    analyze = make_analyzer(PIECES)
    expected = [f"~{unicodedata.normalize('NFKC', piece)}" for piece in pieces.split()]
    for form in ("NFC", "NFD"):
        assert analyze(unicodedata.normalize(form, word)) == [unicodedata.normalize("NFKC", word), *expected]


@pytest.mark.parametrize("text", ["กินข้าวกับหมา", "犬がいるアイスクリーム", "两只小狗"])
def test_scripts_without_spaces_have_no_pieces(text: str) -> None:
    assert make_analyzer(PIECES)(text) == make_analyzer(replace(PIECES, pieces=False))(text)


def test_english_has_no_pieces() -> None:
    sentences = ["two dogs play in the snow", "a dog runs", "the red house"]
    without = build_vocabulary(sentences, replace(PIECES, pieces=False), size=99, min_count=1, idf=True, normalise=True)
    assert learn(sentences).terms == without.terms and not any(term.startswith("~") for term in without.terms)


DUTCH = [
    "Een hond rent door het bos", "Twee honden spelen op het strand", "De brandweer komt met water",
    "Een rode auto rijdt door de straat", "Kinderen spelen met een bal", "De man zwemt in zee",
]  # fmt: skip
HINDI = [
    "कुत्ता दौड़ रहा है", "बिल्ली सो रही है", "बच्चा गेंद से खेलता है", "समुद्र में लोग हैं", "एक आदमी घोड़े पर बैठा है",
    "लड़की लाल कपड़े पहने हुए है", "सड़क पर कई गाड़ियाँ खड़ी हैं", "औरत बर्फ़ पर चल रही है", "पहाड़ के ऊपर नीला आसमान दिखता है",
]  # fmt: skip


def similarity(vocabulary: Vocabulary, first: str, second: str) -> float:
    vectors = encode([first, second], vocabulary).toarray()
    return float(vectors[0] @ vectors[1])


def test_a_compound_word_is_like_its_parts() -> None:
    vocabulary = learn(DUTCH)
    assert vocabulary.knows("brandweerauto") and vocabulary.unknown("brandweerauto") == []
    parts = [similarity(vocabulary, "brandweerauto", sentence) for sentence in DUTCH]
    assert sorted(np.argsort(parts)[-2:].tolist()) == [2, 3]


@pytest.mark.parametrize(
    ("sentences", "query"),
    [
        (["강아지가 뛴다", "고양이가 잔다", "아이가 공을 찬다", "사람들이 바다에 있다"], "강아지를"),
        (HINDI, "कुत्ते"),
        (["الكلب يركض على العشب", "قطة تنام", "طفل يلعب بالكرة", "ناس في البحر"], "للكلب"),
    ],
    ids=["korean", "hindi", "arabic"],
)
def test_another_form_of_a_word_finds_the_word(sentences: list[str], query: str) -> None:
    vocabulary = learn(sentences)
    assert query not in vocabulary.terms and vocabulary.knows(query)
    assert int(np.argmax([similarity(vocabulary, query, sentence) for sentence in sentences])) == 0


def test_words_of_other_letters_are_unknown_and_add_nothing() -> None:
    vocabulary = learn(DUTCH)
    assert vocabulary.unknown("Een xylofoon, een hnod") == ["xylofoon", "hnod"]
    assert vocabulary.count_words("Een xylofoon, een hnod") == (4, 2) and vocabulary.suggest("hnod") == "hond"
    assert not vocabulary.knows("xylofoon") and not vocabulary.searches("xylofoon")
    np.testing.assert_array_equal(
        encode(["een hond xylofoon"], replace(vocabulary, settings=vocabulary.settings)).toarray(),
        encode(["een hond"], vocabulary).toarray(),
    )


def test_pieces_leave_half_of_a_small_vocabulary_to_words() -> None:
    terms = learn(DUTCH, size=20).terms
    assert len(terms) == 20 and sum(term.startswith("~") for term in terms) == 10
    assert {"een", "de", "het"} < set(terms)


def test_stored_vocabularies_keep_their_pieces() -> None:
    vocabulary = learn(DUTCH)
    stored = json.loads(json.dumps(vocabulary.to_dict()))
    restored = Vocabulary.from_dict(stored)
    np.testing.assert_array_equal(encode(DUTCH, restored).toarray(), encode(DUTCH, vocabulary).toarray())
    del stored["settings"]["pieces"]  # Vocabularies of English captions, and of earlier versions, do not have the key.
    earlier = Vocabulary.from_dict(stored)
    assert earlier.rows("hond") == [earlier.index["hond"]]
    assert "pieces" not in learn(["a dog runs", "the red house"]).to_dict()["settings"]
