"""Tests of the search page in a real browser, with the application that the command `serve` starts."""

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import run_command, with_columns

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytestmark = pytest.mark.nightly
DOG_CAPTIONS = ["a dog"] * 3
PHOTO_PATH = "/api/models/ncca/photographs/1"


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    """Start a server with one index under two names, and yield its address. Photos are encoded by `served_run.see`."""
    from served_run import serve

    with listening(serve(run, run / "bundle")) as found:
        yield found


@contextlib.contextmanager
def listening(app: object) -> Iterator[str]:
    """Run a server of `app` in a thread, and yield its address."""
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


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Open a new browser page. The test fails if a script raises an error or a request goes to another server."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    wrong = []
    page.set_default_timeout(60_000)
    playwright.expect.set_options(timeout=60_000)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda one: one.url.startswith(("http://127.0.0.1", "blob:", "data:")) or wrong.append(one.url))
    yield page
    context.close()
    assert wrong == []


def captions(page: Any, count: int, whole: bool = False) -> list[str]:
    """Wait until the page shows `count` photos, and return the captions of the first `count` photos.

    With `whole`, the page must have exactly `count` photos. Without it, the page may have more photos, because a short
    page loads more results by itself.
    """
    playwright.expect(page.locator("#answers")).to_have_attribute("aria-busy", "false")
    images = page.locator("#answers [data-photograph] img")
    playwright.expect(images.nth(count - 1)).to_be_attached()
    if whole:
        playwright.expect(images).to_have_count(count)
    return [image.get_attribute("alt") for image in images.all()][:count]


def test_every_query_has_an_address_and_back_leads_to_the_previous_query(page: Any, address: str) -> None:
    page.goto(f"{address}/?top=3")
    first = captions(page, 3)
    for words in ("a dog", "a cat"):
        page.fill("#sentence", words)
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(words.replace(" ", r"\+")))
        playwright.expect(page.locator("#answers .tile img").first).to_have_attribute("alt", words)
        assert captions(page, 3) == [words] * 3 and page.title() == f"{words} · jointspace"
    page.go_back()
    playwright.expect(page.locator("#answers .tile img").first).to_have_attribute("alt", "a dog")
    assert page.input_value("#sentence") == "a dog"
    page.go_back()
    playwright.expect(page.locator("#answers .tile img").first).to_have_attribute("alt", first[0])
    page.go_forward()
    playwright.expect(page.locator("#answers .tile img").first).to_have_attribute("alt", "a dog")


def test_index_without_a_line_says_so_below_all_results(page: Any, address: str) -> None:
    page.goto(f"{address}/?q=a+dog&top=3")
    captions(page, 3)
    playwright.expect(page.locator("#answers .end")).to_contain_text("This index does not say where likely matches end")
    assert page.locator("#answers .rest").count() == 0
    assert page.evaluate("document.querySelector('#answers .end').previousElementSibling.tagName") == "OL"


def test_a_photo_is_opened_and_used_as_a_query(page: Any, address: str) -> None:
    page.goto(f"{address}/?q=a+dog&top=3")
    captions(page, 3)
    page.locator(".tile").nth(1).focus()
    page.keyboard.press("Enter")
    dialog = page.locator("#detail")
    playwright.expect(dialog.locator("h2")).to_contain_text("dog-8.png")
    assert dialog.locator(".lines button").all_inner_texts() == ["a dog", "the big dog number 8"]
    playwright.expect(page.locator("#alike img").first).to_have_attribute("alt", "a dog")
    page.keyboard.press("ArrowRight")
    playwright.expect(dialog.locator("h2")).to_contain_text("dog-16.png")
    link = page.url
    page.keyboard.press("Escape")
    playwright.expect(dialog).to_be_hidden()
    playwright.expect(page).not_to_have_url(re.compile("image="))  # The browser goes back asynchronously.
    assert captions(page, 3) == DOG_CAPTIONS
    page.goto(link)
    playwright.expect(dialog.locator("h2")).to_contain_text("dog-16.png")
    page.keyboard.press("ArrowLeft")
    playwright.expect(dialog.locator("h2")).to_contain_text("dog-8.png")
    page.keyboard.press("Escape")  # This key leads to the query of the link, not to the previous page of the browser.
    playwright.expect(dialog).to_be_hidden()
    playwright.expect(page).not_to_have_url(re.compile("image="))
    assert page.url.startswith(f"{address}/?q=a+dog")
    page.goto(link)
    original = page.request.get(address + dialog.get_by_text("Open original").get_attribute("href"))
    assert original.headers["content-type"] == "image/png"
    dialog.get_by_text("Similar photos").first.click()
    playwright.expect(page.locator("#answers .given img")).to_be_visible()
    assert captions(page, 3) == DOG_CAPTIONS and "like=" in page.url


