"""Forged bundles with valid hashes: what they cannot do is refused in one sentence; nothing ends in a traceback."""

import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from bundle_forgeries import JSON, Forgery, all_forgeries, told

sys.path.append(str(Path(__file__).parents[1]))

from made_up import build_bundle, features_of, make_run
from made_up_sets import add_fragments

from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.index.search import Searcher
from pipeline.storage import atomic
from pipeline.storage.bundle import Bundle

SECONDS, SAMPLE = 20, 120
"""After which a forgery counts as a hang, and how many of those of JSON files are tried of each bundle."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("forged") / "run")
    build_bundle(run)
    add_fragments(run, "dvsa", {"sum": "words", "global_weight": 0})
    lists = {"exact_limit": 10, "recall_floor": 1.0, "shortlist": {"nearest": 30, "shortlist": 100}}
    build_bundle(run, {"index": lists}, model="dvsa", output="sets")
    return run


def use(folder: Path) -> None:
    """All that a bundle can be asked."""
    bundle = Bundle(folder)
    bundle.check()
    searcher = Searcher(bundle)
    searcher.images("a dog", 3)
    searcher.open()
    searcher.batch(["a dog", "cat", "zebra"], 2)
    for hit in searcher.images("a dog", 24):
        assert isinstance(hit.row["path"], str | None)
    for name in bundle.card["encoders"]:
        bundle.encoder(name)
    if bundle.card["kind"] == "fragments":
        searcher.regions("a dog", 3)
        bundle.outline("images")
        bundle.outline("sentences")
    else:
        searcher.sentences(features_of("horse"), 48)
        searcher.analogy(features_of("horse"), ["horse"], ["dog"], 3, 5)


class Hang(BaseException):
    pass


@pytest.fixture
def clock() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def attempt(bundle: Path, folder: Path, forge: Forgery) -> str:
    """What becomes of a forgery of `bundle` in the empty `folder`."""
    shutil.copytree(bundle, folder)
    try:
        forge(folder)
    except (ValueError, TypeError, OverflowError):  # of numpy or JSON, which cannot say so
        return "not possible"
    atomic._checked.clear()
    signal.alarm(SECONDS)
    try:
        use(folder)
    except IntegrityError as error:
        sound = "\n" not in str(error) and str(folder) in str(error)
        return "refused" if sound else f"refused without its name: {error}"
    except (InputError, UsageError):
        return "refused"
    except Hang:
        return "hangs"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        shutil.rmtree(folder)
    return "read"


def check(bundle: Path, folder: Path, forgeries: dict[str, Forgery]) -> Counter[str]:
    outcomes = {name: attempt(bundle, folder / "forged", forge) for name, forge in forgeries.items()}
    bad = {name: said for name, said in outcomes.items() if said not in ("refused", "read", "not possible")}
    assert not bad, bad
    return Counter(outcomes.values())


@pytest.mark.parametrize("kind", ["bundle", "sets"])
def test_forgeries_of_every_part_are_refused(kind: str, run: Path, tmp_path: Path, clock: None) -> None:
    """Of JSON files some at random: what is not needed may say anything."""
    forgeries = all_forgeries(run / kind)
    told = [name for name in forgeries if name.startswith(JSON)]
    chosen = set(forgeries) - set(told) | set(Random(kind).sample(told, SAMPLE))
    counts = check(run / kind, tmp_path, {name: forgeries[name] for name in sorted(chosen)})
    assert counts["refused"] > 2 * counts["read"]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["bundle", "sets"])
def test_every_forgery(kind: str, run: Path, tmp_path: Path, clock: None) -> None:
    counts = check(run / kind, tmp_path, all_forgeries(run / kind))
    print(dict(counts))
    assert counts["refused"] > 2 * counts["read"]


TEXTS, SETTINGS = "text_encoders/tfidf/model.json", ("details", "settings")
REFUSED = {
    "a number of vectors": ("card.json", ("images", "count"), -1, "card.json is not a bundle's card"),
    "files that are a list": ("card.json", ("files",), ["a"], "card.json is not a bundle's card .files"),
    "an unknown model": ("card.json", ("registered",), "x", "its model x is not a registered one"),
    "another metric": ("card.json", ("metric",), "euclidean", "its indices are of other dimensions or another metric"),
    "huge dimensions": ("card.json", ("dim",), 2**70, "card.json is not a bundle's card"),
    "a vocabulary without weights": (TEXTS, (*SETTINGS, "idf"), [], "its terms are not each once, with one idf each"),
    "terms of a billion words": (TEXTS, (*SETTINGS, "settings", "max_ngram"), 10**9, "its max_ngram is not in 1 to 3"),
    "a model's dimensions": ("model.json", ("details", "settings", "dims"), [10**12], "does not fit its vocabulary"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_said(case: str, run: Path, tmp_path: Path, clock: None) -> None:
    name, path, new, said = REFUSED[case]
    folder = shutil.copytree(run / "bundle", tmp_path / "forged")
    told(folder, name, path, new)
    with pytest.raises(IntegrityError, match=said):
        use(folder)


def test_a_sound_bundle_is_read(run: Path, tmp_path: Path, clock: None) -> None:
    for kind in ("bundle", "sets"):
        assert attempt(run / kind, tmp_path / "copy", lambda folder: None) == "read"
