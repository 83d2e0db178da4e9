"""Pages in a real browser: they draw, answer pointer and keys, load nothing, and show text as text."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

import ckptplan
from tests.pages.browser import Browser, start_browser
from tests.security.program import run_all
from tests.security.test_text import TEXTS, write_inputs

SHORT = "--T 64 --local-bytes 230kB"
#: Sweeps in the process itself: starting others takes longer than a short sweep.
COMMANDS = {
    "report.html": "report plan.json",
    "optimize.html": f"optimize {SHORT} --html optimize.html",
    "compare.html": f"compare {SHORT} --strategies closed --html compare.html",
    "front.html": f"pareto {SHORT} --html front.html",
    "machines.html": "compare --T 64 --profile ipu-mk2,nvidia-h200 --html machines.html",
    "inputs.html": f"sensitivity {SHORT} --html inputs.html",
    "lines.html": "sweep --jobs 1 --over T=64,4096,8192 --profile ipu-mk2,ipu-mk1 --cache all "
    "--html lines.html",
    "map.html": "sweep --jobs 1 --over T=64,8192 --over batch=30,60,90 --cache all --html map.html",
    # A sweep that nothing fits is a result, not an error.
    "nowhere.html": "sweep --jobs 1 --over T=1000000,2000000 --cache all --html nowhere.html",
}
#: What pages say, besides their pictures.
WORDS = {"lines.html": ("ipu-mk2", "base", "double-growing", "nothing fits"), "nowhere.html": ("nothing fits",)}
#: Pages of strangers' files.
HOSTILE_COMMANDS = {
    "hostile.html": "report hostile.json -o hostile.html",
    "hostile-front.html": "pareto --profile ./p.toml --workload ./w.toml --html hostile-front.html",
    "hostile-sweep.html": "sweep --profile ./p.toml --workload ./w.toml --jobs 1 --over T=8,16 "
    "--html hostile-sweep.html",
}
#: Pages of jobs that nothing fits.
INFEASIBLE = {
    "no-optimize.html": "optimize --T 64 --local-bytes 100kB --html no-optimize.html",
    "no-compare.html": "compare --T 64 --local-bytes 100kB --html no-compare.html",
    "no-front.html": "pareto --T 64 --at 1kB --html no-front.html",
    "no-inputs.html": "sensitivity --T 64 --local-bytes 100kB --html no-inputs.html",
}
HOSTILE = " ".join(TEXTS.values())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with start_browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page of each command; those of strangers' files, and of jobs that nothing fits."""
    folder = tmp_path_factory.mktemp("pages")
    workload = ckptplan.load_workload("paper-snn").with_steps(64)
    plan = ckptplan.optimize(workload, ckptplan.load_profile("ipu-mk2"), local_bytes="230 kB")
    ckptplan.save_plan(plan, folder / "plan.json")
    write_inputs(folder, HOSTILE)
    lines = (
        "optimize --profile ./p.toml --workload ./w.toml -o hostile.json",
        *HOSTILE_COMMANDS.values(),
        *COMMANDS.values(),
        *INFEASIBLE.values(),
    )
    runs = run_all(*map(str.split, lines), folder=folder)
    codes = [0] * (len(lines) - len(INFEASIBLE)) + [3] * len(INFEASIBLE)
    assert [done.code for done in runs.done] == codes, [done.err for done in runs.done]
    return folder


def check_quiet(browser: Browser, page: Path) -> None:
    browser.read_log()
    assert browser.messages == []
    assert {url for url in browser.requests if not url.startswith("data:")} == {page.resolve().as_uri()}


@pytest.mark.parametrize("name", [*COMMANDS, *HOSTILE_COMMANDS])
def test_a_page_shows_its_pictures_logs_nothing_and_requests_nothing(
    name: str, pages: Path, browser: Browser
) -> None:
    browser.open(pages / name)
    charts = [chart for chart in browser.find_all(".chart") if chart.is_displayed()]
    assert charts
    for chart in charts:
        assert chart.size["height"] > 40
        assert chart.find_elements("css selector", "svg path")
    words = browser.text("main")
    assert [word for word in WORDS.get(name, ()) if word not in words] == []
    check_structure(browser)
    check_quiet(browser, pages / name)
    assert (pages / name).stat().st_size < 1_000_000


@pytest.mark.parametrize("name", INFEASIBLE)
def test_a_page_of_a_job_that_nothing_fits_says_why(name: str, pages: Path, browser: Browser) -> None:
    browser.driver.get((pages / name).resolve().as_uri())
    browser.read_log()
    check_structure(browser)
    text = browser.text("main")
    assert "needs" in text
    assert "is too small" in text or "does not fit" in text
    if name != "no-compare.html":
        assert "any one of these changes makes a plan possible" in text
        assert "--local-bytes" in text