def test_filters_on_columns_are_set_shown_and_cleared(page: Any, address: str) -> None:
    page.goto(f"{address}/?q=a+dog&top=20")
    captions(page, 20)
    page.click("#filters > summary")
    page.click("#filter .expert > summary")
    page.get_by_label("split", exact=True).select_option("test")
    page.get_by_label("width, at most").fill("79")
    assert page.locator("#filter").get_by_label("height").count() == 0  # The column has the same value for all photos.
    colour = "e => getComputedStyle(e).color"
    typed = page.get_by_label("width, at most").evaluate(colour)
    assert typed == page.locator("body").evaluate(colour) != page.locator("h1").evaluate(colour)
    page.click("#filter button.main")
    playwright.expect(page.locator("#filter")).to_be_hidden()
    captions(page, 6, whole=True)
    assert page.locator("#active button").all_inner_texts() == ["split = test ✕", "width ≤ 79 ✕"]
    page.reload()
    captions(page, 6, whole=True)
    page.get_by_text("width ≤ 79 ✕").click()
    captions(page, 8, whole=True)
    page.click("#filters > summary")
    page.get_by_label("File or folder name contains").fill("DOG-")
    page.click("#filter button.main")
    captions(page, 1, whole=True)
    page.get_by_text("file name contains DOG- ✕").click()
    captions(page, 8, whole=True)
    page.click("#filters > summary")
    page.click("#filter .expert > summary")
    page.fill("#where", "width > 1000")
    page.click("#filter button.main")
    playwright.expect(page.locator(".nothing")).to_contain_text("No photo matches the filter.")
    page.get_by_role("button", name="Clear the filter").click()
    captions(page, 20)


def test_a_word_is_excluded_under_words_and_order(page: Any, address: str) -> None:
    page.goto(f"{address}/?q=a+dog&top=3")
    captions(page, 3)
    assert not page.locator("#without").is_visible()
    page.get_by_text("Words and order").click()
    page.get_by_label("Without", exact=True).fill("horse")
    page.get_by_label("Without", exact=True).press("Enter")
    playwright.expect(page).to_have_url(re.compile("minus=horse"))
    captions(page, 3)
    assert page.locator("#without").is_visible()


@pytest.mark.parametrize("width", [1280, 400])
def test_suspicious_pairs_are_reviewed_by_key_and_by_button(page: Any, run: Path, tmp_path: Path, width: int) -> None:
    from served_run import audited_run, serve

    def expect(progress: str, image: str) -> None:
        playwright.expect(page.locator("#progress")).to_have_text(progress)
        playwright.expect(page.locator("#photo")).to_have_attribute("alt", image)
        assert page.evaluate("document.documentElement.scrollWidth") <= width

    audited_run(run, tmp_path)
    page.set_viewport_size({"width": width, "height": 800})
    with listening(serve(tmp_path, "--review", index="index/ncca")) as address:
        page.goto(f"{address}/review")
        expect("1 of 2 probable", "horse-3.png")
        assert page.locator("#captions li").all_inner_texts() == ["a horse"]
        assert page.locator("#others li").all_inner_texts() == ["the big horse number 3"]
        assert page.locator("#photo").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
        page.keyboard.press("w")
        expect("2 of 2 probable · decided: 1 wrong, 0 right, 0 unsure", "house-5.png")
        page.keyboard.press("ArrowLeft")
        expect("1 of 2 probable · decided: 1 wrong, 0 right, 0 unsure", "horse-3.png")
        playwright.expect(page.get_by_role("button", name="Wrong")).to_have_attribute("aria-pressed", "true")
        page.get_by_role("button", name="Unsure").click()
        expect("2 of 2 probable · decided: 0 wrong, 0 right, 1 unsure", "house-5.png")
        page.keyboard.press("Control+z")
        expect("1 of 2 probable · decided: 1 wrong, 0 right, 0 unsure", "horse-3.png")
        page.reload()  # After a reload, the page shows the first pair without a decision.
        expect("2 of 2 probable · decided: 1 wrong, 0 right, 0 unsure", "house-5.png")
        page.keyboard.press("r")
        expect("1 of 1 others", "cat-1.png")
        done = "All probable pairs are decided. The remaining pairs (1) are the least fitting of the others."
        going = r"Go on with them, or stop the server and run `\S*jointspace run \S*config\.yaml`\.$"
        playwright.expect(page.locator("#notes")).to_contain_text(re.compile(f"{re.escape(done)} {going}"))
        page.reload()
        playwright.expect(page.locator("#notes")).to_contain_text(done)
        page.keyboard.press("u")
        playwright.expect(page.locator("#notes")).to_contain_text("All pairs are decided")
        page.get_by_role("button", name="Undo").click()
        expect("1 of 1 others", "cat-1.png")
    rows = (tmp_path / "audit/decisions.tsv").read_text().splitlines()
    assert [row.rpartition("\t")[0] for row in rows[1:]] == ["horse-3.png\ta horse\twrong", "house-5.png\t\tright"]


