"""Forged bundles with valid hashes: what they cannot do is refused in one sentence; nothing ends in a traceback.

What a stranger may send is given to every command that opens a bundle: none may hang, touch a file outside of the
bundle, ask a server, or take a gigabyte.
"""

import hashlib
import json
import multiprocessing
import resource
import shutil
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import faiss
import numpy as np
import pytest
from index_forgeries import (
    JSON,
    UNFIT,
    Commands,
    Forgery,
    all_forgeries,
    cell,
    end_process,
    inverted,
    lists_elsewhere,
    long_texts,
    put_index,
    told,
    unfit,
    unknown_type,
    wide_bytes,
)
from PIL import Image
from synthetic_colours import draw
from synthetic_multivectors import SCORE, add_fragments
from synthetic_run import build_bundle, features_of, make_run, run_command

from pipeline.config import loading
from pipeline.encoders.image_encoder import ImageEncoder
from pipeline.encoders.material import EncoderParts
from pipeline.encoders.restore import restore_encoder
from pipeline.errors import InputError, IntegrityError, JointspaceError, UsageError
from pipeline.foreign.files import try_first
from pipeline.index import gallery
from pipeline.index.queries import StoredEncoder
from pipeline.index.search import Searcher
from pipeline.storage import commit
from pipeline.storage.card import read_card
from pipeline.storage.index_shard import IndexShard, IndexWriter
from pipeline.storage.stored_index import open_index
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
    bundle = open_index(folder)
    bundle.check()
    searcher = Searcher(bundle)
    searcher.images("a dog", 3)
    searcher.open()
    searcher.batch(["a dog", "cat", "zebra"], 2)
    for hit in searcher.images("a dog", 24):
        assert isinstance(hit.row["path"], str | None)
    for name in bundle.card.encoders:
        bundle.first.encoder(name)
        with suppress(UsageError):  # of the made-up architecture
            StoredEncoder(bundle, name).open().encode([Image.new("RGB", (40, 30))])
    if bundle.card.kind == "fragments":
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
    "an unknown type": (unknown_type, "images.faiss contains an IndexIVFIndependentQuantizer", ("search",)),
    "another count": (
        lambda folder, _: told(folder, "card.json", ("images", "count"), 9),
        "but its card declares",
        ALL[:1],
    ),
    "a path outside": (cell("images", "path", "../../etc/passwd"), "images.parquet row 3: its path", ALL),
    "an absolute path": (cell("images", "path", "/etc/passwd"), "images.parquet row 3: its path", ("serve",)),
    "a member outside": (cell("images", "member", "a/../../b"), "images.parquet row 3: its member", ("export",)),
    "a negative offset": (cell("images", "offset", -1), "images.parquet row 3: its offset", ("serve",)),
    "a huge id": (cell("images", "image_id", 3 * 10**9), "images.parquet row 3: its image_id", ("remove",)),
    "an id twice": (cell("images", "image_id", 2), "another row has the same image_id 2", ("add",)),
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
    served = _open_gallery(folder, None, None, loading.load(), None, None, None, skip_verified=False)
    served.images("a red picture", 9)
    for row, _ in served.browse(9)[1]:
        with suppress(InputError):
            served.original(row["image_id"])


