"""Pages in a real browser: they draw, answer pointer and keys, load nothing, and show text as text."""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Iterator
from functools import partial
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

SHORT = ("--T", "64", "--local-bytes", "230 kB")
#: In the process itself: starting others takes longer than a short sweep.
ALONE = ("--jobs", "1")
COMMANDS = {
    "report.html": ("report", "plan.json"),
    "optimize.html": ("optimize", *SHORT, "--html", "optimize.html"),
    "compare.html": ("compare", *SHORT, "--strategies", "closed", "--html", "compare.html"),
    "front.html": ("pareto", *SHORT, "--html", "front.html"),
    "machines.html": ("compare", "--T", "64", "--profile", "ipu-mk2,nvidia-h200", "--html", "machines.html"),
    "inputs.html": ("sensitivity", *SHORT, "--html", "inputs.html"),
    "lines.html": (
        "sweep",
        *ALONE,
        "--over",
        "T=64,4096,8192",
        "--profile",
        "ipu-mk2,ipu-mk1",
        "--html",
        "lines.html",
    ),
    "map.html": ("sweep", *ALONE, "--over", "T=64,8192", "--over", "batch=30,60,90", "--html", "map.html"),
}
#: A job that nothing fits.
TIGHT = ("--T", "64", "--local-bytes", "100 kB")
INFEASIBLE = {
    "no-optimize.html": ("optimize", *TIGHT, "--html", "no-optimize.html"),
    "no-compare.html": ("compare", *TIGHT, "--html", "no-compare.html"),
    "no-front.html": ("pareto", "--T", "64", "--at", "1 kB", "--html", "no-front.html"),
    "no-inputs.html": ("sensitivity", *TIGHT, "--html", "no-inputs.html"),
}
#: A sweep that nothing fits is a result, not an error.
NOWHERE = ("sweep", *ALONE, "--over", "T=1000000,2000000", "--html", "nowhere.html")
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
    job = ("--profile", "./p.toml", "--workload", "./w.toml")
    hostile: tuple[tuple[str, ...], ...] = (
        ("optimize", *job, "-o", "hostile.json"),
        ("report", "hostile.json", "-o", "hostile.html"),
        ("pareto", *job, "--html", "hostile-front.html"),
    )
    hostile += (("sweep", *job, *ALONE, "--over", "T=8,16", "--html", "hostile-sweep.html"), NOWHERE)
    runs = run_all(*COMMANDS.values(), *hostile, *INFEASIBLE.values(), folder=folder)
    codes = [0] * (len(COMMANDS) + len(hostile)) + [3] * len(INFEASIBLE)
    assert [done.code for done in runs.done] == codes, [done.err for done in runs.done]
    return folder


def check_quiet(browser: Browser, page: Path) -> None:
    browser.read_log()
    assert browser.messages == []
    assert {url for url in browser.requests if not url.startswith("data:")} == {page.resolve().as_uri()}


HOSTILE_PAGES = ("hostile.html", "hostile-front.html", "hostile-sweep.html")


@pytest.mark.parametrize("name", [*COMMANDS, *HOSTILE_PAGES])
def test_a_page_draws_its_charts_says_nothing_and_asks_nobody(name: str, pages: Path, browser: Browser) -> None:
    browser.open(pages / name)
    charts = browser.find_all(".chart")
    assert charts
    for chart in charts:
        assert chart.find_elements("css selector", "svg .mark-rule, svg .mark-rect, svg .mark-line")
    check_quiet(browser, pages / name)
    assert (pages / name).stat().st_size < 5_000_000


def test_the_policy_of_a_page_forbids_requests(pages: Path, browser: Browser) -> None:
    browser.open(pages / "front.html")
    outcome = browser.driver.execute_async_script(
        "const done = arguments[0];"
        "fetch('data:text/plain,x').then(() => done('loaded'), () => done('refused'));"
    )
    assert outcome == "refused"


def points(browser: Browser) -> list[WebElement]:
    """The dots of the front that can be chosen."""
    script = (
        "return [...document.querySelectorAll('#chart-front svg g.mark-symbol path')]"
        ".filter((dot) => dot.__data__ && dot.__data__.datum && typeof dot.__data__.datum.plan === 'number')"
    )
    return list(browser.run(script))