def test_results_are_sorted_only_by_columns_with_an_order(page: Any, run: Path, tmp_path: Path) -> None:
    from served_run import serve

    with_columns(run / "bundle", tmp_path / "bundle", count=[*range(24)], labels=[["a"], ["b", "c"]])
    with listening(serve(tmp_path)) as address:
        page.goto(f"{address}/?q=a+dog&top=3&sort=-count")
        assert captions(page, 3) == ["a dog"] * 3
        playwright.expect(page.locator("#notes")).to_contain_text("so the 3 nearest photos are sorted")
        assert [box.get_attribute("value") for box in page.locator("#sort option").all()] == [
            "", *(sign + name for name in ("count", "split", "width", "height") for sign in ("", "-")),
        ]  # fmt: skip
        orders = [box.text_content() for box in page.locator("#sort option").all()]
        assert orders[1:5] == ["count, smallest first", "count, largest first", "split, A to Z", "split, Z to A"]
        for column in ("labels", "price"):
            page.goto(f"{address}/?q=a+dog&top=3&sort={column}")
            captions(page, 6)
            assert page.locator("#notes .warning").count() == 0


def test_an_upload_that_is_not_a_photo_is_refused_by_the_page(page: Any, address: str) -> None:
    page.goto(address)
    captions(page, 3)
    for name, kind, data in (("notes.txt", "text/plain", b"words"), ("broken.jpg", "image/jpeg", b"\xff\xd8\xff")):
        page.set_input_files("#file", {"name": name, "mimeType": kind, "buffer": data})
        playwright.expect(page.locator("#notes")).to_contain_text(f"{name} is not a photo")
        assert "photograph=" not in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "asked",
    ["", "q=a+dog&model=ncca&model=ncca-2", f"photograph={PHOTO_PATH}", f"q=a+dog&image={PHOTO_PATH}", "q=purple+dog"],
)
def test_the_page_has_no_accessibility_violations(browser: Any, address: str, scheme: str, asked: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    context = browser.new_context(color_scheme=scheme, bypass_csp=True, viewport={"width": 400, "height": 900})
    page = context.new_page()
    page.goto(f"{address}/?{asked}")
    playwright.expect(page.locator("#answers li").first).to_be_attached(timeout=60_000)
    page.wait_for_load_state("networkidle")
    found = axe.Axe().run(page).response["violations"]
    width = page.evaluate("document.documentElement.scrollWidth")
    context.close()
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [] and width <= 400


def test_the_page_says_that_the_server_is_gone_and_offers_to_try_again(page: Any, address: str) -> None:
    page.goto(f"{address}/?q=a+cat&top=3")
    captions(page, 3)
    page.route("**/api/**", lambda route: route.abort())
    page.fill("#sentence", "a dog")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#notes")).to_contain_text("The server does not answer. Check that jointspace serve")
    playwright.expect(page.locator("#busy")).to_be_hidden()
    page.unroute("**/api/**")
    page.get_by_role("button", name="Try again").click()
    assert captions(page, 3) == DOG_CAPTIONS


def test_previous_results_stay_until_new_ones_are_here(page: Any, address: str) -> None:
    page.goto(f"{address}/?q=a+cat&top=3")
    captions(page, 3)
    waiting: list[Any] = []
    page.route("**/images?*sentence=a+dog*", lambda route: waiting.append(route))
    page.fill("#sentence", "a dog")
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#busy")).to_be_visible()
    playwright.expect(page.locator("#answers .tile img").first).to_have_attribute("alt", "a cat")
    for route in waiting:
        route.continue_()
    playwright.expect(page.locator("#answers .tile img").first).to_have_attribute("alt", "a dog")
    playwright.expect(page.locator("#busy")).to_be_hidden()


def test_photos_that_cannot_be_read_are_explained_once(page: Any, address: str) -> None:
    page.route("**/photographs/*", lambda route: route.fulfill(status=404, body="{}"))
    page.goto(f"{address}/?q=a+dog&top=3")
    playwright.expect(page.locator("#answers .missing").nth(2)).to_be_visible()
    playwright.expect(page.locator("#notes .warning")).to_have_count(1)
    playwright.expect(page.locator("#notes")).to_contain_text("jointspace serve INDEX --data-root FOLDER")


def test_the_footer_counts_the_photos_of_the_index_that_answers(
    page: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The footer counts the photos again after photos were removed from the index that answers, although another index
    of the collection still has all photos."""
    from served_run import serve

    monkeypatch.setattr("pipeline.serve.gallery.CHECK_SECONDS", 0)
    first, other = (shutil.copytree(run / "bundle", tmp_path / name) for name in ("bundle", "other"))
    with listening(serve(tmp_path, other)) as address:
        page.goto(address)
        playwright.expect(page.locator("#about")).to_contain_text("24 photos and 48 captions")
        page.fill("#sentence", "a cat")
        page.keyboard.press("Enter")
        playwright.expect(page.locator("#answers .tile img").first).to_have_attribute("alt", "a cat")
        run_command("remove", first, 0)
        page.go_back()
        playwright.expect(page.locator("#about")).to_contain_text("23 photos and 46 captions")
