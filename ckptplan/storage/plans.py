"""Reads and writes plans as JSON (docs/plan-format.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from ckptplan.errors import InputError, did_you_mean, refuse
from ckptplan.model.goal import CacheName
from ckptplan.model.plan import SCHEMA_VERSION, Plan, RegularPlan
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.storage.files import MOST_CHARACTERS, parse_json, read_text, write_text
from ckptplan.storage.schedules import KIND as SCHEDULE
from ckptplan.storage.schedules import nest_fields
from ckptplan.storage.versions import check_kind, explain_kind, keep_spikes_resident
from ckptplan.strategies.closed_form import SIZE_NAMES, ClosedForm
from ckptplan.strategies.registry import all_strategies, reader_of, strategy_of

#: The most characters of a plan that holds the decisions of a solved schedule.
_MOST_CHARACTERS = 16 * 2**20
#: The most states that a single message in the loops of a plan may list.
_MOST_LISTED = 1_000
#: The most members of a plan without its decisions. Each wrong member would become a separate error.
_MOST_MEMBERS = 10_000
_Part = TypeVar("_Part", HardwareProfile, Workload)


def plan_document(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON data in SI base units, with the hashes of workload and profile.

    The best regular plan also gets the loops of its schedule.
    """
    parts = {"workload": plan.workload.document(), "profile": plan.profile.document()}
    document = {**plan.model_dump(mode="json"), **parts}
    if plan.regular is not None and has_loops(plan.regular):
        document["regular"] = {**document["regular"], "loops": _write_loops(plan.regular, steps=plan.steps)}
    return document


def has_loops(plan: RegularPlan) -> bool:
    """Return whether files include the loops of a regular plan, whose messages list all their states."""
    return plan.parameters.get("nb_local", 1) <= _MOST_LISTED


def _write_loops(plan: RegularPlan, *, steps: int) -> list[dict[str, Any]]:
    """Return the loops of a regular schedule as JSON data."""
    strategy = _find_regular(plan, steps=steps)
    return nest_fields(strategy.loops(plan.parameters, steps=steps))


def _find_regular(plan: RegularPlan, *, steps: int) -> ClosedForm:
    """Return the strategy of a regular plan. Raises InputError if loops cannot run its schedule."""
    strategy = strategy_of(plan.strategy)
    strategy.check(plan.parameters, steps=steps)
    if not isinstance(strategy, ClosedForm) or not strategy.is_regular(plan.parameters, steps=steps):
        raise InputError(f"loops with fixed strides cannot run this {plan.strategy}", field="parameters")
    return strategy


def plan_text(plan: Plan) -> str:
    """Return a plan as JSON text."""
    import json

    return json.dumps(plan_document(plan), indent=2, allow_nan=False) + "\n"


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan; an existing file is replaced atomically. Raises InputError if it cannot be written."""
    if not isinstance(plan, Plan):
        raise refuse(plan, "is not a plan", field="plan", accepted="save_plan(plan, path)")
    write_text(path, plan_text(plan))


def load_plan(path: str | Path) -> Plan:
    """Return a plan from a JSON file; '-' is standard input. Earlier versions of the schema are converted.

    Raises InputError if the file is not a plan, or has another schema version, an unknown strategy or wrong
    parameters. Also raises it if the profile or the workload was edited, since the predictions are then wrong.
    """
    source = str(path)
    text = read_text(path, most=_MOST_CHARACTERS)
    if f'"{SCHEDULE}"' in text.partition("\n")[0]:
        raise InputError("is a schedule; give the plan that it was made from", source=source)
    try:
        document = parse_json(text, source=source)
    except InputError as error:
        raise explain_kind(text, wanted="plan", source=source) or error from None
    version = check_kind(document, kind="plan", source=source)
    _check_size(document, source=source)
    document = _convert(document, version=version)
    try:
        loops = _take_loops(document)
        parts = {
            "profile": _load_part(document, "profile", HardwareProfile),
            "workload": _load_part(document, "workload", Workload),
        }
        plan = Plan(**{**document, **parts})
        strategy = reader_of(plan.strategy, plan.splits)
        strategy.check(plan.parameters, steps=plan.steps, splits=plan.splits)
        _check_cache(plan, strategy.name_cache(plan.parameters, splits=plan.splits))
        _check_regular(plan, loops)
        return plan
    except InputError as error:
        raise error.inside(source=source) from None


def _check_cache(plan: Plan | RegularPlan, expected: CacheName) -> None:
    """Raise InputError unless the field ``cache`` agrees with the parameters and decisions of a plan."""
    if plan.cache != expected:
        raise InputError(
            f"is {plan.cache!r}, but the parameters of {plan.strategy} keep {expected!r}",
            field="cache",
            value=plan.cache,
            accepted=repr(expected),
        )


def _take_loops(document: dict[str, Any]) -> object:
    """Remove the loops of the regular plan from a document, and return them; None if there are none."""
    regular = document.get("regular")
    if not isinstance(regular, dict):
        return None
    document["regular"] = {name: value for name, value in regular.items() if name != "loops"}
    return regular.get("loops")


def _check_regular(plan: Plan, loops: object) -> None:
    """Raise InputError if loops cannot run the regular plan's schedule, or if ``loops`` are given and wrong."""
    if plan.regular is None:
        return
    try:
        strategy = _find_regular(plan.regular, steps=plan.steps)
        _check_cache(plan.regular, strategy.name_cache(plan.regular.parameters))
    except InputError as error:
        raise error.inside(prefix="regular") from None
    if loops is None:
        return
    if not has_loops(plan.regular) or loops != _write_loops(plan.regular, steps=plan.steps):
        raise InputError(
            "are not those of the strategy and its parameters",
            field="regular.loops",
            accepted="the loops that ckptplan wrote; make a new plan",
        )