def arguments(command: str, bundle: Path, colours: Path, output: Path) -> list[object]:
    sound = colours / "bundle"
    return {
        "search": ["search", "--index", bundle, "a red picture", "--top-k", 40],
        "serve": ["serve", bundle],
        "apply": ["apply", bundle, colours / "photos", "--output", output],
        "export": ["export", bundle, "--to", "parquet", "--output", output],
        "add": ["add", sound, bundle, "--copy-to", output],
        "add to": ["add", bundle, sound, "--copy-to", output],
        "run": ["add", bundle, colours, "--copy-to", output],
        "remove": ["remove", bundle, 1, "--copy-to", output],
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
    assert 39 not in IndexShard(tmp_path / "remove").table("images")["image_id"].to_pylist()


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
    bundle = open_index(forged)
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
    if name.startswith("k/"):
        (forged / "k").symlink_to(tmp_path)
    about = {"bytes": len(secret), "sha256": hashlib.sha256(secret).hexdigest()}
    told(forged, "card.json", ("files", name), about)
    with pytest.raises(IntegrityError, match="card.json names the file '|forged/k is a link"):
        IndexShard(forged).check()
    with pytest.raises(IntegrityError, match="names"):
        IndexWriter(forged).add(name, b"evil")
    assert (tmp_path / "secret").read_bytes() == secret


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    commands = Commands()
    yield commands
    commands.close()


def reasons(commands: Commands, index: Path) -> list[str]:
    """Why searches with and without a condition refuse an index, each in one line; `verify` says the same."""
    search = ("search", "--index", index, "a red dog")
    said = [commands(*words) for words in (search, (*search, "--where", "split = 'test'"))]
    assert all(one.startswith("refused: ") for one in said), said
    verified = commands("verify", index)
    first = said[0].removeprefix("refused: ").splitlines()[0]
    assert verified.startswith("refused: ") and first in verified, (first, verified)
    return [one.splitlines()[0] for one in said]


@pytest.mark.parametrize("what", UNFIT)
def test_parts_of_an_index_that_do_not_fit_are_refused(
    what: str, run: Path, tmp_path: Path, commands: Commands
) -> None:
    forged = shutil.copytree(run / "bundle", tmp_path / "forged")
    unfit(forged, what)
    assert all(UNFIT[what][2] in reason for reason in reasons(commands, forged))


@pytest.mark.parametrize("factory", ["Flat", "SQ8", "PQ4x4fs"])
def test_more_vectors_than_rows_are_refused(factory: str, run: Path, tmp_path: Path, commands: Commands) -> None:
    forged = shutil.copytree(run / "bundle", tmp_path / "forged")
    index = inverted(forged)
    more = faiss.index_factory(index.d, factory, faiss.METRIC_INNER_PRODUCT)
    vectors = np.random.default_rng(1).standard_normal((400, index.d)).astype(np.float32)
    more.train(vectors)
    more.add(vectors[: index.ntotal + 1])
    put_index(forged, more)
    assert all("has 25 vectors, but its table has only 24 rows" in reason for reason in reasons(commands, forged))


# --- the first time that an index is opened


def test_an_index_that_ends_its_reader_is_refused_in_a_sentence(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(gallery, "_try_index", end_process)
    with pytest.raises(IntegrityError, match=r"images\.faiss crashed the process that read it for trial"):
        gallery.open_faiss(IndexShard(run / "bundle"), "images")


def test_an_index_is_tried_once_and_remembered_for_this_user_alone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(gallery, "try_first", lambda path, *_: tried.append(path))
    for copy in ("one", "two"):
        folder = shutil.copytree(run / "bundle", tmp_path / copy)
        gallery.open_faiss(IndexShard(folder), "images")
    assert tried == [tmp_path / "one/images.faiss"]
    remembered = tmp_path / "state/jointspace/tried"
    assert remembered.stat().st_mode & 0o077 == 0 and len(list(remembered.iterdir())) == 1
    remembered.chmod(0o777)  # anybody could have written what is there
    gallery.open_faiss(IndexShard(folder), "images")
    assert tried == [tmp_path / "one/images.faiss", tmp_path / "two/images.faiss"]


def test_the_trial_of_a_large_file_may_take_its_size_more_memory(tmp_path: Path) -> None:
    for name, size in (("large", 2 << 30), ("small", 1)):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)  # without taking room on the disk
    try_first(tmp_path / "large", bytearray, 5 << 30)
    with pytest.raises(InputError, match="small"):
        try_first(tmp_path / "small", bytearray, 5 << 30)


def test_a_process_that_may_have_no_children_says_where_to_open_an_index(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(
        IntegrityError, match=r"images\.faiss must first be read for trial, .* not daemonic.* set XDG_STATE_HOME"
    ):
        gallery.open_faiss(IndexShard(run / "bundle"), "images")


def test_what_this_machine_builds_needs_no_trial(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    built = build_bundle(run, output="built")
    monkeypatch.setattr(gallery, "try_first", lambda *_: pytest.fail("it was tried"))
    run_command("search", "--index", built, "a dog", "--top-k", 1)
    run_command("remove", built, 1, "--copy-to", tmp_path / "less")
    run_command("search", "--index", tmp_path / "less", "a dog", "--top-k", 1)


# --- what a card says of encoders

SIZES = {
    "resize": (0, -5, "224", 4097, 10**9, True, None), "crop": (0, 20000, "224", 1.5), "std": ([0, 1, 1], [1, 1]),
    "mean": ([1e400, 0, 0], "abc"), "interpolation": ("__class__", 3, "cubic"),
}  # fmt: skip


@pytest.mark.parametrize("key", SIZES)
def test_sizes_of_images_on_a_card_are_bounded(key: str, colours: Path, tmp_path: Path, commands: Commands) -> None:
    for value in SIZES[key]:
        forged = shutil.copytree(colours / "bundle", tmp_path / "forged")
        name = next(iter(IndexShard(forged).card.encoders))
        try:
            told(forged, "card.json", ("encoders", name, "preprocessing", key), value)
        except ValueError:  # of JSON, which has no infinity
            value = 1e300
            told(forged, "card.json", ("encoders", name, "preprocessing", key), [value, "", 0])
        said, memory = ask("search", "--index", forged, "--image", next((colours / "data").rglob("*.png")))
        assert said.startswith("refused: ") and f"preprocessing.{key}" in said, (value, said)
        assert "card.json" in said and memory < GIGABYTE // 4
        shutil.rmtree(forged)


def test_settings_that_are_sizes_of_layers_are_bounded_by_what_was_stored() -> None:
    """A network of torchvision with 2.5 GB of weights, which is built before weights are looked at."""
    settings = {"architecture": "vit_h_14", "layer": "average", "flip": False, "node": "encoder.ln", "weights": {}}
    settings["preprocessing"] = {"resize": 518, "crop": 518, "mean": (0, 0, 0), "std": (1, 1, 1)}
    before = kilobytes("VmSize")
    with pytest.raises(IntegrityError, match="larger layers than were stored"):
        restore_encoder(ImageEncoder, EncoderParts(settings, {"a": np.zeros(4, np.float32)}), "an index")
    assert kilobytes("VmSize") - before < 1 << 20


@pytest.mark.parametrize("count", [1024, 1025, 300_000])
def test_a_card_names_at_most_a_thousand_files(count: int, run: Path, tmp_path: Path, clock: None) -> None:
    forged = shutil.copytree(run / "bundle", tmp_path / "forged")
    files = json.loads((forged / "card.json").read_text())["files"]
    about = next(iter(files.values()))
    files |= {f"more/{number}": about for number in range(count - len(files))}
    told(forged, "card.json", ("files",), files)
    if count == 1024:
        assert len(read_card(forged).files) == count
    else:
        with pytest.raises(IntegrityError, match="is not the card of an index"):
            read_card(forged)


FACTORIES = ("IVF1048577,Flat", "IVF99999999999,Flat", "HNSW60000", "PQ70000x8", "F" * 300)


@pytest.mark.parametrize("factory", FACTORIES)
def test_an_index_is_not_built_again_by_any_factory_string(factory: str, run: Path, tmp_path: Path) -> None:
    forged = shutil.copytree(run / "bundle", tmp_path / "forged")
    told(forged, "card.json", ("images", "factory"), factory)
    with pytest.raises(IntegrityError, match="images.factory: "):
        read_card(forged)


@pytest.mark.parametrize(("number", "good"), [((1 << 31) - 1, True), (1 << 31, False), (-1, False)])
def test_the_greatest_id_of_a_row_is_the_last_before_the_limit(
    number: int, good: bool, run: Path, tmp_path: Path
) -> None:
    forged = shutil.copytree(run / "bundle", tmp_path / "forged")
    cell("images", "image_id", number)(forged, tmp_path)
    if good:
        assert number in IndexShard(forged).table("images")["image_id"].to_pylist()
    else:
        with pytest.raises(IntegrityError, match=f"its image_id is {number}, but must be from 0 to {(1 << 31) - 1}"):
            IndexShard(forged).table("images")


# --- links


def link(place: Path, target: Path) -> None:
    """Put a link to `target` in the place of what is there."""
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(target)


PLACES = ("removed.txt", "added", "added/00-other", "card.json", "images.parquet", "images.faiss", "encoders", "notes")


@pytest.mark.parametrize("place", PLACES)
def test_no_command_follows_a_link_in_an_index(place: str, colours: Path, tmp_path: Path, commands: Commands) -> None:
    """Each of them names the link; nothing is written, there or elsewhere."""
    forged, victim = tmp_path / "forged", tmp_path / "victim"
    shutil.copytree(colours / "bundle", forged)
    shutil.copytree(colours / "bundle", victim)
    (victim / "removed.txt").write_text("-----BEGIN PRIVATE KEY-----\n")
    target = victim / place if (victim / place).exists() else victim
    link(forged / place, target)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    photos, output = colours / "photos", tmp_path / "output"
    for words in (
        ("search", "--index", forged, "a red one"), ("remove", forged, 1), ("remove", forged, 1, "--copy-to", output),
        ("add", forged, photos), ("add", forged, photos, "--copy-to", output), ("add", victim, forged),
        ("apply", forged, photos, "--output", output), ("export", forged, "--to", "npy", "--output", output),
    ):  # fmt: skip
        said = commands(*words)
        assert said.startswith("refused: ") and f"forged/{place} is a link" in said, (words, said)
    verified = commands("verify", forged)
    assert verified.startswith("refused: ") and f"forged/{place}" in verified and "is a link" in verified, verified
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_parts_of_an_index_are_no_links_but_the_folder_that_is_named_may_be(
    colours: Path, tmp_path: Path, commands: Commands
) -> None:
    shutil.copytree(colours / "bundle", tmp_path / "real")
    (tmp_path / "named").symlink_to(tmp_path / "real")
    assert commands("search", "--index", tmp_path / "named", "a red picture").startswith("accepted: ")
    (tmp_path / "several").mkdir()
    (tmp_path / "several/00").symlink_to(tmp_path / "real")
    said = commands("remove", tmp_path / "several", 1)
    assert said.startswith("refused: ") and "several/00 is a link" in said
    assert not (tmp_path / "real/removed.txt").exists()


def test_verify_and_search_agree_on_a_sound_index(colours: Path, tmp_path: Path, commands: Commands) -> None:
    sound = shutil.copytree(colours / "bundle", tmp_path / "sound")
    for words in (("search", "--index", sound, "a red picture"), ("verify", sound)):
        assert commands(*words).startswith("accepted: "), words


@pytest.mark.parametrize("value", [None, "x", []])
def test_verify_reads_a_card_with_any_value_in_the_place_of_its_commit(
    value: object, colours: Path, tmp_path: Path, commands: Commands
) -> None:
    forged = shutil.copytree(colours / "bundle", tmp_path / "forged")
    told(forged, "card.json", ("commit",), value)
    assert commands("verify", forged).startswith("accepted: ")


AGREED = {
    "a path outside": cell("images", "path", "../x"),
    "another count": lambda folder, _: told(folder, "card.json", ("images", "count"), 9),
    "a huge preprocessing": lambda folder, _: told(folder, "card.json", ("encoders", "boxes", "preprocessing"), {}),
    "no model": lambda folder, _: told(folder, "card.json", ("registered",), "sae, perhaps"),
    "a huge efSearch": lambda folder, _: told(folder, "card.json", ("images", "efSearch"), 1 << 20),
}  # fmt: skip


@pytest.mark.parametrize("what", AGREED)
def test_verify_gives_the_reason_for_which_a_search_refuses(
    what: str, colours: Path, tmp_path: Path, commands: Commands
) -> None:
    forged = shutil.copytree(colours / "bundle", tmp_path / "forged")
    if what == "a huge preprocessing":
        name = next(iter(IndexShard(forged).card.encoders))
        told(forged, "card.json", ("encoders", name, "preprocessing", "resize"), 10**6)
    else:
        AGREED[what](forged, tmp_path)
    reasons(commands, forged)
