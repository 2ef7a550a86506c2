"""Tests which show that the recipe of an index gives the scores and the likely matches of a search, in an interpreter
with NumPy alone.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from scipy import sparse
from small_settings import TRANSFER
from synthetic_run import run_command
from synthetic_tasks import make_fit_task, make_task_of
from test_models import FITTED, TRANSFERRED, Case, correct, make_case

import jointspace
from pipeline.config import loading
from pipeline.config.models import KernelsSettings
from pipeline.config.registry import model_spec
from pipeline.encoders.centred import CENTRED
from pipeline.errors import UsageError
from pipeline.index.build import choose_and_build
from pipeline.index.chooser import Requirements
from pipeline.index.exact import Vectors
from pipeline.models.neural.task import train
from pipeline.run.reading.recipe import RecipeSide
from pipeline.run.reading.recipe_program import Recipe
from pipeline.storage.card import MeasuredIndexes
from pipeline.storage.index_folder import COLUMNS
from pipeline.storage.index_shard import IndexWriter
from pipeline.storage.json_files import fingerprint
from pipeline.storage.parameters import MODEL, Parameters, write_parameters
from stages.index.export import command

PROGRAM = """
import sys
sys.path[:] = [path for path in sys.path if "site-packages" not in path] + [sys.argv[1]]
import numpy as np
for folder in sys.argv[2:]:
    sys.path.insert(0, folder)
    import recipe
    given = dict(np.load(folder + "/given.npz"))
    own = recipe.Recipe(folder)
    found = {}
    for side in ("images", "texts"):
        features = {name.partition("/")[2]: array for name, array in given.items() if name.startswith(side + "/")}
        if features:
            queries = own.embed(side, features)
            found[side] = own.score(queries, given["gallery"])
            found["likely " + side] = found[side] >= own.threshold(queries)[:, None]
    np.savez(folder + "/found.npz", **found)
    del sys.modules["recipe"]
    sys.path.pop(0)
others = ("torch", "faiss", "h5py", "scipy", "sklearn", "pyarrow", "safetensors", "jointspace", "pipeline")
print(sorted(set(others) & sys.modules.keys()))
"""


def run_recipes(path: Path, *recipes: tuple[Path, dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Run exported recipes with the standard library and NumPy alone, and return the results of each recipe.

    Each of `recipes` has the folder of the recipe, and a mapping with the vectors of queries by `SIDE/ENCODER` and the
    vectors of the images, `gallery`. SIDE is `images` or `texts`. The results of a recipe are a mapping. It has the
    scores (queries, images) under the key SIDE. Under the key `likely SIDE`, it says whether each image is a likely
    match for each query.
    """
    alone = path / "numpy-alone"
    alone.mkdir(exist_ok=True)
    for folder in (Path(np.__file__).parent, Path(np.__file__).parents[1] / "numpy.libs"):
        if folder.is_dir() and not (alone / folder.name).exists():
            (alone / folder.name).symlink_to(folder)
    for folder, given in recipes:
        np.savez(folder / "given.npz", **given)
    command = [sys.executable, "-S", "-I", "-c", PROGRAM, alone, *(folder for folder, _ in recipes)]
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=path)
    assert result.returncode == 0 and result.stdout == "[]\n", result.stderr + result.stdout
    return [dict(np.load(folder / "found.npz")) for folder, _ in recipes]


def write_index_of(folder: Path, registered: str, case: Case) -> jointspace.Index:
    """Write an index of the images of a case, as `build-index` does, to `folder`, and return the opened index.

    `registered` is the name of the registered model. Image i has the path `i`. The index has no captions and no
    encoders. The model is also written to a folder next to `folder`.
    """
    vectors = case.images()
    writer = IndexWriter(folder)
    requirements = Requirements.from_settings(loading.load().index)
    built = choose_and_build(Vectors(vectors), vectors[:5], case.model.metric, requirements)
    writer.add("images.faiss", built.write)
    n = len(vectors)
    columns = {
        "image_id": np.arange(n), "path": list(map(str, range(n))), "split": ["test"] * n, "sha256": ["0" * 64] * n,
        **dict.fromkeys(("member", "offset", "size"), [None] * n),
    }  # fmt: skip
    writer.add_table("images.parquet", pa.table(columns, schema=COLUMNS["images"]))
    writer.add_table("sentences.parquet", COLUMNS["sentences"].empty_table())
    model = folder.with_name(f"{folder.name}-model")
    write_parameters(model / "model.safetensors", MODEL, case.model.tensors(), settings=case.model.settings())
    writer.add_parameters(model)
    card = built.card.model_copy(update={"measured_with": "images"})
    writer.commit(
        MeasuredIndexes(kind="global").model_copy(update={"images": card}), model=registered, registered=registered,
        metric=case.model.metric, dim=vectors.shape[1], splits=["test"], name="case", data_root=str(folder),
        encoders={}, text_encoders={}, inputs={"model": "0"}, fingerprint=fingerprint("case", 1, None, {}),
    )  # fmt: skip
    return jointspace.load(folder)


