"""Tests of the report in a real browser: its length, its anchors, its printed form, and its accessibility."""

from pathlib import Path
from typing import Any

import pytest
from synthetic_run import make_stage

from pipeline.report.charts import Chart, Line, draw_bars

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytestmark = pytest.mark.slow
MAX_PAGE_HEIGHT = 2500
"""Maximum height of the page in pixels at a width of 1280, while all sections are closed."""


@pytest.fixture(scope="module")
def address(run: Path) -> str:
    make_stage("report", run)
    return (run / "report" / "index.html").absolute().as_uri()


@pytest.mark.parametrize(("width", "longest"), [(1280, MAX_PAGE_HEIGHT), (400, 2 * MAX_PAGE_HEIGHT)])
def test_the_page_is_short_and_the_links_of_its_contents_open_the_sections(
    browser: Any, address: str, width: int, longest: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollHeight") <= longest
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not page.locator("#indexes").is_visible()
    page.get_by_role("link", name="Indexes").click()
    playwright.expect(page.locator("#indexes")).to_be_visible()
    page.close()


def test_no_table_is_wider_than_the_page_and_no_label_is_cut(browser: Any, address: str) -> None:
    lines = Chart("Correlations", "dimension", "correlation", [Line("held out", [(1, 0.9), (192, 0.1)])])
    bars = draw_bars("Cost", {"prepare-text-encoder-of-others": (1734.0, "128 min 54 s")})
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    page.evaluate("charts => document.querySelector('main').insertAdjacentHTML('beforeend', charts)", lines.svg + bars)
    wide = "[...document.querySelectorAll('.scroll')].filter((one) => one.scrollWidth > one.clientWidth).length"
    assert page.evaluate(wide) == 0
    assert (
        page.evaluate("""[...document.querySelectorAll('svg.chart text')].filter((text) => {
        const [own, chart] = [text, text.closest('svg')].map((one) => one.getBoundingClientRect());
        return own.left < chart.left || own.right > chart.right || own.bottom > chart.bottom;
    }).map((text) => text.textContent)""")
        == []
    )
    page.close()


def test_all_sections_are_printed(browser: Any, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    page.emulate_media(media="print")
    page.wait_for_function("document.querySelector('#collection').checkVisibility({contentVisibilityAuto: true})")
    assert page.evaluate("document.querySelector('#collection').getBoundingClientRect().height") > 50
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_accessibility_violations(browser: Any, address: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    page = browser.new_page(color_scheme=scheme)
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    found = axe.Axe().run(page).response["violations"]
    page.close()
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
