"""Forged indexes with valid digests: every reader and command refuses them with a clear message.

No command that opens such an index may end in a traceback, hang, touch a file outside of the index, connect to a
server, or need a gigabyte of memory.
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
    JSON_FILES,
    UNFIT_INDEXES,
    Commands,
    Forgery,
    abort_process,
    all_forgeries,
    edit_json,
    forge_cell,
    lists_elsewhere,
    long_texts,
    many_transforms,
    one_list_index,
    put_index,
    put_unfit_index,
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

MAX_SECONDS = 20
"""Number of seconds after which a reader of a forgery counts as hanging."""
SAMPLED_FORGERIES = 24
"""Number of forgeries that the fast test tries for each index."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with two indexes: `bundle` of a model with one vector per image, and `sets` of a region model."""
    run = make_run(tmp_path_factory.mktemp("forged") / "run")
    build_bundle(run)
    add_fragments(run, "dvsa", SCORE)
    lists = {"exact_limit": 10, "recall_floor": 1.0, "shortlist": {"nearest": 30, "shortlist": 100}}
    build_bundle(run, {"index": lists}, model="dvsa", output="sets")
    return run


def query_everything(folder: Path) -> None:
    """Open the index in `folder`, check it, and make every kind of query."""
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
        with suppress(UsageError):  # The synthetic encoder has no architecture that can be restored.
            StoredEncoder(bundle, name).open().encode([Image.new("RGB", (40, 30))])
    if bundle.card.kind == "fragments":
        searcher.regions("a dog", 3)
        for shard in bundle.shards:
            shard.outline("images")
            shard.outline("sentences")
    else:
        searcher.sentences(features_of("horse"), 48)
        searcher.analogy(features_of("horse"), ["horse"], ["dog"], 3, 5)


class Hang(BaseException):
    """Error that the alarm raises in a reader that takes too long."""


