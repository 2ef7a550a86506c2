"""Forged bundles with valid hashes: what they cannot do is refused in one sentence; nothing ends in a traceback.

What a stranger may send is given to every command that opens a bundle: none may hang, touch a file outside of the
bundle, ask a server, or take a gigabyte.
"""

import hashlib
import resource
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from bundle_forgeries import (
    JSON,
    Forgery,
    all_forgeries,
    cell,
    lists_elsewhere,
    long_texts,
    told,
    unknown_type,
    wide_bytes,
)
from made_up import build_bundle, features_of, make_run, run_command
from made_up_colours import draw
from made_up_sets import SCORE, add_fragments

from pipeline.config import loading
from pipeline.errors import InputError, IntegrityError, JointspaceError, UsageError
from pipeline.index.search import Searcher
from pipeline.storage import commit
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.bundles import open_bundle
from stages.index.serve import _open_gallery

SECONDS, SAMPLE = 20, 24
"""After which a forgery counts as a hang, and how many forgeries are tried of each bundle."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("forged") / "run")
    build_bundle(run)
    add_fragments(run, "dvsa", SCORE)
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
    commit._sha256.cache_clear()
    commit._read.cache_clear()
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
    """Some at random, as many of JSON files as of others: what is not needed may say anything."""
    forgeries = all_forgeries(run / kind)
    told = [name for name in forgeries if name.startswith(JSON)]
    others = [name for name in forgeries if not name.startswith(JSON)]
    rng = Random(kind)
    chosen = [*rng.sample(told, SAMPLE // 2), *rng.sample(others, min(SAMPLE // 2, len(others)))]
    counts = check(run / kind, tmp_path, {name: forgeries[name] for name in chosen})
    assert counts["refused"] > counts["read"]
    assert attempt(run / kind, tmp_path / "sound", lambda folder: None) == "read"


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["bundle", "sets"])
def test_all_forgeries_are_refused(kind: str, run: Path, tmp_path: Path, clock: None) -> None:
    check(run / kind, tmp_path, all_forgeries(run / kind))


GIGABYTE = 1 << 30
ALL = ("search", "serve", "apply", "export", "add", "add to", "run", "remove")
IMAGES = {
    "lists elsewhere": (lists_elsewhere, "images.faiss has its lists in", ("search",)),
    "an unknown type": (unknown_type, "images.faiss holds an IndexIVFIndependentQuantizer", ("search",)),
    "another count": (lambda folder, _: told(folder, "card.json", ("images", "count"), 9), "as its card says", ALL[:1]),
    "a path outside": (cell("images", "path", "../../etc/passwd"), "images.parquet row 3: its path", ALL),
    "an absolute path": (cell("images", "path", "/etc/passwd"), "images.parquet row 3: its path", ("serve",)),
    "a member outside": (cell("images", "member", "a/../../b"), "images.parquet row 3: its member", ("export",)),
    "a negative offset": (cell("images", "offset", -1), "images.parquet row 3: its offset", ("serve",)),
    "a huge id": (cell("images", "image_id", 3 * 10**9), "images.parquet row 3: its image_id", ("remove",)),
    "an id twice": (cell("images", "image_id", 2), "its image_id 2 is that of another row", ("add",)),
    "a huge sentence_id": (cell("sentences", "sentence_id", -7), "sentences.parquet row 3", ("export",)),
    "long texts": (long_texts, "would unpack to", ("serve",)),
    "wide bytes": (wide_bytes, "would unpack to", ("serve",)),
}
"""What is forged, what every reader says of it, and the commands that read it."""


@pytest.fixture(scope="module")
def colours(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose bundle can be applied, and photographs to apply it to."""
    root = shutil.copytree(colours, tmp_path_factory.mktemp("forged") / "run")
    draw(root / "photos", 4, 1)
    return root


def kilobytes(name: str) -> int:
    """Of this process, as the kernel counts them."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


def ask(command: str, *given: object) -> tuple[str, int]:
    """What a command says with 12 GB of addresses more than this process has, and how many bytes more it took."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, ((kilobytes("VmSize") << 10) + 12 * GIGABYTE, limits[1]))
    Path("/proc/self/clear_refs").write_text("5")  # the most memory is counted from now on
    before = kilobytes("VmHWM")
    signal.alarm(SECONDS)
    try:
        said = f"accepted: {look_around(*given) if command == 'serve' else run_command(command, *given)}"
    except JointspaceError as error:
        said = f"refused: {error}"
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return said, kilobytes("VmHWM") - before << 10


