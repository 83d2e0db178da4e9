"""Writes a hardware profile to start from: numbers from options, from questions, or from another profile."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import typer

from ckptplan.cli import options
from ckptplan.cli.cells import name_content
from ckptplan.cli.output import note, write_view
from ckptplan.cli.starters import ask, can_ask
from ckptplan.cli.wording import option_of
from ckptplan.errors import InputError, quote_value

_HEAD = """A machine and its memory, for ckptplan (docs/profiles.md): edit any number.
Say where a number comes from in a table of its own, as
  [local_bytes]
  value = "24 GB"
  grade = "A"  # A vendor, B measured by others, C secondary, D derived, M measured here, X assumed
  source = "https://..."
Plan with it: ckptplan optimize --profile ./{file}"""


@dataclass(frozen=True, kw_only=True)
class ProfileNumbers:
    """The numbers of a profile, as text; None where the other profile's, or the default, holds."""

    like: Annotated[
        str | None,
        typer.Option("--like", metavar="NAME|PATH", help="Take what is not given from this profile."),
    ] = None
    description: Annotated[
        str | None, typer.Option("--description", metavar="TEXT", help="What the machine is.")
    ] = None
    units: Annotated[
        str | None, typer.Option("--units", metavar="INTEGER", help="Tiles or cores with memory of their own.")
    ] = None
    local_bytes: Annotated[
        str | None, typer.Option("--local-bytes", metavar="SIZE", help="Memory of one unit, as '24 GB'.")
    ] = None
    headroom: Annotated[
        str | None, typer.Option("--headroom", metavar="SHARE", help="Share of it to leave free, as '10%'.")
    ] = None
    remote_bytes: Annotated[
        str | None,
        typer.Option(
            "--remote-bytes", metavar="SIZE", help="Remote memory in all, or 'unbounded'; 0 for none."
        ),
    ] = None
    write_bytes_per_second: Annotated[
        str | None,
        typer.Option("--write-bytes-per-second", metavar="RATE", help="Local to remote, as '12 GB/s'."),
    ] = None
    read_bytes_per_second: Annotated[
        str | None, typer.Option("--read-bytes-per-second", metavar="RATE", help="Remote to local.")
    ] = None
    latency_seconds: Annotated[
        str | None, typer.Option("--latency-seconds", metavar="TIME", help="Start of a message, as '10 us'.")
    ] = None
    float32_flops_per_second: Annotated[
        str | None,
        typer.Option("--float32-flops-per-second", metavar="RATE", help="Peak, as '19.5 TFLOP/s'."),
    ] = None
    float16_flops_per_second: Annotated[
        str | None, typer.Option("--float16-flops-per-second", metavar="RATE", help="Peak, also of bfloat16.")
    ] = None
    local_bytes_per_second: Annotated[
        str | None, typer.Option("--local-bytes-per-second", metavar="RATE", help="Peak of local memory.")
    ] = None
    launch_seconds: Annotated[
        str | None, typer.Option("--launch-seconds", metavar="TIME", help="Start of a kernel, as '5 us'.")
    ] = None
    power_watts: Annotated[
        str | None, typer.Option("--power-watts", metavar="NUMBER", help="Power under load, in watts.")
    ] = None
    price_per_hour: Annotated[
        str | None, typer.Option("--price-per-hour", metavar="NUMBER", help="Price of an hour.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the numbers that are given, ready for a profile. Raises InputError that names the option."""
        texts = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "like"}
        return {name: _read(name, text) for name, text in texts.items() if text is not None}


#: What is asked for on a terminal, with an answer to start from.
_QUESTIONS = {
    "local_bytes": ("Local memory of one unit", "24 GB"),
    "remote_bytes": ("Remote memory in all, 'unbounded' or 0", "unbounded"),
    "write_bytes_per_second": ("Rate from local to remote memory", "12 GB/s"),
    "read_bytes_per_second": ("Rate from remote to local memory", "12 GB/s"),
    "latency_seconds": ("Time to start a message", "10 us"),
    "float32_flops_per_second": ("Peak rate in float32", "20 TFLOP/s"),
    "local_bytes_per_second": ("Peak rate of local memory", "1 TB/s"),
    "launch_seconds": ("Time to start a kernel", "5 us"),
}


def write_profile(numbers: ProfileNumbers, *, output: str, format_: options.FormatName) -> None:
    """Write a profile and show it. Raises InputError that names the option."""
    from ckptplan.model.profile import HardwareProfile
    from ckptplan.report.inputs import view_profile
    from ckptplan.storage.files import write_text
    from ckptplan.storage.toml_files import commented_profile

    options.check_folders({"--output": output})
    options.keep_inputs({"--output": output}, numbers.like)
    name = name_content(output, "--output")
    if numbers.like is None and numbers.local_bytes is None:
        numbers = _ask(numbers)
    given = numbers.given()
    start: dict[str, Any] = {}
    if numbers.like is not None:
        other = options.load_profile(numbers.like, option="--like")
        start = {field: getattr(other, field) for field in type(other).model_fields}
        changed = [field for field in given if field != "description"]
        if changed:
            # What the other one is called no longer describes it.
            start["description"] = f"like {other.name}, but for {', '.join(changed)}"
        start["sources"] = {field: one for field, one in other.sources.items() if field not in given}
    try:
        profile = HardwareProfile(**{**start, **given, "name": name})
    except InputError as error:
        field = None if error.field is None else option_of(error.field)
        raise InputError(error.message, field=field, value=error.value, accepted=error.accepted) from None
    head = _HEAD.format(file=output.rpartition("/")[2])
    write_text(output, commented_profile(profile, head=head))
    note(f"profile written to {output}")
    write_view(view_profile(profile), options.OutputOptions(format=format_))


def _ask(numbers: ProfileNumbers) -> ProfileNumbers:
    if not can_ask():
        raise InputError(
            "is missing", field="--local-bytes", accepted="a size, as '24 GB', or another profile with --like"
        )
    answers: dict[str, Any] = {}
    for field, (question, default) in _QUESTIONS.items():
        if getattr(numbers, field) is None:
            answers[field] = ask(question, default)
    return replace(numbers, **answers)


def _read(name: str, text: str) -> object:
    """Return the number of an option; text with a unit is read by the profile itself. Raises InputError."""
    if name == "units":
        return options.plain_integer(text, option="--units", most=10**9)
    if name in {"power_watts", "price_per_hour"}:
        try:
            return float(text)
        except ValueError:
            raise InputError(
                f"{quote_value(text)} is not a number", field=option_of(name), value=text, accepted="as 2.50"
            ) from None
    return text
