"""A group of options is one argument of a command, and several options of its command line."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from ckptplan.cli.command import takes_groups

Count = Annotated[int, typer.Option("--count", help="How many.")]


@dataclass(frozen=True, kw_only=True)
class Size:
    count: Count = 1


@dataclass(frozen=True, kw_only=True)
class Box(Size):
    """A group that adds to another one."""

    label: Annotated[str, typer.Option("--label")] = "plain"


def run(command: Any, *arguments: str) -> str:
    app = typer.Typer(add_completion=False)
    app.command()(command)
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "80", "TERM": "dumb"})
    assert done.exit_code == 0, done.output
    return done.output


@takes_groups
def command(
    *,
    name: Annotated[str, typer.Argument()],
    before: Annotated[bool, typer.Option("--before")] = False,
    box: Box,
    after: Annotated[bool, typer.Option("--after")] = False,
) -> None:
    """Pack a box."""
    typer.echo(f"{name} {before} {box} {after}")


def test_a_group_is_made_of_its_options() -> None:
    assert run(command, "x", "--label", "red", "--after") == "x False Box(count=1, label='red') True\n"
    assert run(command, "x", "--count", "3") == "x False Box(count=3, label='plain') False\n"


def test_options_keep_the_order_of_parameters_and_fields_and_their_help() -> None:
    text = run(command, "--help")
    places = [text.index(option) for option in ("--before", "--count", "--label", "--after")]
    assert places == sorted(places)
    assert "Pack a box." in text
    assert "How many." in text
    assert "[default: 1]" in text


def test_an_option_that_two_groups_have_is_a_mistake() -> None:
    def command(*, size: Size, box: Box) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'count'"):
        takes_groups(command)
