"""Tests of the package `jointspace` as a program uses it: its examples, its answers, and its errors."""

import base64
import copy
import doctest
import hashlib
import io
import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from scipy import sparse
from synthetic_colours import make_colours

import jointspace
import jointspace.auditing
import jointspace.index
import jointspace.space
from jointspace.reference import render
from pipeline.config.registry import ALLOWED
from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.images.opening import ImageLimits
from pipeline.index.search import Searcher
from pipeline.report.photographs import figure
from pipeline.run.reading import migration
from pipeline.storage.stored_index import open_index

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bundle(colours: Path) -> Path:
    return colours / "bundle"


def test_the_examples_in_docstrings_run(bundle: Path, tmp_path: Path) -> None:
    for module in (jointspace.auditing, jointspace.index, jointspace.space, migration):
        found = doctest.testmod(module, extraglobs={"path": bundle, "np": np, "folder": tmp_path / "fitted"})
        assert found.attempted and not found.failed


def test_the_page_of_the_api_is_up_to_date() -> None:
    assert render() == (ROOT / "docs/api.md").read_text()


def test_the_notebook_runs(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells run one after another in a folder that has an index at the place where the demo has its index."""
    shutil.copytree(bundle, tmp_path / "results/demo/index/sae")
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples/search.ipynb").read_text())["cells"]
    names: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102
    assert names["hits"]._repr_html_().count("<img") == len(names["hits"]) == 5 and names["space"].dim > 0
    assert {finding["image"] for finding in names["findings"][:2]} == {"3", "4"}


def test_searches_of_the_api_equal_those_of_the_searcher(bundle: Path) -> None:
    index = jointspace.load(str(bundle))
    searcher = Searcher(open_index(bundle))
    assert index.search("a red picture", k=5) == searcher.images("a red picture", 5)
    path = bundle.parent / "data" / "blue-02.png"
    (nearest, *_), like = index.search(image=path, k=3), index.search(image=Image.open(path), k=3)
    assert nearest.row["path"] == path.name and [hit.row for hit in like] == [
        hit.row for hit in index.search(image=path, k=3)
    ]
    assert index.sentences(path, 1)[0].row["text"] == "a blue picture"
    both = index.search("a red picture", image=path, k=40, weight=0.9)
    assert both[0].row["path"].startswith("red")
    for vector in (index.embed_image(path), index.embed_text("a blue picture")):
        np.testing.assert_allclose(np.linalg.norm(vector), 1, rtol=1e-5)
        assert index.search(vector=vector, k=1)[0].row["path"].startswith("blue")
    assert index.search("a red picture", where="path = 'blue-02.png'")[0].row["path"] == "blue-02.png"


def test_a_notebook_shows_the_photos_of_an_answer_and_no_markup_of_their_texts(bundle: Path, tmp_path: Path) -> None:
    answer = jointspace.load(bundle).search("a red picture", k=3)
    html = answer._repr_html_()
    photos = [base64.b64decode(photo) for photo in re.findall('src="data:image/jpeg;base64,([^"]+)"', html)]
    assert len(photos) == 3 and all(hit.row["path"] in html for hit in answer)
    shown = np.asarray(Image.open(io.BytesIO(photos[0])).convert("RGB")).mean(axis=(0, 1))
    assert shown.argmax() == 0, "a red photo"
    assert pickle.loads(pickle.dumps(answer))._repr_html_() is None
    assert Searcher(open_index(bundle)).images("a red picture", 3)._repr_html_() is None
    name = "<script>&.png"
    data = (bundle.parent / "data" / answer[0].row["path"]).read_bytes()
    row = {"sha256": hashlib.sha256(data).hexdigest()}
    limits = ImageLimits(10**6, 1, 100)
    drawn = figure(lambda _: data, limits, row, name)
    assert "<script>" not in drawn and "&lt;script&gt;&amp;.png" in drawn and "<img" in drawn
    assert "<img" not in figure(lambda _: data + b" ", limits, row, name), "the photo has changed"


CHINESE = {"red": "红色", "green": "绿色", "blue": "蓝色", "white": "白色"}
JAPANESE = {"red": "赤い", "green": "緑の", "blue": "青い", "white": "白い"}


@pytest.mark.parametrize(
    ("words", "sentence", "query"),
    [(CHINESE, "这是一张{}的图片", "{}图片"), (JAPANESE, "これは{}絵です。", "{}絵")],
)
def test_captions_in_scripts_without_spaces_are_found_from_ingest_on(
    tmp_path: Path, words: dict[str, str], sentence: str, query: str
) -> None:
    run = make_colours(tmp_path / "run", say=lambda colour: sentence.format(words[colour]))
    index = jointspace.load(run / "bundle")
    for colour, word in words.items():
        hits = index.search(query.format(word), k=5)
        assert {hit.row["path"].partition("-")[0] for hit in hits} == {colour}


def test_invalid_queries_are_refused(bundle: Path, tmp_path: Path) -> None:
    index = jointspace.load(bundle)
    photograph = bundle.parent / "data/blue-02.png"
    vector = index.embed_text("a red picture")
    tensor = torch.nn.Parameter(torch.from_numpy(vector)[None])
    assert index.search(vector=tensor, k=1) == index.search(vector=vector, k=1)
    (tmp_path / "no.jpg").write_text("no photograph")
    asked = {"text": "a red picture", "image": photograph}
    refused = [
        (UsageError, "a text, an image, both, a vector, or a text_vector", {}),
        (UsageError, "a text, an image, both, a vector, or a text_vector", {"text": "a", "vector": np.ones(3)}),
        *(
            (InputError, "none of which is NaN or infinite", {"vector": wrong})
            for wrong in (np.ones(7), np.full(len(vector), np.nan))
        ),
        (InputError, "is zero", {"vector": np.zeros(len(vector))}),
        *((UsageError, "^k is", {**asked, "k": k}) for k in (0, -1, 2.5, "3", True, None)),
        *((UsageError, "weight", {**asked, "weight": weight}) for weight in ("1", None, True)),
        (UsageError, "^weight is too large for a float", {**asked, "weight": 10**5000}),
        (UsageError, "where", {**asked, "where": b"width > 1"}),
        *((UsageError, "^text has the type", {"text": text}) for text in (7, b"red")),
        (UsageError, "where", {**asked, "where": "path = '\udcff'"}),
        (UsageError, "image", {"image": 7}),
        *((InputError, name, {"image": tmp_path / name}) for name in ("no.jpg", "missing.jpg")),
    ]
    for error, said, arguments in refused:
        with pytest.raises(error, match=said):
            index.search(**arguments)
    with pytest.raises(IntegrityError, match="does not exist"):
        jointspace.load(tmp_path / "nowhere")
    with pytest.raises(AttributeError, match="It provides Findings, FittedSpace"):
        _ = jointspace.nothing


def _paths(index: jointspace.Index, text: str) -> list[str]:
    return [hit.row["path"] for hit in index.search(text, k=3)]


def test_an_index_can_be_copied_after_a_search(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bundle.parent)
    monkeypatch.setenv(ALLOWED, "")
    index = jointspace.load(bundle.name, allow="mine:Model")
    assert os.environ[ALLOWED] == "mine:Model"
    found = _paths(index, "a red picture")
    index.embed_image(bundle.parent / "data/blue-02.png")
    data = pickle.dumps(index)
    assert len(data) < 1000
    monkeypatch.chdir("/")
    assert _paths(pickle.loads(data), "a red picture") == _paths(copy.deepcopy(index), "a red picture") == found  # noqa: S301


def correlated(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw n images (n, 20) and n texts (n, 15). Image i and text i share four hidden values, and the maps from hidden
    values to vectors are the same for each seed.
    """
    rng = np.random.default_rng(seed)
    fixed = np.random.default_rng(99)
    shared = rng.normal(size=(n, 4))
    x = shared @ fixed.normal(size=(4, 20)) + 0.3 * rng.normal(size=(n, 20))
    return x.astype(np.float32), (shared @ fixed.normal(size=(4, 15)) + 0.3 * rng.normal(size=(n, 15))).astype(
        np.float32
    )


def test_rows_with_equal_vectors_are_one_image() -> None:
    """The pairs have five rows with equal vectors per image, and no owners. This is the usual form of pairs. The number
    of held-out images and the recalls on these images are the same as with owners, also if two encoders made the
    vectors.
    """
    x, y = correlated(240)
    y = np.repeat(y, 5, axis=0) + np.random.default_rng(3).normal(size=(1200, 15)).astype(np.float32)
    order = np.random.default_rng(4).permutation(1200)
    owners = np.repeat(np.arange(240), 5)
    grid = {"dimensions": [4], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1], "normalise": ()}
    expected = jointspace.fit(x, y, owners, **grid)
    for images in (x[owners], {"a": x[owners][:, :9], "b": sparse.csr_array(x[owners][:, 9:])}):
        space = jointspace.fit(images, y, **grid)
        assert space.held_out == expected.held_out and space.held_out["images"] == 24
    shuffled = jointspace.fit(x[owners][order], y[order], **grid)
    assert shuffled.held_out["images"] == 24
    twice = jointspace.fit(np.concatenate([x, x]), y, np.arange(1200) % 480, **grid)
    assert twice.held_out["images"] == 24