def test_a_point_tells_its_plan_when_pointed_at_and_shows_its_schedule_when_clicked(
    pages: Path, browser: Browser
) -> None:
    browser.open(pages / "front.html")
    found = points(browser)
    assert len(found) > 5
    before = browser.text("#plan-label")
    schedule = browser.find("#chart-schedule svg").get_attribute("innerHTML")
    chain = browser.point_at(found[0])
    browser.wait(lambda: browser.find("#vg-tooltip-element").is_displayed())
    tooltip = browser.text("#vg-tooltip-element")
    for word in ("strategy", "parameters", "local memory", "time", "over base", "chunk_size"):
        assert word in tooltip
    chain.click().perform()
    browser.wait(lambda: browser.text("#plan-label") != before)
    browser.wait(lambda: browser.find("#chart-schedule svg").get_attribute("innerHTML") != schedule)
    link = str(browser.find("#plan-download").get_attribute("href"))
    document = json.loads(urllib.parse.unquote(link.partition(",")[2]))
    (pages / "downloaded.json").write_text(json.dumps(document))
    plan = ckptplan.load_plan(pages / "downloaded.json")
    assert browser.text("#plan-label").startswith(plan.strategy)
    assert ckptplan.simulate(plan).local_peak_bytes == plan.predicted.local_peak_bytes
    check_quiet(browser, pages / "front.html")


def test_all_that_can_be_chosen_can_be_reached_by_keys(pages: Path, browser: Browser) -> None:
    browser.open(pages / "front.html")
    ActionChains(browser.driver).send_keys(Keys.TAB, Keys.ENTER).perform()
    browser.wait(lambda: browser.run("return document.activeElement.id") == "main")
    browser.run("document.querySelector('summary').focus()")
    ActionChains(browser.driver).send_keys(Keys.ENTER).send_keys(Keys.TAB, Keys.TAB).perform()
    browser.wait(lambda: browser.run("return document.activeElement.dataset.plan") == "0")
    before = browser.text("#plan-label")
    ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
    browser.wait(lambda: browser.text("#plan-label") != before)
    assert browser.find("button[data-plan='0']").get_attribute("aria-pressed") == "true"


def cells(browser: Browser) -> list[WebElement]:
    """The cells of the heat map, by row from below, then by column."""
    script = (
        "return [...document.querySelectorAll('#chart-sweep-1 svg .role-mark path')]"
        ".filter((cell) => cell.__data__ && cell.__data__.datum && 'steps' in cell.__data__.datum)"
        ".sort((one, other) => one.__data__.datum.y - other.__data__.datum.y"
        " || one.__data__.datum.x - other.__data__.datum.x)"
    )
    return list(browser.run(script))


def tells(browser: Browser, words: str) -> bool:
    return re.search(words, browser.text("#vg-tooltip-element")) is not None


def test_a_cell_of_a_sweep_tells_its_plan_or_why_nothing_fits(pages: Path, browser: Browser) -> None:
    browser.open(pages / "map.html")
    found = cells(browser)
    assert len(found) == 6
    workload, profile = ckptplan.load_workload("paper-snn"), ckptplan.load_profile("ipu-mk2")
    rows = list(ckptplan.sweep({"T": [64, 8192], "batch": [30, 60, 90]}, workloads=workload, profiles=profile))
    for cell, row in zip(found, rows, strict=True):
        browser.point_at(cell)
        what = row["strategy"] if row["fits"] else "nothing fits"
        told = rf"T{row['steps']:,}batch{row['batch']}.*{what}"
        browser.wait(partial(tells, browser, told))
    assert [row["fits"] for row in rows] == [True, True, True, True, True, False]
    check_quiet(browser, pages / "map.html")


def test_lines_of_a_sweep_name_the_machine_that_nothing_fits(pages: Path, browser: Browser) -> None:
    browser.open(pages / "lines.html")
    assert "Nothing fits at any T: ipu-mk1." in browser.text("#sweep-caption")
    drawn = browser.text("#chart-sweep svg")
    for word in ("ipu-mk2", "base", "revolve", "\N{MULTIPLICATION SIGN}"):
        assert word in drawn
    assert "ipu-mk1" not in drawn
    browser.open(pages / "nowhere.html")
    assert browser.text("#chart-sweep svg").count("\N{MULTIPLICATION SIGN}") == 2
    check_quiet(browser, pages / "nowhere.html")


