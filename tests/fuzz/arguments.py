"""Makes hostile cases of arguments, axes of sweeps, surroundings and streams.

The commands and their options are those that typer knows, so a new option is attacked as soon as it exists.
"""

from __future__ import annotations

import enum
import random
from dataclasses import replace
from functools import cache
from typing import Any, get_args, get_origin

import typer

from ckptplan.cli.app import make_app
from ckptplan.storage.plans import plan_text
from tests.fuzz.case import DOCUMENTED, Case, Streams
from tests.fuzz.makers import CHEAP, make_file_case, plans
from tests.fuzz.values import AXES, JUNK, UNWRITABLE, VARIABLES, WRITABLE, WRONG_AXES, value_for

#: Commands that take seconds, and are only called with what they refuse.
_DEAR = {("calibrate",), ("validate",), ("paper",)}
#: How often a command is chosen, 1 unless it is named.
_WEIGHTS: dict[tuple[str, ...], int] = {
    ("optimize",): 6,
    ("compare",): 4,
    ("schedule",): 3,
    ("simulate",): 3,
    ("pareto",): 2,
    ("largest",): 2,
}
#: Commands that plan, and so get strategies that answer at once and few steps.
_PLANNERS = {("optimize",), ("compare",), ("pareto",), ("largest",), ("sweep",), ("sensitivity",)}
#: Every name of a file that is written, whatever the option is called.
_WRITING = (
    "-o", "--output", "--trace", "--gantt", "--plot", "--html", "--profile-out", "--markdown", "--pictures"
)  # fmt: skip
#: What takes seconds to write.
_PICTURES = ("--gantt", "--plot", "--html", "--pictures", "--markdown")
_STREAMS: tuple[Streams, ...] = ("output closed", "errors closed", "input closed", "output full", "errors full")


@cache
def commands() -> dict[tuple[str, ...], tuple[Any, ...]]:
    """Return the parameters of every command, by its words."""

    def walk(command: Any, words: tuple[str, ...]) -> dict[tuple[str, ...], tuple[Any, ...]]:
        if not hasattr(command, "commands"):
            return {words: tuple(command.params)}
        inner = [walk(one, (*words, name)) for name, one in command.commands.items()]
        return {words: parameters for found in inner for words, parameters in found.items()}

    return walk(typer.main.get_command(make_app()), ())


def choices(parameter: Any) -> tuple[str, ...]:
    """Return the values that typer accepts for an option, none if any text is."""
    kind = parameter.type_descriptor.annotation
    for one in (kind, *get_args(kind)):
        if get_origin(one) is not None and not isinstance(one, type):
            return tuple(str(value) for value in get_args(one))
        if isinstance(one, type) and issubclass(one, enum.Enum):
            return tuple(value.value for value in one)
    return ()


def make_arguments_case(name: str, chance: random.Random) -> Case:
    """Return a case of a command with accepted and hostile options."""
    known = commands()
    words = chance.choices(list(known), [_WEIGHTS.get(words, 1) for words in known])[0]
    arguments, outputs, wrong = list(words), set[str](), words in _DEAR
    files = {"plan.json": plan_text(chance.choice(plans())).encode()}
    for parameter in known[words]:
        if not parameter.opts[0].startswith("-") and (parameter.required or chance.random() < 0.5):
            value, refused = _argument(parameter, chance)
            arguments.append(value)
            wrong |= refused
        elif parameter.required:
            arguments += [parameter.opts[0], "lif"]
    options = [parameter for parameter in known[words] if parameter.opts[0].startswith("-")]
    given = []
    for parameter in chance.sample(options, k=min(len(options), chance.choice([0, 1, 2, 3, 5]))):
        texts, output, refused = _option(parameter, words, chance)
        given.append(texts)
        wrong |= refused
        outputs |= {output} if output else set()
    given += _keep_cheap(words, [text for texts in given for text in texts])
    if words in _DEAR:
        given.append(["--figure", "9"] if words == ("paper",) else ["--tolerance", "0"])
    junk = _junk(chance)
    arguments += [text for texts in given for text in texts]
    for text in junk:
        arguments.insert(chance.randrange(len(arguments) + 1), text)
    helped = bool({"-h", "--help", "--version"} & set(arguments))
    codes = frozenset({2}) if wrong and not helped and not junk else DOCUMENTED
    return Case(
        name=name,
        kind="arguments",
        arguments=tuple(text for text in arguments if "\0" not in text),
        files=files,
        outputs=frozenset(outputs),
        codes=codes,
        stdin=files["plan.json"] if chance.random() < 0.5 else b"\xff\x00",
    )


def _argument(parameter: Any, chance: random.Random) -> tuple[str, bool]:
    metavar = parameter.metavar or ""
    if metavar == "PLAN":
        return chance.choice(["plan.json", "plan.json", "plan.json", "-", "none.json", ".", "/dev/null"]), False
    if "|" in metavar and "PATH" not in metavar:
        known = metavar.split("|")
        return (chance.choice(known), False) if chance.random() < 0.8 else (chance.choice(JUNK), False)
    return value_for("NAME|PATH", chance, small=True)[0], False


