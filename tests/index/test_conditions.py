"""Conditions are compared with SQLite, which treats missing values in the same way, and filtered searches with
loops."""

import random
import sqlite3
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pytest
from isolated_searches import DIM, query_in_every_way, search_every_way
from synthetic_run import build_bundle, features_of, run_command

from pipeline.compute.workers import Worker
from pipeline.errors import UsageError
from pipeline.index.candidates import is_known
from pipeline.index.conditions import Predicate
from pipeline.index.filtering import MAX_BRUTE_FORCE_ROWS, search_among
from pipeline.index.format import METRICS
from pipeline.index.search import Searcher
from pipeline.index.tuning import stages_of
from pipeline.storage.index_shard import IndexShard
from pipeline.storage.stored_index import open_index

ROWS = 300
ORDER = ("<", "<=", ">", ">=", "=", "==", "!=")


def make_table(count: int = ROWS) -> pa.Table:
    """Return a table of `count` rows with columns of every kind. About a tenth of the values of each column is
    missing."""
    rng = random.Random(0)

    def column(value, kind: pa.DataType) -> pa.Array:
        return pa.array([None if rng.random() < 0.1 else value() for _ in range(count)], kind)

    return pa.table(
        {
            "price": column(lambda: round(rng.uniform(0, 40), 1), pa.float64()),
            "stock": column(lambda: rng.randrange(10), pa.int64()),
            "shop": column(lambda: rng.choice(["Ann's", "north", "south"]), pa.string()),
            "sold": column(lambda: rng.random() < 0.5, pa.bool_()),
            "taken on": column(lambda: date(2024, 1, 1) + timedelta(rng.randrange(60)), pa.date32()),
        }
    )


def make_condition(rng: random.Random, depth: int = 0) -> str:
    """Return a random condition in the syntax that SQL and jointspace have in common."""
    if depth < 3 and rng.random() < 0.6:
        parts = [make_condition(rng, depth + 1) for _ in range(rng.randrange(2, 4))]
        joined = f" {rng.choice(['and', 'or'])} ".join(parts)
        return f"{rng.choice(['', 'not '])}({joined})"
    day = date(2024, 1, 1) + timedelta(rng.randrange(60))
    inverse = rng.choice(["", "not "])
    sign = rng.choice(ORDER)
    return rng.choice(
        [
            f"price {sign} {rng.randrange(40)}.5",
            f"{rng.randrange(10)} {sign} stock",
            f"stock {sign} price",
            f"shop {sign} 'Ann''s'",
            f"`taken on` {sign} '{day}'",
            f"sold {rng.choice(['=', '!='])} {rng.choice(['true', 'FALSE'])}",
            f"{inverse}sold",
            f"shop {inverse}in ('north', \"Ann's\")",
            f"stock {inverse}in (1, {rng.randrange(10)}, 7)",
            f"{rng.choice(['price', 'shop', 'sold', '`taken on`'])} is {inverse}null",
        ]
    ).replace('"Ann\'s"', "'Ann''s'")


def test_conditions_have_the_meaning_that_they_have_in_sql() -> None:
    table = make_table()
    rng = random.Random(1)
    some = 0
    database = sqlite3.connect(":memory:")
    database.execute("create table t (row, price real, stock integer, shop text, sold integer, `taken on` text)")
    rows = [
        (n, *(str(v) if isinstance(v, date) else v for v in row.values())) for n, row in enumerate(table.to_pylist())
    ]
    database.executemany("insert into t values (?, ?, ?, ?, ?, ?)", rows)
    for _ in range(200):
        text = make_condition(rng)
        right = [row for (row,) in database.execute(f"select row from t where {text} order by row")]
        ours = text.replace("`taken on`", 'column("taken on")')
        assert np.flatnonzero(Predicate(ours).rows(table)).tolist() == right, ours
        some += 0 < len(right) < ROWS
    assert some > 100


def test_syntax_that_sql_does_not_have() -> None:
    table = pa.table(
        {"a": [1, 2, 3], "größe": [0.5, 2.0, None], "when": pa.array([0, 10**15, None], pa.timestamp("us"))}
    )
    table = table.append_column("path", pa.array(["obj/1.jpg", "Obj/2.jpg", None]))
    table = table.append_column("long", pa.array([2**62 + 1, None, -(2**63)]))
    for text, rows in (
        ("1 < a <= 3", [1, 2]), ("a < größe", []), ("größe = a", [1]), ("when >= '2001-09-09T01:46:40Z'", [1]),
        ("when >= '2001-09-09T02:46:41+01:00'", []), ("long > 0.5", [0]), ("a < 1e400", [0, 1, 2]),
        ("a!=-1 and a=2", [1]), ("a < 99999999999999999999", [0, 1, 2]),
        ("'OBJ/2' in path", [1]), ("'b' in path and '2' not in path", [0]),
        (f"long = {2**62 + 1}", [0]), (f"long = {2**62}", []), (f"long = {-2**63}", [2]), (f"long > {2**63}", []),
    ):  # fmt: skip
        assert np.flatnonzero(Predicate(text).rows(table)).tolist() == rows, text


