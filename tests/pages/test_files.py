"""Files of pages: what is in them, what is refused, and what bounds them."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptplan
from ckptplan.report.blocks import Paragraph, Table
from ckptplan.report.formats import View
from ckptplan.report.front import view_front
from ckptplan.report.html.page import render_page
from tests.support import run, small_plan

PROFILE = ckptplan.load_profile("ipu-mk2")
WORKLOAD = ckptplan.load_workload("paper-snn")
#: The largest page of a plan of 4,096 steps, in bytes.
MOST_BYTES = 300_000


def test_a_page_refers_to_itself_alone_and_holds_the_plan(tmp_path: Path) -> None:
    ckptplan.save_plan(small_plan(), tmp_path / "plan.json")
    done = run("report", "plan.json", cwd=tmp_path)
    # On a busy machine, lines of progress come first.
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1] == "page written to report.html"
    page = (tmp_path / "report.html").read_text()
    links = re.findall(r'\b(?:href|src|srcset|action)\s*=\s*["\']?([^"\'\s>]*)', page)
    assert all(link.startswith(("#", "data:")) for link in links)
    targets = {link.removeprefix("#") for link in links if link.startswith("#")}
    assert targets <= set(re.findall(r'\bid="([^"]*)"', page))
    own, *_ = [link for link in links if link.startswith("data:application/json;base64,")]
    assert base64.b64decode(own.partition(",")[2]).decode() == (tmp_path / "plan.json").read_text()
    printed = run("report", "plan.json", "-o", "-", cwd=tmp_path)
    assert printed.stdout.startswith("<!DOCTYPE html>")
    assert "written" not in printed.stderr


def test_tables_of_a_page_are_the_tables_that_the_command_prints() -> None:
    front = ckptplan.pareto(WORKLOAD.with_steps(64), PROFILE, local_bytes="225 KiB")
    view = view_front(front)
    page = render_page(view)
    tables = [block for block in view.blocks() if isinstance(block, Table)]
    assert len(tables) == 2
    for table in tables:
        for cell in (cell for row in table.texts for cell in row):
            assert cell.replace("+", "&#43;") in page or cell in page


def test_validate_writes_a_page_of_what_it_measured(tmp_path: Path) -> None:
    small = WORKLOAD.with_steps(8).model_copy(
        update={"cell": "rnn(inputs=2, neurons=2)", "network": None, "batch": 2}
    )
    plan = ckptplan.optimize(small, PROFILE, strategies=["standard"])
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    command = ("validate", "plan.json", "--repeats", "1", "--cell", "rnn(inputs=2, neurons=2)")
    done = run(*command, "--html", "page.html", cwd=tmp_path)
    assert done.returncode in (0, 4), done.stderr
    page = (tmp_path / "page.html").read_text()
    assert '<h2 id="validation-title">Predicted and measured</h2>' in page
    assert page.count("<svg") == 1


def test_a_page_replaces_the_file_behind_a_link_whole(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("old")
    (tmp_path / "link.html").symlink_to("page.html")
    assert run("optimize", "--T", "64", "--html", "link.html", cwd=tmp_path).returncode == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").read_text().endswith("</html>\n")


@settings(max_examples=25)
@given(text=st.text())
def test_any_text_is_text_in_a_page(text: str) -> None:
    """In elements and attributes; lone surrogates, which no file can hold, as escapes."""
    page = render_page(View(kind=None, heading=text, title=text, blocks=lambda: [Paragraph(text)]))
    page.encode()
    assert page.count("<script") == 1
    assert page.count("<p") == 2


def test_pages_of_long_sequences_are_small(tmp_path: Path) -> None:
    """4,096 steps, and a schedule of a hundred thousand actions, whose page says that short ones are merged."""
    for line in (
        "optimize --T 4096 --profile ipu-mk2 -o plan.json",
        "report plan.json -o plan.html",
        "optimize --T 30000 --strategies revolve --local-bytes 3.2MB --objective memory --html long.html",
    ):
        assert run(*line.split(), cwd=tmp_path).returncode == 0
    assert 50_000 < (tmp_path / "plan.html").stat().st_size < MOST_BYTES
    page = (tmp_path / "long.html").read_text()
    assert len(page) < MOST_BYTES
    assert "are drawn together" in page


def test_the_page_of_a_plan_has_the_best_plan_of_the_front_beside_it_if_that_is_another_one() -> None:
    workload = WORKLOAD.with_steps(64)
    front = ckptplan.pareto(workload, PROFILE, local_bytes="230 kB", strategies="closed")
    remote = ckptplan.optimize(workload, PROFILE, local_bytes="230 kB", strategies=["remote"])
    for own, beside in ((remote, [front.best.strategy]), (front.best, [])):
        first, *others = view_front(front, own=own).plans()
        assert first.plan is own
        assert [shown.plan.strategy for shown in others] == beside


@pytest.mark.parametrize(("events", "message"), [(5, "too long to be drawn"), (10**6, "actions in")])
def test_a_page_says_how_much_of_a_schedule_it_draws(
    events: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckptplan.report.html import page
    from ckptplan.report.plan import view_plan
    from ckptplan.report.sketch import Detail

    monkeypatch.setattr(page, "_WHOLE", Detail(actions=events))
    plan = small_plan()
    assert message in render_page(view_plan(plan))