def test_the_same_pairs_in_any_form_give_the_same_joint_space() -> None:
    x, y = correlated(300)
    grid = {"dimensions": [4], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1], "normalise": ()}
    whole = jointspace.fit(x, y, **grid)
    expected = whole.embed_images(x) @ whole.embed_texts(y).T
    owners = np.random.default_rng(1).permutation(np.repeat(np.arange(300), 2))
    images = {"a": x[:, :7], "b": x[:, 7:]}
    texts = {"dense": y[:, :5], "sparse": sparse.csr_array(y[:, 5:])}
    column = np.empty(300, object)  # data frames have such columns
    column[:] = list(x)
    for pairs, asked in (
        ((column, pa.array(y.tolist())), (x, y)),
        ((x, sparse.csr_matrix(y)), (x, y)), ((x, sparse.coo_array(y)), (x, sparse.csr_array(y))),
        ((x, y[owners], owners), (x, y)), ((images, texts), (images, texts)),
    ):  # fmt: skip
        space = jointspace.fit(*pairs, **grid)
        scores = space.embed_images(asked[0]) @ space.embed_texts(asked[1]).T
        np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-3)
    with pytest.raises(InputError, match="come from the encoders image, but must come from a, b"):
        space.embed_images(x)


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        (
            np.array([[1.0, 2.0]] * 3 + [[1.0, np.nan], [np.inf, 0.0]]),
            r"^Row 3 of the image vectors contains NaN or infinity \(number of such rows: 2\)",
        ),
        (np.full((5, 2), 1e300), "^Row 0 of the image vectors contains NaN"),
        (np.ma.masked_greater(np.arange(10).reshape(5, 2), 8), "^Row 4 of the image vectors contains NaN"),
        (sparse.csr_array(np.array([[0.0, 1.0], [0.0, -np.inf]])), "^Row 1 of the image vectors contains NaN"),
        (sparse.csr_array(np.ones((5, 2)) + 1j), "complex128"),
        ([["a", "b"]] * 5, "^The image vectors have the dtype .*Pass real numbers"),
        ([[1.0], [1.0, 2.0]], "^The image vectors are not a table of numbers"),
        (np.ones((5, 2, 1)), r"^The image vectors have the shape \(5, 2, 1\), but must have the shape \(n, d\)"),
    ],
)
def test_input_that_is_not_a_table_of_numbers_is_refused_with_its_row(vectors: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        jointspace.fit(vectors, np.ones((5, 3)))


def test_pairs_that_cannot_be_fitted_are_refused_with_a_message() -> None:
    x, y = correlated(30)
    for arguments in ((x[:5], y[:5]), (x, y[:20], np.arange(21)), (x[:20], y), (x[0], y)):
        with pytest.raises(InputError):
            jointspace.fit(*arguments)
    for row, owner in ((3, -1), (4, 30)):
        with pytest.raises(InputError, match=rf"owners\[{row}\] is {owner}"):
            jointspace.fit(x, y, np.where(np.arange(30) == row, owner, np.arange(30)))
    wrong = [{"dimension": [3]}, {"dimensions": []}, {"image_ridge": ["much"]}]
    wrong += [{"seed": seed} for seed in ("0", 1.5, -1, None)] + [{"weak": weak} for weak in (x, (x,), 3)]
    wrong += [{"normalise": steps} for steps in ("l2", ("l1",), 3, None, [["l2"]])]
    for settings in wrong:
        (name,) = settings
        with pytest.raises(UsageError, match="steps" if name == "normalise" else name):
            jointspace.fit(x, y, **settings)
    with pytest.raises(InputError, match=r"shape \(30, 7\), but must have the shape \(n, 20\)"):
        jointspace.fit(x, y).embed_images(x[:, :7])