def _option(parameter: Any, words: tuple[str, ...], chance: random.Random) -> tuple[list[str], str, bool]:
    """Return an option with its value, the file that it may write, and whether it is surely refused."""
    name = chance.choice(parameter.opts)
    if parameter.is_flag:
        return [name], "", False
    output, wrong = "", False
    known = choices(parameter)
    if known:
        value = chance.choice([*known, *known, *known, chance.choice(JUNK)])
        wrong = value not in known
    elif name in _WRITING:
        # Pictures take a second each: mostly the name is refused.
        picture = name in _PICTURES and chance.random() < 0.8
        value = chance.choice(
            UNWRITABLE if picture else (*WRITABLE, *WRITABLE, *UNWRITABLE, "/dev/null", "/dev/full")
        )
        output = value
        wrong = value == ""
    elif parameter.metavar == "NAME=VALUES":
        value = chance.choice([*AXES, *WRONG_AXES])
    elif parameter.metavar in ("NAMES|PATHS", "NAME|PATH") or "NAME" in (parameter.metavar or ""):
        value, wrong = chance.choice(["ipu-mk2", "paper-snn", "./plan.json", *JUNK]), False
    else:
        small = words in _PLANNERS and name not in ("--T", "--steps")
        value, wrong = value_for(parameter.metavar or "", chance, small=small)
    # The last one counts, and a value that looks like an option may be taken for one.
    wrong &= not parameter.multiple
    joined = name.startswith("--") and chance.random() < 0.3
    return ([f"{name}={value}"] if joined else [name, value]), output, wrong


def _keep_cheap(words: tuple[str, ...], given: list[str]) -> list[list[str]]:
    """Return options that keep a command quick, unless others of the same name were chosen."""
    more: list[list[str]] = []
    if words in _PLANNERS:
        more += [list(CHEAP)] if not any(text.startswith("--strategies") for text in given) else []
        chosen = any(text.startswith(("--T", "--steps")) for text in given)
        more += [["--T", "64"]] if not chosen and words not in (("sweep",), ("largest",)) else []
    if words == ("sweep",):
        more += [] if any(text.startswith("--jobs") for text in given) else [["--jobs", "1"]]
        more += [] if any(text.startswith("--over") for text in given) else [["--over", "batch=1,3"]]
    return more


def _junk(chance: random.Random) -> list[str]:
    """Return words that belong to no option, seldom any."""
    if chance.random() < 0.8:
        return []
    return chance.choices(
        ["--help", "-h", "--version", "--", "--bogus", "-x", "--T", "--format", "\u2014T", *JUNK], k=1
    )


def make_sweep_case(name: str, chance: random.Random) -> Case:
    """Return a sweep over hostile axes."""
    good = [chance.choice(AXES) for _ in range(chance.choice([0, 1, 1, 2]))]
    bad = (
        [chance.choice(WRONG_AXES) for _ in range(chance.choice([0, 1]))]
        if good
        else [chance.choice(WRONG_AXES)]
    )
    axes = [*good, *bad]
    chance.shuffle(axes)
    arguments = [part for axis in axes for part in ("--over", axis)]
    output = chance.choice(["", "", "out.csv", "out.jsonl", "out", "é.csv", *UNWRITABLE[:4]])
    arguments += ["-o", output] if output else []
    arguments += chance.choice([[], [], ["--format", "csv"], ["--format", "jsonl"], ["--format", "x"]])
    return Case(
        name=name,
        kind="sweep",
        arguments=(
            "sweep",
            *arguments,
            "--jobs",
            "1",
            *CHEAP,
            *([] if "T" in "".join(axes) else ["--T", "64"]),
        ),
        outputs=frozenset({output} - {""}),
        codes=frozenset({2}) if bad else frozenset({0, 2, 3}),
    )


def make_surroundings_case(name: str, chance: random.Random) -> Case:
    """Return a case of another kind, or of help, in hostile surroundings."""
    plain = [
        ("--help",),
        ("optimize", "--help"),
        ("optimize", "--T", "64", *CHEAP),
        ("profiles", "list"),
        ("--version",),
    ]
    kind = chance.choice(["arguments", "file", "plain"])
    if kind == "arguments":
        base = make_arguments_case(name, chance)
    elif kind == "file":
        base = make_file_case(name, chance.choice(["profile", "workload", "plan"]), chance)
    else:
        base = Case(name=name, kind="", arguments=chance.choice(plain), codes=frozenset({0}))
    chosen = chance.sample(list(VARIABLES), k=chance.choice([1, 1, 2, 4]))
    variables = {variable: chance.choice(VARIABLES[variable]) for variable in chosen}
    # A wrong variable may be refused.
    codes = base.codes | {2}
    return replace(base, kind="surroundings", environment=variables, codes=codes, process=chance.random() < 0.1)


def make_streams_case(name: str, chance: random.Random) -> Case:
    """Return a case with a closed or full standard stream."""
    plain = [
        ("--help",),
        ("optimize", "--T", "64", *CHEAP),
        ("profiles", "list", "--format", "json"),
        ("schedule", "-"),
    ]
    plain += [
        ("optimize", "--T", "64", *CHEAP, "-o", "out.json"),
        ("optimize", "--T", "x"),
        ("simulate", "plan.json"),
    ]
    plan = plan_text(plans()[0]).encode()
    return Case(
        name=name,
        kind="streams",
        arguments=chance.choice(plain),
        files={"plan.json": plan},
        stdin=plan,
        outputs=frozenset({"out.json"}),
        # 141 is what a shell reports for a program whose reader has gone.
        codes=frozenset({0, 2, 141}),
        streams=chance.choice(_STREAMS),
        process=chance.random() < 0.2,
    )