def look_around(folder: Path) -> None:
    """Open the bundle as `serve` does, and look at all that it shows."""
    gallery = _open_gallery(folder, None, None, loading.load(), None, None)
    gallery.images("a red picture", 9)
    for row, _ in gallery.browse(9)[1]:
        with suppress(InputError):
            gallery.original(row["image_id"])


def arguments(command: str, bundle: Path, colours: Path, output: Path) -> list[object]:
    sound = colours / "bundle"
    return {
        "search": ["search", "--index", bundle, "a red picture", "--top", 40],
        "serve": ["serve", bundle],
        "apply": ["apply", bundle, colours / "photos", "--output", output],
        "export": ["export", bundle, "--to", "parquet", "--output", output],
        "add": ["add", sound, bundle, "--output", output],
        "add to": ["add", bundle, sound, "--output", output],
        "run": ["add", bundle, colours, "--output", output],
        "remove": ["remove", bundle, 1, "--output", output],
    }[command]


@pytest.mark.parametrize("case", IMAGES)
def test_no_command_obeys_a_stranger(case: str, colours: Path, tmp_path: Path, clock: None) -> None:
    forge, refusal, commands = IMAGES[case]
    forged, victim = shutil.copytree(colours / "bundle", tmp_path / "forged"), tmp_path / "victim"
    forge(forged, victim)
    before = victim.read_bytes() if victim.exists() else None
    for command in commands:
        said, memory = ask(*arguments(command, forged, colours, tmp_path / "out" / command))
        assert said.startswith("refused: ") and refusal in said and memory < GIGABYTE, (command, said, memory)
        assert not list((tmp_path / "out").glob(f"{command}/**/card.json"))
    assert (victim.read_bytes() if victim.exists() else None) == before


def test_ids_that_are_far_apart_take_no_memory(colours: Path, tmp_path: Path, clock: None) -> None:
    forged = shutil.copytree(colours / "bundle", tmp_path / "forged")
    cell("images", "image_id", (1 << 31) - 1, row=39)(forged, tmp_path)
    for command in ("search", "add", "remove"):
        said, memory = ask(*arguments(command, forged, colours, tmp_path / command))
        assert said.startswith("accepted") and memory < GIGABYTE // 2, (command, said, memory)
    assert 39 not in Bundle(tmp_path / "remove").table("images")["image_id"].to_pylist()


@pytest.mark.parametrize("more", [False, True])
def test_a_url_in_a_card_is_not_asked(more: bool, colours: Path, tmp_path: Path, clock: None) -> None:
    forged = shutil.copytree(colours / "bundle", tmp_path / "forged")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/internal"
        told(forged, "card.json", ("data_root",), url)
        if more:
            shutil.copytree(colours / "bundle", tmp_path / "both/00")
            forged = forged.rename(tmp_path / "both/01").parent
        for command in ("serve", "search"):
            assert ask(*arguments(command, forged, colours, tmp_path / command))[0].startswith("accepted")
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
    bundle = open_bundle(forged)
    table = bundle.packed_table("images")
    row = table.records([table.num_rows - 1])[0]
    for named in (None, colours / "data") if more else (None,):
        with pytest.raises(InputError, match="missing: there is no file"):
            bundle.photographs(named).read(row)
    first = table.records([0])[0]
    assert bundle.photographs(colours / "data").read(first)


@pytest.mark.parametrize("name", ["../secret", "k/../../secret", "k/secret"])
def test_nothing_outside_of_a_bundle_is_read_or_written(name: str, run: Path, tmp_path: Path) -> None:
    forged, secret = shutil.copytree(run / "bundle", tmp_path / "forged"), b"precious"
    (tmp_path / "secret").write_bytes(secret)
    (forged / "k").symlink_to(tmp_path)
    about = {"bytes": len(secret), "sha256": hashlib.sha256(secret).hexdigest()}
    told(forged, "card.json", ("files", name), about)
    with pytest.raises(IntegrityError, match="card.json names '"):
        Bundle(forged).check()
    with pytest.raises(IntegrityError, match="names"):
        BundleWriter(forged).add(name, b"evil")
    assert (tmp_path / "secret").read_bytes() == secret