def searched(index: jointspace.Index, queries: np.ndarray) -> np.ndarray:
    """Search an index with each row of `queries` (q, dim), and return the scores (q, n) of all n images.

    Column i has the scores of the image with the path `i`.
    """
    scores = np.empty((len(queries), index.stored.card.images.count), np.float32)
    for row, query in enumerate(queries):
        hits = index.search(vector=query, k=scores.shape[1])
        scores[row, [int(hit.row["path"]) for hit in hits]] = [hit.score for hit in hits]
    return scores


def assert_same_scores(found: np.ndarray, expected: np.ndarray) -> None:
    """Check that scores are equal, with a tolerance of 1e-6, or of 1e-6 times the greatest magnitude of an expected
    score if the magnitude is greater than 1.
    """
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * max(1, np.abs(expected).max()))


KERNELS = [f"kcca, {kernel}" for kernel in ("linear", "laplacian", "cosine", "polynomial", "product", "distance")]
REFUSED = ["asif", "projector"]
OTHERS = ["zero-shot", "ncca-refined", "projector, one layer"]
CASES = [*FITTED, *TRANSFERRED, "ncca, sae, tanh", "ncca, sae, paper", *KERNELS, *OTHERS]


def case_of(name: str) -> Case:
    """Return the model `name` and data that it has not seen.

    `name` is a name of tests/test_models.py, `projector, one layer`, `ncca, sae, RULE`, or `kcca, SETTING`, where
    SETTING is a kernel, or a score (`product` or `distance`) with the kernel `rbf`.
    """
    registered, _, setting = name.partition(", ")
    if setting == "one layer":
        task = make_task_of(registered, layers=1)
        model = train(model_spec(registered).load(), task, None, lambda training: None).model
        return Case(model, task.dev.features, {"vectors": task.dev.sentences}, task.dev.owners)
    if name not in KERNELS and not name.startswith("ncca, sae, "):
        return make_case(name)
    task, unseen = make_fit_task(registered, "target" if name in KERNELS else "sae")
    if name not in KERNELS:
        task = replace(task, transfer=TRANSFER.model_copy(update={"rule": (setting.removeprefix("sae, "),)}))
    else:
        kernel = setting if setting not in ("product", "distance") else "rbf"
        score = setting if setting in ("product", "distance") else "cosine"
        settings = KernelsSettings(image_kernel=kernel, text_kernel=kernel, score=score)
        task = replace(task, settings=settings)
    model = model_spec(registered).load().fit(task).model
    return Case(model, unseen.features, {"vectors": unseen.sentences}, unseen.owners)


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_recipe_of_each_linear_model_gives_the_scores_of_a_search(name: str, tmp_path: Path) -> None:
    plain = case_of(name)
    recipes = []
    expected = []
    for number, case in enumerate([plain, correct(plain)] if plain.model.metric == "inner_product" else [plain]):
        index = write_index_of(tmp_path / f"index-{number}", name.partition(",")[0], case)
        run_command("export", tmp_path / f"index-{number}", "--recipe", tmp_path / f"recipe-{number}")
        features = {encoder: case.features[encoder][:8] for encoder in case.model.encoders}
        (words,) = case.sentences["vectors"].values()
        words = (words.toarray() if sparse.issparse(words) else words)[:8]
        text_vectors = dict.fromkeys(case.model.text_encoders, words)
        given = {f"images/{key}": value for key, value in features.items()}
        given |= {f"texts/{key}": value for key, value in text_vectors.items()}
        recipes.append((tmp_path / f"recipe-{number}", {**given, "gallery": case.images()}))
        by_text = [index.search(text_vector=vector, k=len(case.images())) for vector in words]
        rows = [[int(hit.row["path"]) for hit in hits] for hits in by_text]
        texts = np.array([[hit.score for hit in hits] for hits in by_text])
        expected.append((searched(index, index.embed(image_vectors=features)), texts, np.array(rows)))
    for found, (images, texts, rows) in zip(run_recipes(tmp_path, *recipes), expected, strict=True):
        assert_same_scores(found["images"], images)
        assert_same_scores(np.take_along_axis(found["texts"], rows, axis=1), texts)
        assert not found["likely texts"].any(), "an index without a calibration has no likely matches"


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_need_more_than_a_recipe_has_are_refused(name: str, tmp_path: Path) -> None:
    plain = case_of(name)
    for number, case in enumerate([plain, correct(plain)]):
        write_index_of(tmp_path / f"index-{number}", name, case)
        with pytest.raises(UsageError, match=f"A recipe cannot compute the vectors of the model {name}"):
            run_command("export", tmp_path / f"index-{number}", "--recipe", tmp_path / "recipe")
        assert not (tmp_path / "recipe").exists()


