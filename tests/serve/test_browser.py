"""The page in a real browser, from a server as a user starts it."""

import contextlib
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from made_up import build_bundle, make_run
from made_up_generators import make_described_run, train
from PIL import Image

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'jointspace[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'jointspace[serve]'")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here to open the page with")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server of one bundle under two names."""
    run = make_run(tmp_path_factory.mktemp("run"))
    bundle = build_bundle(run)
    command = [sys.executable, "-m", "stages.cli", "serve", bundle, bundle, "--images", run / "data", "--port", "0"]
    with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True) as server:
        try:
            first = server.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", first)
            assert found, first + server.stderr.read()
            yield found[0]
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def describing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with generators, whose encoder knows the made-up photographs."""
    from visiting import serve_generators

    run = make_described_run(tmp_path_factory.mktemp("described") / "run")
    app = serve_generators(run, *(train(run, name).name for name in ("mrnn", "nearest")))
    with listening(app) as address:
        yield address


@contextlib.contextmanager
def listening(app: object) -> Iterator[str]:
    """The address of a server of `app`, in a thread."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def browse(folder: Path, address: str, *options: str) -> str:
    """What headless Chromium prints of `address`, some virtual seconds after it has opened it."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,900"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000", *options, address]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


def test_a_sentence_in_the_address_is_answered_by_each_model(address: str, tmp_path: Path) -> None:
    dom = browse(tmp_path, f"{address}/?q=a+dog&top=3", "--dump-dom")
    columns = re.findall(r'<section class="column">.*?</section>', dom, re.S)
    assert [re.search("<h2>(.*?)</h2>", column)[1] for column in columns] == ["ncca", "ncca-2"]
    for column in columns:
        assert re.findall('alt="(.*?)"', column) == ["dog-0.png", "dog-8.png", "dog-16.png"]
        assert re.findall('class="score">(.*?)<', column) == ["1.000", "0.997", "0.987"]
    dom = browse(tmp_path, f"{address}/?q=a+dog&model=ncca-2&top=1", "--dump-dom")
    assert re.findall("<h2>(.*?)</h2>", dom) == ["ncca-2"] and dom.count('class="score"') == 1


def test_what_is_wrong_is_said_and_what_was_typed_is_only_text(address: str, tmp_path: Path) -> None:
    dom = browse(tmp_path, f"{address}/?q=%3Cimg+src%3Dx+onerror%3Ddocument.title%3D1%3E", "--dump-dom")
    assert "is in the vocabulary" in dom and "&lt;img" in dom and "<title>jointspace</title>" in dom


def notes_of(dom: str) -> list[str]:
    """What the page says beside its answers."""
    return re.findall(
        r'<p class="warning">(.*?)</p>', re.search(r'<div id="notes" role="status">(.*?)</div>', dom, re.S)[1]
    )


def test_what_is_of_all_models_is_said_once(address: str, tmp_path: Path) -> None:
    dom = browse(tmp_path, f"{address}/?q=a+purple+dog,+a+unicorn&top=2", "--dump-dom")
    assert notes_of(dom) == ["Not in the vocabulary, so ignored: purple, unicorn."]
    assert dom.count('class="score"') == 4
    dom = browse(tmp_path, f"{address}/?q=a+dog&top=500", "--dump-dom")
    assert notes_of(dom) == ["Top is 500; give a number from 1 to 200."] and '<section class="column">' not in dom
    assert notes_of(browse(tmp_path, f"{address}/?q=a+dog", "--dump-dom")) == []


ACTIONS = """
<script>
async function until(done) { while (!done()) await new Promise((go) => setTimeout(go, 20)); }
async function act() {
  await until(() => about);
  await fetchPhotograph("/api/models/ncca/photographs/1");
  await until(() => document.querySelector("ol.lines"));
  for (const [minus, plus] of [["", " , "], ["cat", "dog"]]) {
    at("minus").value = minus;
    at("plus").value = plus;
    at("drop").requestSubmit();
    document.title += `|${Boolean(question.similar)}`;
  }
  await until(() => document.querySelector("ol.strip"));
  takeSentence("  ");
  document.title += `|${at("notes").textContent}|${document.activeElement.id}`;
}
act();
</script>
"""


def test_nothing_is_not_asked(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from visiting import serve

    from pipeline.serve.app import read_page

    acting = read_page().replace("</body>", f"{ACTIONS}</body>")
    monkeypatch.setattr("pipeline.serve.app.read_page", lambda: acting)
    with listening(serve(run)) as address:
        dom = browse(tmp_path, address, "--dump-dom")
    assert re.search("<title>(.*?)</title>", dom)[1].split("|")[1:] == [
        "true", "false", "Write some words to search for.", "sentence",
    ]  # fmt: skip
    assert dom.count('<ol class="strip">') == 1


def test_photographs_like_one_in_the_address_are_found(run: Path, tmp_path: Path) -> None:
    from visiting import serve

    with listening(serve(run)) as address:
        for words, first in (("", "cat-1.png"), ("a+dog", "dog-0.png")):
            one = f"{address}/?photograph=/api/models/ncca/photographs/1&like={words}&top=4"
            dom = browse(tmp_path, one, "--dump-dom", f"--screenshot={tmp_path / 'page.png'}")
            assert first in re.findall('alt="(.*?)" title', dom) and dom.count('class="score"') == 4
            assert ('id="balance"' in dom) and (re.search(r'<label id="balance"[^>]*hidden', dom) is None) == bool(
                words
            )


def test_an_address_keeps_how_much_its_words_count(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from visiting import serve

    from pipeline.serve.app import read_page

    told = "until(() => document.querySelector('ol.strip')).then(() => (document.title = location.search))"
    script = "<script>const until = async (done) => { while (!done()) await new Promise((go) => setTimeout(go, 20)); };"
    acting = read_page().replace("</body>", f"{script}{told};</script></body>")
    monkeypatch.setattr("pipeline.serve.app.read_page", lambda: acting)
    with listening(serve(run)) as address:
        for weight, first in (("0", "cat"), ("1", "dog")):
            one = f"{address}/?photograph=/api/models/ncca/photographs/1&like=a+dog&weight={weight}&top=2"
            dom = browse(tmp_path, one, "--dump-dom")
            assert {found.partition("-")[0] for found in re.findall('alt="(.*?)" title', dom)} == {first}
            assert f"weight={weight}" in re.search("<title>(.*?)</title>", dom)[1]


def test_the_photographs_can_be_seen(address: str, tmp_path: Path) -> None:
    browse(tmp_path, f"{address}/?q=a+dog&top=3", f"--screenshot={tmp_path / 'page.png'}")
    image = Image.open(tmp_path / "page.png").convert("RGB")
    assert image.size == (1280, 900)
    seen = image.getcolors(1 << 20)
    dog = np.random.default_rng(0).integers(256, size=3)  # the colour of which made_up makes dogs
    assert sum(count for count, colour in seen if np.abs(colour - dog).max() <= 4) > 6 * 100 * 75


def test_a_photograph_is_described_beside_the_sentences_that_fit_it(describing: str, tmp_path: Path) -> None:
    address = f"{describing}/?photograph=/api/models/ncca/photographs/1&top=2"
    dom = browse(tmp_path, address, "--dump-dom", f"--screenshot={tmp_path / 'page.png'}")
    columns = re.findall(r'<section class="column">.*?</section>', dom, re.S)
    titles = ["Described by mrnn", "Described by nearest", "ncca"]
    assert [re.search("<h2>(.*?)</h2>", column)[1] for column in columns] == titles
    for column in columns:
        texts = re.findall(r'<button [^>]*class="text"[^>]*>(.*?)</button>', column)
        assert len(texts) == 2 and "cat" in texts[0]
    assert columns[1].count("copied from a training sentence") == 2 and "copied" not in columns[2]
    assert re.search(r"copied from a training sentence|nearest training sentence \(\d\.\d\d\): \w", columns[0])
    assert "/api/generators/mrnn/descriptions" in dom


def test_without_generators_nothing_is_described(address: str, tmp_path: Path) -> None:
    dom = browse(tmp_path, f"{address}/?q=a+dog", "--dump-dom")
    assert 'id="generators" hidden=""' in dom and "describe it" not in re.search('id="dropped">(.*?)<', dom)[1]
    assert "descriptions" not in re.search('id="program">(.*?)</code>', dom, re.S)[1]