def labels(browser: Browser, chart: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((label) => label.textContent)"
    return sorted(browser.run(script, f"#chart-{chart} svg .role-axis-label text"))


@pytest.mark.parametrize("chart", ["front", "schedule"])
def test_charts_zoom_by_button_wheel_and_drag_and_return(chart: str, pages: Path, browser: Browser) -> None:
    browser.open(pages / "front.html")
    whole = labels(browser, chart)
    browser.run("arguments[0].click()", browser.find(f"button[data-zoom='in'][data-chart='{chart}']"))
    browser.wait(lambda: labels(browser, chart) != whole)
    browser.run("arguments[0].click()", browser.find(f"button[data-zoom='reset'][data-chart='{chart}']"))
    browser.wait(lambda: labels(browser, chart) == whole)
    picture = browser.find(f"#chart-{chart} svg")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", picture)
    # What a wheel does to the part of the picture under the pointer; true if the page may scroll.
    wheel = (
        "const box = arguments[0].getBoundingClientRect();"
        "const where = {clientX: box.x + box.width / 2, clientY: box.y + 100};"
        "return document.elementFromPoint(where.clientX, where.clientY).dispatchEvent(new WheelEvent('wheel',"
        "{deltaY: -400, ctrlKey: arguments[1], bubbles: true, cancelable: true, ...where}))"
    )
    assert browser.run(wheel, picture, False)
    assert labels(browser, chart) == whole
    assert not browser.run(wheel, picture, True)
    browser.wait(lambda: labels(browser, chart) != whole)
    closer = labels(browser, chart)
    drag = ActionChains(browser.driver).move_to_element_with_offset(picture, 0, -40).click_and_hold()
    drag.move_by_offset(150, 0).move_by_offset(50, 0).release().perform()
    browser.wait(lambda: labels(browser, chart) != closer)
    check_quiet(browser, pages / "front.html")


def test_text_of_strangers_is_text(pages: Path, browser: Browser) -> None:
    """Markup, formulas and codes of names and reasons are shown; nothing of them becomes an element."""
    browser.open(pages / "hostile.html")
    assert "<script>alert(1)</script>" in browser.text("main")
    assert browser.run("return document.querySelectorAll('img, iframe, object, embed, svg script').length") == 0
    assert browser.run("return document.querySelectorAll('script').length") == 3
    content = (pages / "hostile.html").read_text()
    assert "<script>alert" not in content
    assert "<img src=x" not in content
    assert re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", content) is None


@pytest.mark.parametrize("name", [*COMMANDS, *INFEASIBLE])
def test_readers_that_do_not_see_the_page_find_their_way(name: str, pages: Path, browser: Browser) -> None:
    """Landmarks, headings in order, names of all controls, and tables whose headings are headings."""
    content = pages / name
    browser.driver.get(content.resolve().as_uri())
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


def test_light_dark_and_print(pages: Path, browser: Browser) -> None:
    """The theme is the reader's; in print it is black on white, without buttons, and with closed parts open."""
    look = (
        "const body = getComputedStyle(document.body);"
        "const text = document.querySelector('#chart-front .role-axis-label text');"
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
    assert not any(button.is_displayed() for button in browser.find_all("button"))
    pdf = browser.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(pdf["data"]).startswith(b"%PDF")
    assert browser.run("return document.querySelector('details').open")


@pytest.mark.parametrize("name", INFEASIBLE)
def test_a_page_of_a_job_that_nothing_fits_says_why(name: str, pages: Path, browser: Browser) -> None:
    browser.driver.get((pages / name).resolve().as_uri())
    browser.read_log()
    text = browser.text("main")
    assert "needs" in text
    assert "is too small" in text or "does not fit" in text
    if name != "no-compare.html":
        assert "any one of these changes makes a plan possible" in text
        assert "--local-bytes" in text
