"""The law of narrow terminals: every command of the documents prints whole words and numbers at any width.

The commands are run once, with shorter sequences; what they print is drawn at 60, 80 and 120 columns and
compared with a console so wide that nothing is broken.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ckptplan
from ckptplan.calibration.estimate import Estimate
from ckptplan.calibration.validation import Regret, Row
from ckptplan.cli.app import make_app
from ckptplan.report.blocks import Block
from ckptplan.report.formats import Format
from ckptplan.report.validation import view_validation
from tests.calibration.test_verdicts import contender, exactly, made
from tests.support import small_plan, told

#: It runs every documented command.
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
#: Commands that measure, or need what only they write; and those that print no table.
LEFT_OUT = re.compile(
    r" (calibrate|validate|schedule|report|new|init) |my-|--format|--help|small.json|sweep.*-o |--merge|\\ "
)
#: Tables that the documents do not show.
OTHERS = (
    "ckptplan profiles show nvidia-h200",
    "ckptplan workloads show paper-snn",
    "ckptplan paper --figure 3",
    "ckptplan optimize --T 1024 --basis",
)
#: A line with a longer word, such as an address, may be wider than the console.
LONG_WORD = 24
Blocks = Sequence[Block]


def documented() -> list[str]:
    """Every command of the documents that prints a table, once, with a shorter sequence."""
    found: dict[str, str] = {}
    for page in PAGES:
        for line in re.findall(r"^\.venv/bin/(ckptplan .*)$", page.read_text(), re.M):
            command = re.sub(r" (-o|--plot|--gantt|--trace|--html|--size) \S+", "", line)
            command = (
                command.replace("--T 4096", "--T 512").replace(" --profile ipu-mk2 ", " ").partition(" |")[0]
            )
            if not LEFT_OUT.search(f"{command} "):
                found.setdefault(command, command)
    return list(found)


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Blocks]:
    """What commands print, as blocks; in a folder with a plan."""
    found: list[Blocks] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Format, "write", lambda _self, view, _path: found.append(tuple(view.blocks())))
    for name in ("plan.json", "smaller.json"):
        ckptplan.save_plan(small_plan(), name)
    # What a page writes first.
    ckptplan.save_workload(ckptplan.load_workload("paper-snn").with_steps(64), "snn.toml")
    assert CliRunner().invoke(make_app(), ["schedule", "plan.json", "-o", "schedule.jsonl"]).exit_code == 0
    return found


def words_of(text: str) -> set[str]:
    """The words of a text, without the commas that follow some of them."""
    return {word.rstrip(",") for word in text.split()}


def is_kept(blocks: Blocks) -> None:
    """Every word of a narrow console is one of a wide one, and every line fits that can be broken."""
    words = words_of(told(blocks, width=2000))
    for width in (60, 80, 120):
        shown = told(blocks, width=width)
        left = re.sub(r"Left out in (?:.|\n)*?show\s+all\.", "", shown)
        assert words_of(left) <= words, (width, words_of(left) - words)
        for line in shown.splitlines():
            has_long_word = max(map(len, line.split()), default=0) > LONG_WORD
            # Numbers stay with their units and signs, as in '1472 x 624 KiB = 897.0 MiB,'.
            is_one_piece = has_long_word or len(line.strip()) <= 32
            assert len(line) <= width or is_one_piece, (width, line)


def test_the_documents_have_such_commands() -> None:
    names = {command.split()[1] for command in documented()}
    assert names >= {"optimize", "compare", "pareto", "largest", "sweep", "sensitivity", "simulate", "paper"}


@pytest.mark.parametrize("command", [*documented(), *OTHERS])
def test_words_and_numbers_are_whole_at_every_width(command: str, drawn: list[Blocks]) -> None:
    done = CliRunner().invoke(make_app(), shlex.split(command)[1:], prog_name="ckptplan")
    assert done.exit_code == 0, done.output
    assert drawn
    for blocks in drawn:
        is_kept(blocks)


def test_a_validation_is_whole_at_every_width() -> None:
    rows = [
        Row.judged("steps run again", predicted=1234567, measured=1234567, unit="count", tolerance=0.0),
        Row.judged(
            "recomputation", predicted=exactly(1.23e-3), measured=Estimate.of([1.2e-3, 1.3e-3]), tolerance=0.1
        ),
        Row.judged("overhead", predicted=exactly(0.1), measured=exactly(0.15), tolerance=0.03, unit="share"),
    ]
    regret = Regret(contenders=(contender("double-growing", 1.0), contender("base", 2.0)))
    is_kept(tuple(view_validation(made(*rows, regret=regret)).blocks()))