def _check_size(document: dict[str, Any], *, source: str) -> None:
    """Raise InputError if a plan is too large without its decisions."""
    import json

    small = json.dumps({name: value for name, value in document.items() if name != "splits"})
    if len(small) > MOST_CHARACTERS:
        raise InputError("is too large", source=source, accepted="plans up to 1 MiB without their decisions")
    if small.count(",") > _MOST_MEMBERS:
        raise InputError(
            f"has more than {_MOST_MEMBERS:,} members without its decisions",
            source=source,
            accepted="a plan as ckptplan writes it",
        )


def _convert(document: dict[str, Any], *, version: int) -> dict[str, Any]:
    """Convert a plan of an earlier program. Parts that are no plan of any version stay, and are refused later.

    Version 1 called the segment length of ``nested`` ``remote_chunk_size``. Before version 3, the spikes of all
    steps stayed resident, and blocks of solved schedules were called chunks. Then ``regular`` was whether the
    plan itself is regular, which a plan with a list of decisions is not.
    """
    document, parameters = {**document, "schema_version": SCHEMA_VERSION}, document.get("parameters")
    if isinstance(parameters, dict):
        names = {"chunk_size": "block_size"} if document.get("splits") else {}
        old_names = ("chunk_size", "remote_chunk_size")
        if version == 1 and document.get("strategy") == "nested" and tuple(parameters) == old_names:
            names = {"remote_chunk_size": "segment_size"}
        document["parameters"] = {names.get(name, name): size for name, size in parameters.items()}
    if version < SCHEMA_VERSION and isinstance(document.get("workload"), dict):
        document["workload"] = keep_spikes_resident(document["workload"])
    document = _convert_adopted(document)
    if isinstance(document.get("regular"), bool):
        is_regular = document["regular"] and not document.get("splits")
        fields = ("strategy", "parameters", "cache", "predicted")
        regular_plan = {name: document[name] for name in fields if name in document}
        document["regular"] = regular_plan if is_regular else None
    return document


def _convert_adopted(document: dict[str, Any]) -> dict[str, Any]:
    """Convert a plan of ``optimal`` whose only decision names a closed form to a plan of that form.

    Earlier programs wrote such plans. The decision's ``length`` and ``count`` are the parameters of the closed
    form that sizes do not determine.
    """
    splits, sizes = document.get("splits"), document.get("parameters")
    if not (isinstance(splits, list) and len(splits) == 1 and isinstance(splits[0], dict)):
        return document
    form = all_strategies().get(str(splits[0].get("choice")))
    if not isinstance(form, ClosedForm) or not isinstance(sizes, dict):
        return document
    values = iter((splits[0].get("length"), splits[0].get("count")))
    parameters = {
        name: sizes.get(name) if name in SIZE_NAMES else next(values, None) for name in form.parameter_names
    }
    return {**document, "strategy": form.name, "parameters": parameters, "splits": None}


def _load_part(document: dict[str, Any], name: str, model: type[_Part]) -> _Part:
    entry = document.get(name)
    if not isinstance(entry, dict):
        likely = did_you_mean(name, document) if name not in document else ""
        raise InputError(f"is missing, or is not an object.{likely}", field=name)
    try:
        part = model(**{key: value for key, value in entry.items() if key != "hash"})
    except InputError as error:
        raise error.inside(prefix=name) from None
    if entry.get("hash") != part.hash:
        raise InputError(
            "does not match its numbers: the file was edited; make a new plan",
            field=f"{name}.hash",
            value=entry.get("hash"),
            accepted=part.hash,
        )
    return part