@pytest.fixture
def clock() -> Iterator[None]:
    """Raise Hang when an alarm that a test has set goes off."""

    def ring(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def attempt(bundle: Path, folder: Path, forge: Forgery) -> str:
    """Copy `bundle` to the new folder `folder`, forge the copy, query it, and return the outcome.

    The outcomes `refused`, `read` and `not possible` are allowed. Any other string describes a fault.
    """
    shutil.copytree(bundle, folder)
    try:
        forge(folder)
    except (ValueError, TypeError, OverflowError):  # NumPy or JSON cannot express the forged value.
        return "not possible"
    commit._sha256.cache_clear()
    commit._read.cache_clear()
    signal.alarm(MAX_SECONDS)
    try:
        query_everything(folder)
    except IntegrityError as error:
        sound = "\n" not in str(error) and str(folder) in str(error)
        return "refused" if sound else f"refused without the name of the folder, or on several lines: {error}"
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


def check_outcomes(bundle: Path, folder: Path, forgeries: dict[str, Forgery]) -> Counter[str]:
    """Try all forgeries of an index, assert that only allowed outcomes occur, and count the outcomes."""
    outcomes = {name: attempt(bundle, folder / "forged", forge) for name, forge in forgeries.items()}
    bad = {name: said for name, said in outcomes.items() if said not in ("refused", "read", "not possible")}
    assert not bad, bad
    return Counter(outcomes.values())


@pytest.mark.parametrize("kind", ["bundle", "sets"])
def test_random_forgeries_are_refused(kind: str, run: Path, tmp_path: Path, clock: None) -> None:
    """Most forgeries of a random sample are refused. Half of the sample changes JSON files. A forged value may be
    accepted if no reader needs it. The index without a forgery can be read."""
    forgeries = all_forgeries(run / kind)
    of_json = [name for name in forgeries if name.startswith(JSON_FILES)]
    others = [name for name in forgeries if not name.startswith(JSON_FILES)]
    rng = Random(kind)
    chosen = [
        *rng.sample(of_json, SAMPLED_FORGERIES // 2),
        *rng.sample(others, min(SAMPLED_FORGERIES // 2, len(others))),
    ]
    counts = check_outcomes(run / kind, tmp_path, {name: forgeries[name] for name in chosen})
    assert counts["refused"] > counts["read"]
    assert attempt(run / kind, tmp_path / "sound", lambda folder: None) == "read"


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["bundle", "sets"])
def test_all_forgeries_are_refused(kind: str, run: Path, tmp_path: Path, clock: None) -> None:
    check_outcomes(run / kind, tmp_path, all_forgeries(run / kind))


GIGABYTE = 1 << 30
"""Number of bytes by which the peak memory must not grow while a command reads a forged index."""
ALL_COMMANDS = ("search", "serve", "apply", "export", "add", "add to", "run", "remove")
"""Commands that open an index, by the keys of `arguments`."""
FORGED_INDEXES = {
    "lists elsewhere": (lists_elsewhere, "images.faiss stores its lists in", ("search",)),
    "an unknown type": (unknown_type, "images.faiss contains an IndexIVFIndependentQuantizer", ("search",)),
    "too many transforms": (many_transforms, "images.faiss has more than 4 transforms before its index", ("search",)),
    "another count": (
        lambda folder, _: edit_json(folder, "card.json", ("images", "count"), 9),
        "but its card declares",
        ALL_COMMANDS[:1],
    ),
    "a path outside": (
        forge_cell("images", "path", "../../etc/passwd"),
        "images.parquet row 3: the path",
        ALL_COMMANDS,
    ),
    "an absolute path": (forge_cell("images", "path", "/etc/passwd"), "images.parquet row 3: the path", ("serve",)),
    "a member outside": (forge_cell("images", "member", "a/../../b"), "images.parquet row 3: the member", ("export",)),
    "a negative offset": (forge_cell("images", "offset", -1), "images.parquet row 3: offset", ("serve",)),
    "a huge id": (forge_cell("images", "image_id", 3 * 10**9), "images.parquet row 3: image_id", ("remove",)),
    "an id twice": (forge_cell("images", "image_id", 2), "an earlier row has the image_id 2 too", ("add",)),
    "a huge sentence_id": (forge_cell("sentences", "sentence_id", -7), "sentences.parquet row 3", ("export",)),
    "long texts": (long_texts, "would unpack to", ("serve",)),
    "wide bytes": (wide_bytes, "would unpack to", ("serve",)),
}
"""Name of a forgery -> the function that makes it, a part of the error message, and the commands that refuse it."""


@pytest.fixture(scope="module")
def colours(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run whose index `bundle` can be applied to photos, and a folder `photos` with four photos."""
    root = shutil.copytree(colours, tmp_path_factory.mktemp("forged") / "run")
    draw(root / "photos", 4, 1)
    return root


def kilobytes(name: str) -> int:
    """Return a memory figure of this process, such as VmSize or VmHWM, from `/proc/self/status`, in units of 1,024
    bytes."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


def run_limited(command: str, *arguments: object) -> tuple[str, int]:
    """Call a command with at most 12 GiB of additional address space.

    Returns `accepted: OUTPUT` or `refused: MESSAGE`, and the number of bytes by which the peak memory grew.
    """
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, ((kilobytes("VmSize") << 10) + 12 * GIGABYTE, limits[1]))
    Path("/proc/self/clear_refs").write_text("5")  # From now on, the kernel measures the peak memory.
    before = kilobytes("VmHWM")
    signal.alarm(MAX_SECONDS)
    try:
        said = f"accepted: {open_and_browse(*arguments) if command == 'serve' else run_command(command, *arguments)}"
    except JointspaceError as error:
        said = f"refused: {error}"
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return said, kilobytes("VmHWM") - before << 10


def open_and_browse(folder: Path) -> None:
    """Open an index as `serve` does, search it, and read the photos that the start page shows."""
    served = _open_gallery(folder, None, None, loading.load(), None, None, None, skip_verified=False)
    served.images("a red picture", 9)
    for row, _ in served.browse(9)[1]:
        with suppress(InputError):
            served.original(row["image_id"])


def arguments(command: str, bundle: Path, colours: Path, output: Path) -> list[object]:
    """Return the name and the arguments of a command that opens the index `bundle` and writes to `output`.

    `command` is one of ALL_COMMANDS, and `colours` is a run with a sound index.
    """
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


@pytest.mark.parametrize("case", FORGED_INDEXES)
def test_every_command_refuses_a_forged_index(case: str, colours: Path, tmp_path: Path, clock: None) -> None:
    forge, refusal, commands = FORGED_INDEXES[case]
    forged = shutil.copytree(colours / "bundle", tmp_path / "forged")
    victim = tmp_path / "victim"
    forge(forged, victim)
    before = victim.read_bytes() if victim.exists() else None
    for command in commands:
        said, memory = run_limited(*arguments(command, forged, colours, tmp_path / "out" / command))
        assert said.startswith("refused: ") and refusal in said and memory < GIGABYTE, (command, said, memory)
        assert not list((tmp_path / "out").glob(f"{command}/**/card.json"))
    assert (victim.read_bytes() if victim.exists() else None) == before


def test_an_index_with_a_large_id_needs_little_memory(colours: Path, tmp_path: Path, clock: None) -> None:
    forged = shutil.copytree(colours / "bundle", tmp_path / "forged")
    forge_cell("images", "image_id", (1 << 31) - 1, row=39)(forged, tmp_path)
    for command in ("search", "add", "remove"):
        said, memory = run_limited(*arguments(command, forged, colours, tmp_path / command))
        assert said.startswith("accepted") and memory < GIGABYTE // 2, (command, said, memory)
    assert 39 not in IndexShard(tmp_path / "remove").table("images")["image_id"].to_pylist()


@pytest.mark.parametrize("two_shards", [False, True])
def test_a_url_in_a_card_is_never_requested(two_shards: bool, colours: Path, tmp_path: Path, clock: None) -> None:
    forged = shutil.copytree(colours / "bundle", tmp_path / "forged")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/internal"
        edit_json(forged, "card.json", ("data_root",), url)
        if two_shards:
            shutil.copytree(colours / "bundle", tmp_path / "both/00")
            forged = forged.rename(tmp_path / "both/01").parent
        for command in ("serve", "search"):
            assert run_limited(*arguments(command, forged, colours, tmp_path / command))[0].startswith("accepted")
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()
    bundle = open_index(forged)
    table = bundle.packed_table("images")
    row = table.records([table.num_rows - 1])[0]
    for named in (None, colours / "data") if two_shards else (None,):
        with pytest.raises(InputError, match="missing: there is no file"):
            bundle.photographs(named).read(row)
    first = table.records([0])[0]
    assert bundle.photographs(colours / "data").read(first)


@pytest.mark.parametrize("name", ["../secret", "k/../../secret", "k/secret"])
def test_files_outside_of_an_index_are_neither_read_nor_written(name: str, run: Path, tmp_path: Path) -> None:
    forged = shutil.copytree(run / "bundle", tmp_path / "forged")
    secret = b"precious"
    (tmp_path / "secret").write_bytes(secret)
    if name.startswith("k/"):
        (forged / "k").symlink_to(tmp_path)
    listed = {"bytes": len(secret), "sha256": hashlib.sha256(secret).hexdigest()}
    edit_json(forged, "card.json", ("files", name), listed)
    with pytest.raises(IntegrityError, match="card.json names the file '|forged/k is a link"):
        IndexShard(forged).check()
    with pytest.raises(IntegrityError, match="names"):
        IndexWriter(forged).add(name, b"evil")
    assert (tmp_path / "secret").read_bytes() == secret


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    """Provide a caller of commands in a separate process."""
    commands = Commands()
    yield commands
    commands.close()


def refusals(commands: Commands, index: Path) -> list[str]:
    """Return the first lines of two errors: of a search without a condition, and of a search with a condition.

    Both searches must refuse the index, and `verify` must give the reason of the first search.
    """
    search = ("search", "--index", index, "a red dog")
    said = [commands(*words) for words in (search, (*search, "--where", "split = 'test'"))]
    assert all(one.startswith("refused: ") for one in said), said
    verified = commands("verify", index)
    first = said[0].removeprefix("refused: ").splitlines()[0]
    assert verified.startswith("refused: ") and first in verified, (first, verified)
    return [one.splitlines()[0] for one in said]


@pytest.mark.parametrize("name", UNFIT_INDEXES)
def test_a_faiss_index_whose_components_do_not_fit_is_refused(
    name: str, run: Path, tmp_path: Path, commands: Commands
) -> None:
    forged = shutil.copytree(run / "bundle", tmp_path / "forged")
    put_unfit_index(forged, name)
    assert all(UNFIT_INDEXES[name][2] in reason for reason in refusals(commands, forged))


@pytest.mark.parametrize("factory", ["Flat", "SQ8", "PQ4x4fs"])
def test_an_index_with_more_vectors_than_rows_is_refused(
    factory: str, run: Path, tmp_path: Path, commands: Commands
) -> None:
    forged = shutil.copytree(run / "bundle", tmp_path / "forged")
    index = one_list_index(forged)
    more = faiss.index_factory(index.d, factory, faiss.METRIC_INNER_PRODUCT)
    vectors = np.random.default_rng(1).standard_normal((400, index.d)).astype(np.float32)
    more.train(vectors)
    more.add(vectors[: index.ntotal + 1])
    put_index(forged, more)
    assert all("has 25 vectors, but its table has only 24 rows" in reason for reason in refusals(commands, forged))


# --- the trial when an index is first opened


def test_an_index_that_crashes_its_reader_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(gallery, "_try_index", abort_process)
    with pytest.raises(IntegrityError, match=r"images\.faiss crashed the process that read it for trial"):
        gallery.open_faiss(IndexShard(run / "bundle"), "images")


def test_an_index_is_tried_once_and_remembered_in_a_private_folder(
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
    remembered.chmod(0o777)  # Another user could now write to the folder, so its digests are not trusted.
    gallery.open_faiss(IndexShard(folder), "images")
    assert tried == [tmp_path / "one/images.faiss", tmp_path / "two/images.faiss"]


def test_the_memory_limit_of_a_trial_grows_with_the_file(tmp_path: Path) -> None:
    for name, size in (("large", 2 << 30), ("small", 1)):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)  # This file is sparse, so it takes no space on the disk.
    try_first(tmp_path / "large", bytearray, 5 << 30)
    with pytest.raises(InputError, match="small"):
        try_first(tmp_path / "small", bytearray, 5 << 30)


def test_a_daemonic_process_says_where_to_open_an_index(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(
        IntegrityError, match=r"images\.faiss must be read for trial .* daemonic process.* set XDG_STATE_HOME"
    ):
        gallery.open_faiss(IndexShard(run / "bundle"), "images")


def test_an_index_that_this_machine_built_needs_no_trial(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    built = build_bundle(run, output="built")
    monkeypatch.setattr(gallery, "try_first", lambda *_: pytest.fail("it was tried"))
    run_command("search", "--index", built, "a dog", "--top-k", 1)
    run_command("remove", built, 1, "--copy-to", tmp_path / "less")
    run_command("search", "--index", tmp_path / "less", "a dog", "--top-k", 1)


# --- values on a card

INVALID_PREPROCESSING = {
    "resize": (0, -5, "224", 4097, 10**9, True, None), "crop": (0, 20000, "224", 1.5), "std": ([0, 1, 1], [1, 1]),
    "mean": ([1e400, 0, 0], "abc"), "interpolation": ("__class__", 3, "cubic"),
}  # fmt: skip
"""Key of an encoder's preprocessing -> values that are refused."""


@pytest.mark.parametrize("key", INVALID_PREPROCESSING)
def test_invalid_preprocessing_on_a_card_is_refused(
    key: str, colours: Path, tmp_path: Path, commands: Commands
) -> None:
    for value in INVALID_PREPROCESSING[key]:
        forged = shutil.copytree(colours / "bundle", tmp_path / "forged")
        name = next(iter(IndexShard(forged).card.encoders))
        try:
            edit_json(forged, "card.json", ("encoders", name, "preprocessing", key), value)
        except ValueError:  # JSON has no infinity.
            value = 1e300
            edit_json(forged, "card.json", ("encoders", name, "preprocessing", key), [value, "", 0])
        said, memory = run_limited("search", "--index", forged, "--image", next((colours / "data").rglob("*.png")))
        assert said.startswith("refused: ") and f"preprocessing.{key}" in said, (value, said)
        assert "card.json" in said and memory < GIGABYTE // 4
        shutil.rmtree(forged)


def test_a_network_that_is_larger_than_its_stored_weights_is_not_built() -> None:
    """The settings name a network with 2.5 GB of weights, which would be built before the few stored weights are read.
    The network is refused without so much memory."""
    settings = {"architecture": "vit_h_14", "layer": "average", "flip": False, "node": "encoder.ln", "weights": {}}
    settings["preprocessing"] = {"resize": 518, "crop": 518, "mean": (0, 0, 0), "std": (1, 1, 1)}
    before = kilobytes("VmSize")
    with pytest.raises(IntegrityError, match="larger layers than the stored tensors have"):
        restore_encoder(ImageEncoder, EncoderParts(settings, {"a": np.zeros(4, np.float32)}), "an index")
    assert kilobytes("VmSize") - before < 1 << 20


@pytest.mark.parametrize("count", [1024, 1025, 300_000])
def test_a_card_names_at_most_1024_files(count: int, run: Path, tmp_path: Path, clock: None) -> None:
    forged = shutil.copytree(run / "bundle", tmp_path / "forged")
    files = json.loads((forged / "card.json").read_text())["files"]
    listed = next(iter(files.values()))
    files |= {f"more/{number}": listed for number in range(count - len(files))}
    edit_json(forged, "card.json", ("files",), files)
    if count == 1024:
        assert len(read_card(forged).files) == count
    else:
        with pytest.raises(IntegrityError, match="is not the card of an index"):
            read_card(forged)


INVALID_FACTORIES = ("IVF1048577,Flat", "IVF99999999999,Flat", "HNSW60000", "PQ70000x8", "F" * 300)
"""FAISS factory strings that are too large or too long."""


@pytest.mark.parametrize("factory", INVALID_FACTORIES)
def test_an_excessive_factory_string_on_a_card_is_refused(factory: str, run: Path, tmp_path: Path) -> None:
    forged = shutil.copytree(run / "bundle", tmp_path / "forged")
    edit_json(forged, "card.json", ("images", "factory"), factory)
    with pytest.raises(IntegrityError, match="images.factory: "):
        read_card(forged)


@pytest.mark.parametrize(("image_id", "valid"), [((1 << 31) - 1, True), (1 << 31, False), (-1, False)])
def test_ids_must_be_below_2_to_the_31(image_id: int, valid: bool, run: Path, tmp_path: Path) -> None:
    forged = shutil.copytree(run / "bundle", tmp_path / "forged")
    forge_cell("images", "image_id", image_id)(forged, tmp_path)
    if valid:
        assert image_id in IndexShard(forged).table("images")["image_id"].to_pylist()
    else:
        with pytest.raises(IntegrityError, match=f"image_id is {image_id}, but must be from 0 to {(1 << 31) - 1}"):
            IndexShard(forged).table("images")


# --- links


def replace_by_link(path: Path, target: Path) -> None:
    """Replace the file or folder at `path`, if it exists, by a symbolic link to `target`."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)


LINKED_PATHS = (
    "removed.txt", "added", "added/00-other", "card.json", "images.parquet", "images.faiss", "encoders", "notes",
)  # fmt: skip
"""Files and folders of an index that a link replaces. Some of them do not exist before."""


@pytest.mark.parametrize("path", LINKED_PATHS)
def test_no_command_follows_a_link_in_an_index(path: str, colours: Path, tmp_path: Path, commands: Commands) -> None:
    """Each command names the link in its message and changes no file."""
    forged = tmp_path / "forged"
    victim = tmp_path / "victim"
    shutil.copytree(colours / "bundle", forged)
    shutil.copytree(colours / "bundle", victim)
    (victim / "removed.txt").write_text("-----BEGIN PRIVATE KEY-----\n")
    target = victim / path if (victim / path).exists() else victim
    replace_by_link(forged / path, target)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    photos = colours / "photos"
    output = tmp_path / "output"
    for words in (
        ("search", "--index", forged, "a red one"), ("remove", forged, 1), ("remove", forged, 1, "--copy-to", output),
        ("add", forged, photos), ("add", forged, photos, "--copy-to", output), ("add", victim, forged),
        ("apply", forged, photos, "--output", output), ("export", forged, "--to", "npy", "--output", output),
    ):  # fmt: skip
        said = commands(*words)
        assert said.startswith("refused: ") and f"forged/{path} is a link" in said, (words, said)
    verified = commands("verify", forged)
    assert verified.startswith("refused: ") and f"forged/{path}" in verified and "is a link" in verified, verified
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_the_folder_of_an_index_may_be_a_link_but_its_shards_may_not(
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
def test_verify_accepts_any_value_of_commit_on_a_card(
    value: object, colours: Path, tmp_path: Path, commands: Commands
) -> None:
    forged = shutil.copytree(colours / "bundle", tmp_path / "forged")
    edit_json(forged, "card.json", ("commit",), value)
    assert commands("verify", forged).startswith("accepted: ")


def enlarge_preprocessing(folder: Path, _: Path) -> None:
    """Set the side to which the first encoder of an index resizes photos to a million pixels."""
    name = next(iter(IndexShard(folder).card.encoders))
    edit_json(folder, "card.json", ("encoders", name, "preprocessing", "resize"), 10**6)


REFUSED_BY_BOTH = {
    "a path outside": forge_cell("images", "path", "../x"),
    "another count": lambda folder, _: edit_json(folder, "card.json", ("images", "count"), 9),
    "a huge preprocessing": enlarge_preprocessing,
    "no model": lambda folder, _: edit_json(folder, "card.json", ("registered",), "sae, perhaps"),
    "a huge efSearch": lambda folder, _: edit_json(folder, "card.json", ("images", "efSearch"), 1 << 20),
}  # fmt: skip
"""Name of a forgery -> the function that makes it."""


@pytest.mark.parametrize("name", REFUSED_BY_BOTH)
def test_verify_gives_the_same_reason_as_search(name: str, colours: Path, tmp_path: Path, commands: Commands) -> None:
    forged = shutil.copytree(colours / "bundle", tmp_path / "forged")
    REFUSED_BY_BOTH[name](forged, tmp_path)
    refusals(commands, forged)