def check_structure(browser: Browser) -> None:
    """Readers who do not see the page find landmarks, headings in order, and names of controls and tables."""
    assert browser.run("return document.documentElement.lang") == "en"
    for landmark in ("header", "main", "footer"):
        assert len(browser.find_all(landmark)) == 1
    levels = browser.run(
        "return [...document.querySelectorAll('h1,h2,h3')].map((one) => Number(one.tagName[1]))"
    )
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    unnamed = (
        "return [...document.querySelectorAll('button, a[href], [role=img], [role=region], [role=group]')]"
        ".filter((one) => !(one.getAttribute('aria-label') || one.textContent.trim()"
        " || one.getAttribute('aria-labelledby'))).map((one) => one.outerHTML.slice(0, 200))"
    )
    assert browser.run(unnamed) == []
    for table in browser.find_all("table"):
        assert table.find_elements("css selector", "th[scope]")
        assert table.find_elements("css selector", "caption")
    ids = browser.run("return [...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))


def test_the_policy_of_a_page_forbids_requests(pages: Path, browser: Browser) -> None:
    browser.open(pages / "front.html")
    outcome = browser.driver.execute_async_script(
        "const done = arguments[0];"
        "fetch('data:text/plain,x').then(() => done('loaded'), () => done('refused'));"
    )
    assert outcome == "refused"


def shown_plan(browser: Browser) -> WebElement:
    """The plan whose schedule is shown; no other one is."""
    [shown] = [plan for plan in browser.find_all("article") if plan.is_displayed()]
    return shown


def test_a_dot_of_the_front_tells_its_plan_and_shows_its_schedule_when_clicked(
    pages: Path, browser: Browser
) -> None:
    browser.open(pages / "front.html")
    dots = browser.find_all("#chart-front .tips a")
    assert len(dots) >= 3
    before = shown_plan(browser).text
    tooltip = browser.run("return arguments[0].querySelector('title').textContent", dots[0])
    for word in ("strategy: ", "parameters: ", "local memory: ", "time: ", "over base: "):
        assert word in tooltip
    browser.point_at(dots[0]).click().perform()
    browser.wait(lambda: shown_plan(browser).text != before)
    chosen = shown_plan(browser)
    assert chosen.find_elements("css selector", "svg path")
    assert dots[0].get_attribute("aria-current") == "true"
    link = str(chosen.find_element("css selector", "a.download").get_attribute("href"))
    (pages / "downloaded.json").write_bytes(base64.b64decode(link.partition(",")[2]))
    plan = ckptplan.load_plan(pages / "downloaded.json")
    assert chosen.text.startswith(plan.strategy)
    assert ckptplan.simulate(plan).local_peak_bytes == plan.predicted.local_peak_bytes
    check_quiet(browser, pages / "front.html")


def test_every_plan_can_be_chosen_by_keys(pages: Path, browser: Browser) -> None:
    browser.open(pages / "front.html")
    ActionChains(browser.driver).send_keys(Keys.TAB, Keys.ENTER).perform()
    browser.wait(lambda: browser.run("return document.activeElement.id") == "main")
    browser.run("document.querySelector('summary').focus()")
    ActionChains(browser.driver).send_keys(Keys.ENTER).send_keys(Keys.TAB, Keys.TAB).perform()
    browser.wait(lambda: browser.run("return document.activeElement.getAttribute('href')") == "#plan-0")
    before = shown_plan(browser).text
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    browser.wait(lambda: shown_plan(browser).text != before)


def test_a_cell_of_a_sweep_tells_its_plan_or_why_nothing_fits(pages: Path, browser: Browser) -> None:
    browser.open(pages / "map.html")
    workload, profile = ckptplan.load_workload("paper-snn"), ckptplan.load_profile("ipu-mk2")
    grid = {"T": [64, 8192], "batch": [30, 60, 90]}
    rows = list(ckptplan.sweep(grid, workloads=workload, profiles=profile, cache="all"))
    texts = browser.run("return [...document.querySelectorAll('.tips title')].map((one) => one.textContent)")
    assert len(texts) == len(rows) == 6
    for row in rows:
        what = row["strategy"] if row["fits"] else "nothing fits"
        wanted = (f"T: {row['steps']:,}", f"batch: {row['batch']}", what)
        assert any(all(word in text for word in wanted) for text in texts), (wanted, texts)
    assert [row["fits"] for row in rows] == [True, True, True, True, True, False]


def test_text_of_strangers_is_text(pages: Path, browser: Browser) -> None:
    """Markup, formulas and codes of names and reasons are shown; nothing of them becomes an element."""
    browser.open(pages / "hostile.html")
    assert "<script>alert(1)</script>" in browser.text("main")
    assert browser.run("return document.querySelectorAll('img, iframe, object, embed, svg script').length") == 0
    assert browser.run("return document.querySelectorAll('script').length") == 1
    content = (pages / "hostile.html").read_text()
    assert "<script>alert" not in content
    assert "<img src=x" not in content
    assert re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", content) is None


def test_light_dark_and_print(pages: Path, browser: Browser) -> None:
    """The theme is the reader's; in print it is black on white, without links, and with closed parts open."""
    look = (
        "const body = getComputedStyle(document.body);"
        "const text = document.querySelector('#chart-front svg text');"
        "return [body.backgroundColor, body.color, getComputedStyle(text).fill]"
    )
    seen = {}
    for theme in ("light", "dark"):
        browser.open(pages / "front.html", theme=theme)
        ground, ink, axis = browser.run(look)
        assert ink == axis
        seen[theme] = ground
    assert seen["light"] == "rgb(255, 255, 255)"
    assert seen["dark"] != seen["light"]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.run(look) == ["rgb(255, 255, 255)", "rgb(0, 0, 0)", "rgb(0, 0, 0)"]
    assert not any(link.is_displayed() for link in browser.find_all("nav a, a.download"))
    pdf = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(pdf["data"]).startswith(b"%PDF")
    assert browser.run("return document.querySelector('details').open")
