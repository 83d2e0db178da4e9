"""Files of pages: what is in them, what is refused, and what bounds them."""

from __future__ import annotations

import base64
import html.parser
import json
from pathlib import Path
from typing import Any

import altair
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptplan
from ckptplan.cost.case import Case
from ckptplan.report.blocks import Paragraph, Section, Table
from ckptplan.report.formats import View
from ckptplan.report.front import view_front
from ckptplan.report.gantt import Detail, TooLongToDraw, sketch_schedule
from ckptplan.report.html.page import encode_data, render_page
from ckptplan.report.sensitivity import view_sensitivity
from ckptplan.schedule.timeline import Event
from ckptplan.units import format_bytes
from tests.security.program import run_all
from tests.support import run, small_plan

PROFILE = ckptplan.load_profile("ipu-mk2")
WORKLOAD = ckptplan.load_workload("paper-snn")


class Links(html.parser.HTMLParser):
    """Collects what the elements of a page refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(
        self,
        tag: str,  # noqa: ARG002 - html.parser's signature
        attrs: list[tuple[str, str | None]],
    ) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src", "srcset", "action")]


def data_of(page: str) -> Any:
    return json.loads(page.partition('id="data">')[2].partition("</script>")[0])


def test_a_page_refers_to_itself_alone_and_holds_the_plan(tmp_path: Path) -> None:
    plan = small_plan()
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    done = run("report", "plan.json", cwd=tmp_path)
    # On a busy machine, lines of progress come first.
    said = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout, said) == (0, "", "page written to report.html")
    page = (tmp_path / "report.html").read_text()
    links = Links()
    links.feed(page)
    assert all(link.startswith(("#", "data:")) for link in links.found)
    [file] = [link for link in links.found if link.startswith("data:application/json;base64,")]
    assert base64.b64decode(file.partition(",")[2]).decode() == (tmp_path / "plan.json").read_text()
    assert data_of(page)["plans"][0]["content"] == (tmp_path / "plan.json").read_text()


def test_tables_of_a_page_are_those_that_the_command_prints() -> None:
    front = ckptplan.pareto(WORKLOAD.with_steps(64), PROFILE, local_bytes="230 kB")
    view = view_front(front)
    page = render_page(view_front(front))
    grids = [block for block in view.blocks() if isinstance(block, Table)]
    assert len(grids) == 2
    for grid in grids:
        for row in grid.texts:
            for cell in row:
                assert not cell or cell.replace("+", "&#43;") in page or cell in page


#: Command -> what is told.
REFUSED = {
    ("optimize", "--T", "64", "--html", "missing/x.html"): "--html: cannot be written: the folder of",
    ("optimize", "--T", "64", "--html", "-"): "--html: standard output carries the result",
    ("compare", "--T", "64", "--html", ""): "--html: an empty name is no file",
    ("pareto", "--T", "64", "--html", "."): "--html: '.' cannot be written: it is a folder",
    ("pareto", "--T", "64", "--html", "x", "-o", "x"): "--output: is also what --html writes",
    ("report", "plan.json", "-o", "plan.json"): "--output: is read by this command and would be lost",
    ("report", "plan.json", "-o", "missing/x.html"): "--output: cannot be written: the folder of",
    ("report", "none.json"): "none.json: cannot be read",
}


def test_files_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    ckptplan.save_plan(small_plan(), tmp_path / "plan.json")
    for done, told in zip(run_all(*REFUSED, folder=tmp_path).done, REFUSED.values(), strict=True):
        assert done.code == 2
        assert told in done.err
    assert not [*tmp_path.glob("*.html"), *tmp_path.glob("x")]


def test_validate_writes_a_page_of_what_it_measured(tmp_path: Path) -> None:
    workload = ckptplan.load_workload("paper-snn").with_steps(8)
    small = workload.model_copy(update={"cell": "rnn(inputs=2, neurons=2)", "network": None, "batch": 2})
    plan = ckptplan.optimize(small, PROFILE, strategies=["standard"])
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    command = ("validate", "plan.json", "--repeats", "1", "--cell", "rnn(inputs=2, neurons=2)")
    [done] = run_all((*command, "--html", "page.html"), folder=tmp_path).done
    assert done.code in (0, 4), done.err
    page = (tmp_path / "page.html").read_text()
    assert '<h2 id="numbers-title">Predicted and measured</h2>' in page
    assert "recomputed steps" in page or "steps run again" in page
    assert data_of(page)["plans"][0]["chart"] is not None


def test_a_plan_prints_in_two_lines() -> None:
    plan = small_plan()
    first, second = str(plan).splitlines()
    assert first.startswith("double chunk_size ")
    assert first.endswith(": paper-snn on ipu-mk2, T = 64")
    assert "over base" in second
    assert "KiB local" in second


def test_a_page_replaces_a_file_whole(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("old")
    (tmp_path / "link.html").symlink_to("page.html")
    [done] = run_all(("optimize", "--T", "64", "--html", "link.html"), folder=tmp_path).done
    assert done.code == 0
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "page.html").read_text().endswith("</html>\n")


def test_a_page_goes_to_standard_output_for_report(tmp_path: Path) -> None:
    ckptplan.save_plan(small_plan(), tmp_path / "plan.json")
    [done] = run_all(("report", "plan.json", "-o", "-"), folder=tmp_path).done
    assert done.out.startswith("<!DOCTYPE html>")
    assert done.err == ""


@settings(max_examples=25)
@given(text=st.text())
def test_any_text_is_text_in_a_page(text: str) -> None:
    """In elements, attributes and data; lone surrogates, which no file can hold, as escapes."""
    section = Section("a", "b", [Paragraph(text)])
    page = render_page(View(kind=None, title=text, lede=text, sections=lambda: [section]))
    page.encode()
    assert page.count("<script") == 1
    assert page.count("<p") == 4
    encoded = encode_data({"x": text})
    assert not set("<>&") & set(encoded)
    encoded.encode()
    json.loads(encoded)


def stripped(part: Any) -> Any:
    """A specification with little data: the schema takes long for much of it."""
    if isinstance(part, list):
        return [stripped(one) for one in part]
    if isinstance(part, dict):
        return {key: value[:1] if key == "values" and isinstance(value, list) else stripped(value)
                for key, value in part.items()}  # fmt: skip
    return part


def test_charts_are_what_the_schema_of_vega_lite_allows() -> None:
    workload = WORKLOAD.with_steps(64)
    front = ckptplan.pareto(workload, PROFILE, local_bytes="230 kB")
    study = ckptplan.sensitivity(workload, PROFILE, local_bytes="230 kB")
    for page in (
        render_page(view_front(front)),
        render_page(view_sensitivity(study)),
    ):
        data = data_of(page)
        specs = [*data["charts"].values(), *(plan["chart"]["spec"] for plan in data["plans"][:1])]
        assert specs
        for spec in specs:
            # The page fills in the width of its column.
            altair.Chart.from_dict(json.loads(json.dumps(stripped(spec)).replace('"container"', "400")))


def test_the_budget_of_a_front_is_named_as_the_axis_counts_it() -> None:
    """The axis leaves out what stays; so does the number of the budget, beside the whole."""
    front = ckptplan.pareto(WORKLOAD.with_steps(1024), PROFILE, local_bytes="512 KiB")
    free = format_bytes(front.budget_bytes - front.resident_bytes)
    assert front.resident_bytes
    text = render_page(view_front(front))
    assert f"budget: {free} of 512 KiB" in text
    assert "budget 512 KiB" not in text


def resident(plan: ckptplan.Plan) -> int:
    return Case(workload=plan.workload, profile=plan.profile).costs.resident_bytes


@pytest.mark.parametrize("detail", [Detail(), Detail(bars=5, intervals=7)], ids=["each", "together"])
@pytest.mark.parametrize("strategy", ["double", "hierarchical", "remote", "revolve"])
def test_a_sketch_keeps_ends_peaks_and_every_step_that_ran(strategy: str, detail: Detail) -> None:
    plan = small_plan(strategy)
    events: list[Event] = []
    trace = ckptplan.simulate(plan, sink=events.append)
    sketch = sketch_schedule(plan, detail=detail)
    assert sketch.seconds == pytest.approx(trace.seconds)
    assert max(local for _, local, _ in sketch.memory) == max(
        resident(plan), *(event.local_bytes for event in events)
    )
    assert max(remote for _, _, remote in sketch.memory) == max(event.remote_bytes for event in events)
    assert sketch.actions == trace.actions
    backward = np.zeros(plan.steps, dtype=bool)
    for kind, _, _, first, last in sketch.bars:
        if kind == "backward":
            backward[int(min(first, last)) : int(max(first, last))] = True
    assert backward.all()
    if detail.bars == 5:
        assert sketch.interval_seconds is not None
        assert len(sketch.bars) <= 10 * detail.intervals
        assert len(sketch.memory) <= 8 * detail.intervals


def test_a_schedule_of_a_hundred_thousand_actions_is_a_small_page(tmp_path: Path) -> None:
    """The plan is drawn by intervals; the page says so, and holds less than 5 MB."""
    job = ("--T", "30000", "--strategies", "revolve", "--local-bytes", "3.2 MB", "--objective", "memory")
    [done] = run_all(
        ("optimize", *job, "--html", "page.html", "--format", "json", "-o", "plan.json"), folder=tmp_path
    ).done
    assert done.code == 0, done.err
    plan = ckptplan.load_plan(tmp_path / "plan.json")
    with pytest.raises(TooLongToDraw):
        sketch_schedule(plan, detail=Detail(events=100_000))
    page = (tmp_path / "page.html").read_text()
    assert 1_000_000 < len(page) < 5_000_000
    drawn = data_of(page)["plans"][0]
    assert "are drawn together" in drawn["chart"]["caption"]
    layers = drawn["chart"]["spec"]["vconcat"][0]["layer"]
    assert 0 < sum(len(layer["data"]["values"]) for layer in layers) < 5_000