@pytest.mark.parametrize("side", ["images", "texts"])
def test_recipe_that_differs_from_its_model_is_refused(
    side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model returns the columns of one side in reverse order, so the recipe would compute other vectors than the
    model.
    """
    case = case_of("ncca")
    write_index_of(tmp_path / "index", "ncca", case)
    name = {"images": "embed_images", "texts": "embed_sentences"}[side]
    embed = getattr(type(case.model), name)
    monkeypatch.setattr(type(case.model), name, lambda model, vectors: embed(model, vectors)[:, ::-1])
    with pytest.raises(UsageError, match="A recipe cannot compute the vectors of the model ncca"):
        run_command("export", tmp_path / "index", "--recipe", tmp_path / "recipe")


def test_recipe_of_several_encoders_ranks_photos_with_several_captions(tmp_path: Path) -> None:
    """The space has two image encoders and two text encoders, one of which has sparse vectors. One index has all 60
    photos, and a second index has one photo.
    """
    rng = np.random.default_rng(0)
    meaning = rng.random((60, 6))
    owners = np.repeat(np.arange(60), 2)
    images = {name: meaning @ rng.random((6, dim)) + rng.random((60, dim)) for name, dim in (("one", 12), ("two", 9))}
    words = np.maximum(meaning[owners] @ rng.standard_normal((6, 30)), 0) * (rng.random((120, 30)) < 0.5)
    texts = {"words": sparse.csr_array(words), "sentence": meaning[owners] @ rng.standard_normal((6, 10))}
    space = jointspace.fit(images, texts, owners, normalise=("sqrt", "l2"), dimensions=8)
    for name, rows in (("all", slice(None)), ("one", slice(0, 1))):
        part = {encoder: vectors[rows] for encoder, vectors in images.items()}
        index = space.index(tmp_path / name, part, names=list(map(str, range(len(part["one"])))))
        run_command("export", tmp_path / name, "--recipe", tmp_path / f"{name}-recipe")
        gallery = index.embed(image_vectors=part)
        given = {"gallery": gallery, "texts/words": words[:7], "texts/sentence": texts["sentence"][:7]}
        given |= {f"images/{encoder}": vectors[:7] for encoder, vectors in images.items()}
        (found,) = run_recipes(tmp_path, (tmp_path / f"{name}-recipe", given))
        queries = index.embed(text_vectors={"words": texts["words"][:7], "sentence": texts["sentence"][:7]})
        assert_same_scores(found["texts"], searched(index, queries))
        queries = index.embed(image_vectors={encoder: vectors[:7] for encoder, vectors in images.items()})
        assert_same_scores(found["images"], searched(index, queries))


@pytest.mark.parametrize("name", ["bundle", "several"])
def test_recipe_marks_the_likely_matches_of_a_search(calibrated: Path, name: str, tmp_path: Path) -> None:
    arguments = ("--recipe", tmp_path / "recipe", "--to", "npy", "--output", tmp_path / "vectors")
    run_command("export", calibrated / name, *arguments)
    rows = [json.loads(line) for line in (tmp_path / "vectors/images.jsonl").read_text().splitlines()]
    index = jointspace.load(calibrated / name)
    encoder = index._searcher._forms.encoders["tfidf"]
    words = encoder.encode(["a dog", "a cat", "a bird and a boat"]).toarray()
    (found,) = run_recipes(
        tmp_path,
        (tmp_path / "recipe", {"gallery": np.load(tmp_path / "vectors/images.npy"), "texts/tfidf": words}),
    )
    for query, scores, likely in zip(words, found["texts"], found["likely texts"], strict=True):
        hits = index.search(text_vector=query, k=len(rows))
        assert_same_scores(np.sort(scores)[::-1], np.array([hit.score for hit in hits]))
        expected = {hit.row["image_id"] for hit in hits[: hits.judgement.likely]}
        assert {row["image_id"] for row, is_likely in zip(rows, likely, strict=True) if is_likely} == expected
    assert found["likely texts"][0].sum() == 3


def test_recipe_centres_the_vectors_of_a_text_encoder(tmp_path: Path) -> None:
    """The recipe has a mean and a matrix of the text encoder, and applies both to the vectors of queries, which are not
    centred.
    """
    rng = np.random.default_rng(1)
    case = make_case("zero-shot")
    index = write_index_of(tmp_path / "index", "zero-shot", case)
    mean = rng.standard_normal(6).astype(np.float32)
    matrix = rng.standard_normal((6, 6)).astype(np.float32)
    side = RecipeSide(["tfidf"])
    side.add_centring({"tfidf": Parameters({f"{CENTRED}/mean": mean, f"{CENTRED}/matrix": matrix}, {}, "", {})})
    run_command("export", tmp_path / "index", "--recipe", tmp_path / "recipe")
    assert 'recipe.embed("texts", {"tfidf": VECTORS}) ' in (tmp_path / "recipe/README.md").read_text()
    settings = json.loads((tmp_path / "recipe/recipe.json").read_text())
    settings["texts"] = side.settings
    (tmp_path / "recipe/recipe.json").write_text(json.dumps(settings))
    np.savez(tmp_path / "recipe/recipe.npz", **{f"texts {name}": array for name, array in side.arrays.items()})
    vectors = rng.standard_normal((5, 6)).astype(np.float32)
    (found,) = run_recipes(tmp_path, (tmp_path / "recipe", {"gallery": case.images(), "texts/tfidf": vectors}))
    shifted = (vectors - mean) @ matrix
    assert_same_scores(found["texts"], searched(index, shifted / np.linalg.norm(shifted, axis=1, keepdims=True)))


@pytest.mark.parametrize("features", [{"tf-idf": np.ones((1, 6))}, {"tfidf": np.array([[1, np.nan, 1, 1, 1, 1]])}])
def test_recipe_refuses_other_encoders_and_vectors_that_are_not_finite(
    calibrated: Path, features: dict[str, np.ndarray], tmp_path: Path
) -> None:
    run_command("export", calibrated / "bundle", "--recipe", tmp_path / "recipe")
    passed = rf"Pass finite vectors of the encoder 'tfidf' for texts. You passed .{[*features][0]!r}"
    with pytest.raises(ValueError, match=passed):
        Recipe(tmp_path / "recipe").embed("texts", features)


@pytest.mark.parametrize(
    ("index", "arguments", "message"),
    [
        ("regions", ["--recipe", "out"], "The model dvsa .* is not a linear model"),
        ("bundle", ["--to", "npy"], "Pass --to and --output for the vectors, or --recipe"),
        ("bundle", [], "Pass --to and --output for the vectors, or --recipe"),
        ("bundle", ["--to", "npy", "--output", "out", "--dims", "4"], "The options --type and --dims need --to faiss"),
    ],
)
def test_wrong_exports_are_refused(run: Path, tmp_path: Path, index: str, arguments: list[str], message: str) -> None:
    paths = [str(tmp_path / word) if word == "out" else word for word in arguments]
    result = CliRunner().invoke(command, [str(run / index), *paths])
    assert result.exit_code and re.search(message, str(result.exception)) and not (tmp_path / "out").exists()


def test_program_of_the_documentation_searches_in_a_vector_database(
    calibrated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    page = (Path(__file__).parents[1] / "docs/vectors.md").read_text()
    (program,) = [code for code in re.findall(r"```python\n(.+?)```", page, re.S) if "qdrant_client" in code]
    program = compile(program.replace('"minilm"', '"tfidf"'), "docs/vectors.md", "exec")
    pytest.importorskip("qdrant_client")
    arguments = ("--recipe", tmp_path / "recipe", "--to", "npy", "--output", tmp_path / "vectors")
    run_command("export", calibrated / "bundle", *arguments)
    index = jointspace.load(calibrated / "bundle")
    vector = index._searcher._forms.encoders["tfidf"].encode(["a dog"]).toarray()[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    exec(program, {"vector": vector})  # noqa: S102
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith("dog-") for line in lines[:3]] == [True] * 3
    assert [line.endswith("likely") for line in lines] == [True] * 3 + [False] * 7
