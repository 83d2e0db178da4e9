"""The help of commands: an example of each, the strategies by name, and types that no line breaks."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from typer.core import TyperCommand, TyperGroup

#: One line to try for each command, as it is typed; tests run them.
EXAMPLES: Mapping[str, str] = {
    "": "ckptplan optimize --T 4096 --profile ipu-mk2",
    "optimize": "ckptplan optimize --T 4096 --profile ipu-mk2 -o plan.json",
    "compare": "ckptplan compare --T 3000 --profile ipu-mk2,nvidia-h200 --strategies paper",
    "pareto": "ckptplan pareto --T 1024 --at '400 KiB'",
    "largest": "ckptplan largest T --max-overhead 20%",
    "sweep": "ckptplan sweep --over T=256:16384:x2 --over batch=30,60,120 -o sweep.csv",
    "sensitivity": "ckptplan sensitivity --T 1024",
    "calibrate": "ckptplan calibrate --cell gru --batch 32 --T 256 --quick -o my-gru.toml",
    "validate": "ckptplan validate plan.json",
    "simulate": "ckptplan simulate plan.json --gantt schedule.png",
    "schedule": "ckptplan schedule plan.json -o schedule.jsonl",
    "report": "ckptplan report plan.json -o report.html",
    "paper": "ckptplan paper --figure 3",
    "profiles": "ckptplan profiles list",
    "profiles list": "ckptplan profiles list --format csv",
    "profiles show": "ckptplan profiles show nvidia-h200",
    "profiles check": "ckptplan profiles check ipu-mk2 nvidia-h200",
    "profiles new": "ckptplan profiles new --like nvidia-h200 --price-per-hour 3.5 -o my-h200.toml",
    "workloads": "ckptplan workloads list",
    "workloads list": "ckptplan workloads list --format csv",
    "workloads show": "ckptplan workloads show paper-snn",
    "workloads new": "ckptplan workloads new --kind lstm --batch 8 --neurons 64 -o my-lstm.toml",
    "schema": "ckptplan schema plan -o plan.schema.json",
}
#: Characters of choices that are shown as the type of an option.
_WIDEST = 12
#: Names of several strategies.
GROUPS: Mapping[str, str] = {
    "paper": "those of the paper",
    "regular": "those that loops with fixed strides run",
    "closed": "those that a few parameters determine, which answer at once",
    "all": "every strategy",
}


class HelpfulCommand(TyperCommand):
    """A command whose help ends in an example, and in the names of strategies if it takes any."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with types that fit their column."""
        return shorten_types(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        self.epilog = _make_epilog(ctx, self.params)
        self.help = join_lines(self.help or "")
        super().format_help(ctx, formatter)


class HelpfulGroup(TyperGroup):
    """A group of commands whose help ends in an example."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with types that fit their column."""
        return shorten_types(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        self.epilog = _make_epilog(ctx, self.params)
        self.help = join_lines(self.help or "")
        super().format_help(ctx, formatter)


def shorten_types(parameters: Iterable[Any]) -> list[Any]:
    """Return parameters with types that a narrow terminal has room for.

    Flags have no type that anybody types. Many choices, which the column of types would break within a word,
    are part of the description, which breaks between words.
    """
    found = list(parameters)
    for one in found:
        if getattr(one, "is_flag", False) and one.metavar is None:
            one.metavar = ""
        choices = _list_choices(getattr(getattr(one, "type_descriptor", None), "annotation", None))
        if one.metavar is None and len("|".join(choices)) > _WIDEST:
            one.metavar = "NAME"
            if one.param_type_name == "argument":
                # Its type has a column of its own, whatever its name.
                one.display_type_rich = lambda **_: None
            one.help = f"{(one.help or '').rstrip('.')}; one of {', '.join(choices[:-1])} or {choices[-1]}."
    return found


def _list_choices(annotation: Any) -> list[str]:
    """Return what an option accepts, if these are a few words."""
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [str(one.value) for one in annotation]
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [str(one) for one in inner]
    return [choice for one in inner for choice in _list_choices(one)]


def join_lines(text: str) -> str:
    """Return a docstring whose paragraphs are lines: a terminal breaks them where it ends."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)


def describe_strategies() -> dict[str, str]:
    """Return each strategy and each group of strategies that --strategies takes, with what it is."""
    from ckptplan.strategies.registry import all_strategies

    return {**{name: describe(one) for name, one in all_strategies().items()}, **GROUPS}


def describe(strategy: object) -> str:
    """Return what a strategy does, as the first line of its class says."""
    return (type(strategy).__doc__ or "").strip().partition("\n")[0].rstrip(".")


def find_example(path: str) -> str | None:
    """Return the example of a command, as 'profiles show'; None if it has none."""
    return EXAMPLES.get(path)


def _make_epilog(context: Any, parameters: Sequence[Any]) -> str:
    _, _, path = context.command_path.partition(" ")
    example = find_example(path)
    parts = [f"Example: {example}"] if example else []
    if any("--strategies" in one.opts for one in parameters):
        from ckptplan.strategies.registry import all_strategies

        parts.append(f"Strategies: {', '.join(all_strategies())}; groups: {', '.join(GROUPS)}.")
    return "\n\n".join(parts)


def explain_usage(error: Any) -> str:
    """Return the message of a wrong command line, with the option that was probably meant."""
    option = getattr(error, "option_name", None)
    if option is None or not hasattr(error, "possibilities"):
        return str(error.format_message())
    from ckptplan.errors import did_you_mean

    context = error.ctx
    known = [name for one in context.command.get_params(context) for name in one.opts] if context else []
    return f"{error.message}.{did_you_mean(option, known)}" if known else str(error.format_message())