TOO_LARGE_FOR_INT64 = 2**63
FOREIGN = {
    "uint64": (pa.array([2**64 - 1, TOO_LARGE_FOR_INT64, 3, None], pa.uint64()), {
        "a > -1": [0, 1, 2], "a < 4": [2], f"a > {TOO_LARGE_FOR_INT64 - 1}": [0, 1], "a in (3, 4)": [2], "a < 3.5": [2],
        "a = a": [0, 1, 2], "a != b": [0, 1, 2], "b = 2": [1],
    }),
    "nanoseconds": (pa.array([1, 10**18, -1000, None], pa.timestamp("ns")), {
        "a < '1970-01-01'": [2], "a >= '2001-09-09T01:46:40Z'": [1], "a is None": [3],
    }),
    "nanoseconds of a zone": (pa.array([1, 10**18, -1, None], pa.timestamp("ns", "Europe/Paris")), {
        "a >= '2001-09-09T01:46:40Z'": [1], "a > '2001-09-09T01:46:41'": [],
    }),
    "decimals": (pa.array([Decimal("19.90"), Decimal("-3"), Decimal("2"), None], pa.decimal128(9, 2)), {
        "a = 19.9": [0], "a < b": [1, 2], "a in (2, -3)": [1, 2],
    }),
    "categories": (pa.array(["Ann", "bob", "Ann", None]).dictionary_encode(), {
        "a = 'Ann'": [0, 2], "'B' in a": [1], "a in ('x', 'bob')": [1], "a is not None": [0, 1, 2],
    }),
    "categories of numbers": (pa.array([4, 5, 4, None]).dictionary_encode(), {"a > 4": [1], "a = b": [2]}),
    "views": (pa.array(["Ann", "bob", "Ann", None], pa.string_view()), {"a = 'Ann'": [0, 2], "'B' in a": [1]}),
    "large texts": (pa.array(["Ann", "bob", "Ann", None], pa.large_string()), {"a != 'Ann'": [1], "'N' in a": [0, 2]}),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_columns_of_foreign_types_are_compared_by_their_values(name: str) -> None:
    values, conditions = FOREIGN[name]
    table = pa.table({"a": values, "b": [1, 2, 4, 7]})
    for text, rows in conditions.items():
        assert np.flatnonzero(Predicate(text).rows(table)).tolist() == rows, text


@pytest.mark.parametrize(
    ("values", "text", "message"),
    [
        (pa.array([2**62], pa.timestamp("s")), "a > '2024-01-31'", "does not fit the values of its columns"),
        (pa.array([-(2**62)], pa.timestamp("ms", "Foo/Bar")), "a = '2024-01-31'", "does not fit the values"),
        (pa.array([2**62], pa.duration("s")), "a > 3", r"values of the type duration\[s\], .* only .*: a is None"),
        (pa.array([b"\xff"]), "a = 'x'", "values of the type binary"),
        (pa.array([b"\xff"]).dictionary_encode(), "'x' in a", "values of the type binary"),
        (pa.array([[1]]), "a = 1", "values of the type list"),
        (pa.array([Decimal("1.5")]), "a = '1.5'", "contains numbers, not text. Compare it with 1234.5"),
        (pa.array([0], pa.date32()), "a > 3", "contains dates, not numbers. Compare it with '2024-01-31', for example"),
    ],
)
def test_values_that_cannot_be_compared_are_refused_with_a_reason(values: pa.Array, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Predicate(text).rows(pa.table({"a": values}))


INVALID_CONDITIONS = {
    "what is no condition": ("", "price <", "'open", "(sold := True)", "price < 20; drop table", "stock in ()"),
    "what SQL has": ("price <> 20", "NOT sold", "price = None"),
    "code": ("__import__('os').system('id')", "price.real < 3", "[x for x in (1,)]", "(lambda: 1)() < price",
             "f'{price}' = shop", "column(price) < 3"),
    "another type": ("price < '20'", "sold = 1", 'column("taken on") > 3', "shop = price", "price", "shop = b'a'",
                     "'3' in stock", "3 in shop", "'a' in 'ab'"),
    "without end": ("sold or " * 400 + "sold", "(" * 900 + "sold" + ")" * 900, "-" * 1999 + "1"),
}  # fmt: skip


NESTED_CONDITIONS = {
    "not": lambda depth: "not " * (depth - 1) + "sold",
    "and": lambda depth: "sold and (" * (depth - 1) + "sold" + ")" * (depth - 1),
    "or": lambda depth: "(" * (depth - 1) + "sold" + " or stock = 1)" * (depth - 1),
    "not in parentheses": lambda depth: "not (sold and " * ((depth - 1) // 2) + "not " * ((depth - 1) % 2)
    + "sold" + ")" * ((depth - 1) // 2),
}  # fmt: skip


@pytest.mark.parametrize("kind", NESTED_CONDITIONS)
def test_conditions_may_be_nested_as_deeply_as_the_message_says(kind: str) -> None:
    table = make_table(3)
    for depth in (1, 2, 39, 40):
        assert len(Predicate(NESTED_CONDITIONS[kind](depth)).rows(table)) == 3
    for depth in (41, 42, 50):
        with pytest.raises(UsageError, match="more than 40 nested levels"):
            Predicate(NESTED_CONDITIONS[kind](depth))


def test_the_longest_whole_numbers_are_compared_exactly() -> None:
    ends = [2**63 - 1, 2**63 - 2, -(2**63), -(2**63) + 1]
    table = pa.table({"a": ends})
    for row, value in enumerate(ends):
        assert Predicate(f"a = {value}").rows(table).tolist() == [other == row for other in range(4)]
    assert Predicate(f"a < {2**63}").rows(table).all() and Predicate(f"a > {-(2**63) - 2**12}").rows(table).all()
    largest = pa.table({"a": pa.array([2**64 - 1, 2**64 - 2], pa.uint64())})
    assert Predicate(f"a = {2**64 - 1}").rows(largest).tolist() == [True, False]
    assert Predicate(f"a < {2**64 + 2**12}").rows(largest).all()


def test_a_condition_has_at_most_as_many_characters_as_the_message_says() -> None:
    assert Predicate("sold".ljust(2000)).rows(make_table(3)).shape == (3,)
    with pytest.raises(UsageError, match="has 2001 characters, but at most 2000"):
        Predicate("sold".ljust(2001))


@pytest.mark.parametrize("what", INVALID_CONDITIONS)
def test_invalid_conditions_are_refused(what: str) -> None:
    for text in INVALID_CONDITIONS[what]:
        with pytest.raises(UsageError) as caught:
            Predicate(text).rows(make_table(3))
        assert "\n" not in str(caught.value), text


@pytest.mark.parametrize("factory", ["Flat", "IVF16,SQ8", "HNSW16", "PQ4x4fs", "IDMap,Flat", "PCA6,IVF8,Flat"])
@pytest.mark.parametrize("metric", [faiss.METRIC_INNER_PRODUCT, faiss.METRIC_L2])
def test_only_allowed_vectors_are_found_and_few_allowed_vectors_are_all_compared(factory: str, metric: int) -> None:
    rng = np.random.default_rng(0)
    rows = 2000
    vectors = rng.standard_normal((rows, 8)).astype(np.float32)
    index = faiss.index_factory(8, factory, metric)
    index.train(vectors)
    ids = np.arange(rows)
    if "IDMap" in factory:
        ids = np.flatnonzero(rng.random(2 * rows) < 0.5)[:rows]
        index.add_with_ids(vectors[: len(ids)], ids)
    else:
        index.add(vectors)
    having = index.index if "IDMap" in factory else index
    if inverted := stages_of(index).inverted:
        inverted.make_direct_map()
    # The scores are compared with the scores of the stored vectors, because the index compresses its vectors.
    stored = having.reconstruct_n(0, len(ids)).astype(float)
    for share in (0.9, 0.3, 0.004, 0.0):
        allowed = np.zeros(ids.max() + 1, bool)
        allowed[ids] = rng.random(len(ids)) < share
        query = rng.standard_normal(8)
        found = search_among(index, query[None], 10, allowed)
        scores = stored @ query if metric == faiss.METRIC_INNER_PRODUCT else -np.square(stored - query).sum(axis=1)
        right = np.sort(scores[allowed[ids]])[::-1][:10]
        np.testing.assert_allclose(found.scores[0], right, rtol=1e-4, atol=1e-4)
        assert allowed[found.rows[0]].all() and len(set(found.rows[0].tolist())) == len(right)


@pytest.mark.parametrize("factory", ["IVF64,Flat", "HNSW8"])
def test_permissive_filter_keeps_recall(factory: str) -> None:
    rng = np.random.default_rng(0)
    rows = 2 * MAX_BRUTE_FORCE_ROWS
    vectors = rng.standard_normal((rows, 8)).astype(np.float32)
    index = faiss.index_factory(8, factory, faiss.METRIC_INNER_PRODUCT)
    stages = stages_of(index)
    if stages.graph:
        stages.graph.hnsw.efConstruction = 16
    else:
        stages.inverted.nprobe = 8
    index.train(vectors[:4000])
    index.add(vectors)
    allowed = rng.random(rows) < 0.6
    queries = rng.standard_normal((40, 8)).astype(np.float32)
    assert allowed.sum() > MAX_BRUTE_FORCE_ROWS
    found = search_among(index, queries, 10, allowed).rows
    passing = np.flatnonzero(allowed)
    assert allowed[found].all()
    products = queries @ vectors.T

    def recall(rows: np.ndarray, among: np.ndarray) -> float:
        right = among[np.argsort(-products[:, among], axis=1)[:, :10]]
        return np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows.tolist(), right.tolist(), strict=True)])

    assert recall(found, passing) >= recall(index.search(queries, 10)[1], np.arange(rows)) - 0.05


@pytest.mark.parametrize("share", [0.5, 0.2, 0.06])
@pytest.mark.parametrize("wrapped", ["", "PCA6,", ",RFlat"])
def test_a_search_with_fewer_allowed_vectors_visits_more_lists(
    share: float, wrapped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filtered searches are compared with unfiltered searches that visit more lists: the usual number, divided by the
    share of the allowed vectors. The best allowed vectors among the unfiltered results equal the filtered results."""
    monkeypatch.setattr("pipeline.index.filtering.MAX_BRUTE_FORCE_ROWS", 100)
    rng = np.random.default_rng(3)
    rows = 6000
    vectors = rng.standard_normal((rows, 8)).astype(np.float32)
    factory = f"{wrapped}IVF60,Flat" if wrapped != ",RFlat" else "IVF60,SQ8,RFlat"
    index = faiss.index_factory(8, factory, faiss.METRIC_L2)
    index.train(vectors)
    index.add(vectors)
    stages = stages_of(index)
    stages.inverted.nprobe = 3
    if stages.refine:
        stages.refine.k_factor = 200
    allowed = np.arange(rows) < share * rows
    queries = rng.standard_normal((30, 8)).astype(np.float32)
    found = search_among(index, queries, 10, allowed).rows
    stages.inverted.nprobe = int(np.ceil(3 / share))
    if stages.refine:
        stages.refine.k_factor = 1
    visited = index.search(queries, rows)[1]
    for query in range(30):
        passing = [row for row in visited[query].tolist() if row >= 0 and allowed[row]]
        assert found[query].tolist() == passing[:10]


def test_a_graph_search_with_fewer_allowed_vectors_keeps_more_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.index.filtering.MAX_BRUTE_FORCE_ROWS", 100)
    rng = np.random.default_rng(4)
    rows = 5000
    vectors = rng.standard_normal((rows, 12)).astype(np.float32)
    index = faiss.index_factory(12, "HNSW8", faiss.METRIC_L2)
    index.hnsw.efConstruction = 20
    index.add(vectors)
    index.hnsw.efSearch = 40
    allowed = np.arange(rows) < 1000
    queries = rng.standard_normal((100, 12)).astype(np.float32)
    right = faiss.knn(queries, vectors[allowed], 10)[1]
    asked = []
    kept = faiss.SearchParametersHNSW

    def parameters(**values: object) -> faiss.SearchParametersHNSW:
        asked.append(values["efSearch"])
        return kept(**values)

    monkeypatch.setattr(faiss, "SearchParametersHNSW", parameters)
    found = search_among(index, queries, 10, allowed).rows
    assert asked == [200] and (found < 1000).all()
    assert np.mean([len(set(a) & set(b)) for a, b in zip(found.tolist(), right.tolist(), strict=True)]) > 9


INVERTED = {"index": {"exact_limit": 10, "recall_floor": 1.0, "shortlist": {"nearest": 30, "shortlist": 3}}}


@pytest.mark.parametrize("name", ["bundle", "regions", "shortlist"])
def test_index_is_searched_among_the_allowed_images(run: Path, name: str) -> None:
    shortlisted = name == "shortlist"
    folder = build_bundle(run, INVERTED, model="dvsa", output=name) if shortlisted else run / name
    bundle = open_index(folder)
    searcher = Searcher(bundle)
    rng = random.Random(2)
    table = bundle.table("images")
    photograph = features_of("dog") if name == "bundle" else (run / "data" / "dog-0.png").read_bytes()
    everything = {
        "images": [hit.row["image_id"] for hit in searcher.similar(photograph, 24)],
        "sentences": [hit.row["sentence_id"] for hit in searcher.sentences(photograph, 48)],
    }
    for _ in range(25):
        least = rng.randrange(50, 90)
        split = rng.choice(["train", "test"])
        sign = rng.choice(ORDER)
        text = f"width {sign} {least} {rng.choice(['and', 'or'])} split = '{split}'"
        passing = {
            row["image_id"] for row, good in zip(table.to_pylist(), Predicate(text).rows(table), strict=True) if good
        }
        found = [hit.row["image_id"] for hit in searcher.similar(photograph, 24, where=text)]
        hits = searcher.sentences(photograph, 48, where=text)
        if shortlisted:  # The search may miss images that are not on its shortlist.
            assert set(found) <= passing and len(found) >= min(3, len(passing))
        else:
            assert found == [one for one in everything["images"] if one in passing]
            assert {hit.row["image_id"] for hit in hits} == passing
        assert {hit.row["image_id"] for hit in hits} <= passing
    assert searcher.similar(photograph, 5, where="width > 1000") == []


def test_the_command_takes_a_condition(run: Path) -> None:
    folder = run / "bundle"
    lines = run_command("search", "--index", folder, "a dog", "--where", "split = 'test'", "--top-k", 1).splitlines()
    assert lines[0].split()[2] == "dog-8.png"
    with pytest.raises(UsageError, match="There is no column .widht.. Did you mean width"):
        run_command("search", "--index", folder, "a dog", "--where", "widht < 3")


FACTORIES = (
    "Flat", "SQ4", "SQ6", "SQ8", "SQfp16", "SQbf16", "PQ4x4", "PQ4x4fs", "RaBitQ", "RaBitQ4", "RaBitQfs", "HNSW8",
    "HNSW8,SQ8", "IVF4,Flat", "IVF4,SQ8", "IVF4,PQ4x4", "IVF4,PQ4x4fs", "IVF4,PQ4x4fsr", "IVF4,RaBitQ", "IVF4,RaBitQfs",
    "IVF4_HNSW8,Flat", "IVF4_HNSW8,PQ4x4fs", "IVF4(SQ8),Flat", "IVF4,PQ4x4fsr,Refine(SQ8)", "PQ4x4fs,Refine(SQfp16)",
    "IVF4,RaBitQ,Refine(RaBitQ4)", "PQ4x4fs,RFlat", "OPQ4_8,IVF4,PQ4x4", "OPQ4_8,IVF4,PQ4x4fs", "PCA6,IVF4,Flat",
    "RR8,IVF4,PQ4x4fs", "L2norm,IVF4,PQ4x4fs", "OPQ4,PQ4x4fs,RFlat", "IDMap,IVF4,PQ4x4fs", "IDMap2,IVF4,PQ4x4fs",
)  # fmt: skip
"""Factory strings of indexes of every type that `auto` or index.candidates can make."""


def test_every_type_of_index_answers_with_and_without_a_condition() -> None:
    asked = [(factory, metric) for factory in FACTORIES for metric in METRICS]
    assert all(is_known(factory, DIM) for factory in FACTORIES)
    with Worker(search_every_way) as search:
        assert {one: search(one) for one in asked} == {one: [] for one in asked}


@pytest.mark.parametrize("factory", ["SQ8,Refine(PQ4x4fs)", "Pad16,Flat", "ITQ8,IVF4,Flat", "SQtq4"])
def test_types_that_faiss_cannot_search_safely_are_not_built(factory: str) -> None:
    assert not is_known(factory, DIM)


def test_every_command_works_with_an_index_of_fast_scan_lists(run: Path, tmp_path: Path) -> None:
    lists = {"index": {"exact_limit": 10, "candidates": ["IVF1,PQ8x4fs"], "recall_floor": 0.01}}
    folder = build_bundle(run, lists, output="fast-scan")
    card = IndexShard(folder).card
    assert card.images.factory == "IVF1,PQ8x4fs"
    with Worker(query_in_every_way) as ask:
        answers = ask((folder, features_of("dog"), tmp_path))
    assert isinstance(answers, dict), answers
    tested = [image for image in range(24) if image % 3 == 2]
    assert answers["words where"] == tested
    for name in ("words", "similar", "captions", "arithmetic"):
        assert len(answers[name]) == 3 and set(answers[f"{name} where"]) <= set(tested), (name, answers)
    assert answers["export"] == answers["add"] == "NoneType: None"
    assert answers["remove"].startswith("UsageError: ") and "stores its vectors in a compressed" in answers["remove"]
