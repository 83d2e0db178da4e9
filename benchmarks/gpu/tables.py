"""A table for the results of each stage of benchmarks.gpu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.accuracy_tables import table

Line = dict[str, Any]
MIB = 2**20
#: The most time over base and the goal, at ten times base's longest sequence; how much larger networks are.
MOST_OVERHEAD, GOAL_OVERHEAD, LARGER = 0.35, 0.10, 4
#: The most time of remote over standard where transfers are hidden.
MOST_REMOTE = 1.05


def _show(value: Any, form: str, factor: float = 1.0) -> str:
    """Return a number as text, an empty one if there is none."""
    return "" if value is None else format(value * factor, form)


def _tests(results: Line) -> list[str]:
    failed = [f"- `{name}`: {message}" for name, message in results["failed"].items()]
    head = (
        f"Tests on the device: {results['passed']} passed, {len(failed)} failed, {results['skipped']} skipped."
    )
    return [head, "\n".join(failed)] if failed else [head]


def _profile(results: Line) -> list[str]:
    rows = [
        [
            f"{one['bytes'] / MIB:g} MiB",
            "pinned" if one["pinned"] else "pageable",
            f"{one['write_bytes_per_second'] / 1e9:.2f} GB/s",
            f"{one['read_bytes_per_second'] / 1e9:.2f} GB/s",
        ]
        for one in results["transfers"]
    ]
    parts = [table(["copy of", "host memory", "to the host", "to the device"], rows)]
    if overlap := results.get("overlap"):
        parts.append(
            f"Copies beside compute: {overlap['compute_seconds'] * 1e3:.1f} ms of products and "
            f"{overlap['copy_seconds'] * 1e3:.1f} ms of copies take {overlap['both_seconds'] * 1e3:.1f} ms "
            f"together: {overlap['hidden_share']:.0%} of the shorter is hidden."
        )
    if profile := results.get("profile"):
        fields = (
            "local_bytes",
            "write_bytes_per_second",
            "read_bytes_per_second",
            "latency_seconds",
            "overlaps_compute",
        )
        rows = [
            [name, f"{profile[name]}", profile["sources"].get(name, {}).get("grade", "")] for name in fields
        ]
        parts.append(table(["field of the calibrated profile", "value", "grade"], rows))
    return parts


def _accuracy(results: Line) -> list[str]:
    rows = [
        [one["what"], f"{one['number']}", _bound(one["bound"]), f"{_bound(one['reached'])}{_miss(one)}"]
        for one in results.get("summary", ())
    ]
    parts = [table(["what", "of", "bound", "reached"], rows)]
    rows = []
    for one in results["networks"]:
        if "plans" not in one:
            rows.append([one["network"], one["status"], *[""] * 8])
        for plan in one.get("plans", ()):
            by_name = {row["quantity"]: row for row in plan["rows"]}
            rows.append(
                [
                    one["network"],
                    f"{plan['budget_share']:.0%}",
                    plan["strategy"],
                    *_compared(by_name.get("total"), "{:.3f} s", 1),
                    *_compared(by_name.get("local peak"), "{:.1f} MiB", 1 / MIB),
                    _show(plan["regret"], ".3f"),
                ]
            )
    head = ["network", "budget", "chosen", "time predicted", "measured", "error"]
    return [*parts, table([*head, "peak predicted", "measured", "error", "regret"], rows)]


def _bound(value: float) -> str:
    return f"{value:.3f}" if value >= 1 else f"{value:.1%}"


def _miss(one: Line) -> str:
    return " (missed)" if one["reached"] > one["bound"] else ""


def _compared(row: Line | None, form: str, factor: float) -> list[str]:
    if row is None or row["predicted"] is None:
        return ["", "", ""]
    error = f"{row['predicted'] / row['measured'] - 1:+.1%}"
    return [form.format(row["predicted"] * factor), form.format(row["measured"] * factor), error]


def _headline(results: Line) -> list[str]:
    rows = []
    for one in results["sequences"]:
        base = one.get("base", {})
        steps = f"{one['longest_of_base']:,} (the longest)"
        rows.append([one["network"], "plain", steps, "measured", *_cost(base), ""])
        rows += [
            [
                one["network"],
                line["variant"],
                f"{line['steps']:,}",
                line["status"],
                *_cost(line),
                _show(line.get("over_base"), "+.0%"),
            ]
            for line in one["variants"]
        ]
    head = ["network", "trained by", "T", "became", "time a step", "peak", "time over base"]
    parts = [
        f"A limit of {results['limit_bytes'] / MIB:,.0f} MiB for everything on the device:",
        table(head, rows),
    ]
    rows = []
    for one in results["networks"]:
        for name in ("base", "ckptplan"):
            line = one[name]
            numbers = [f"{line[key]:,}" if key in line else "" for key in ("neurons", "parameters")]
            peak = _show(line.get("peak_bytes"), ",.0f", 1 / MIB)
            rows.append(
                [one["network"], name, f"{one['steps']}", *numbers, _show(line.get("seconds"), ".2f"), peak]
            )
    head = ["network", "trained by", "T", "largest: neurons", "parameters", "time, s", "peak, MiB"]
    parts += [table(head, rows)] if rows else []
    return [*parts, table(["what", "aimed at", "reached"], _judge_headline(results))]


def _judge_headline(results: Line) -> list[list[str]]:
    """Return what was aimed at and what was reached; a way that did not run reaches nothing."""
    rows = []
    for one in results["sequences"]:
        ours = [line for line in one["variants"] if line["variant"].startswith("ckptplan")]
        least = min((line["over_base"] for line in ours if line.get("over_base") is not None), default=None)
        longer = ours[0]["steps"] // max(1, one["longest_of_base"]) if ours else 0
        missed = " (missed)" if least is None or least > MOST_OVERHEAD else ""
        reached = "no run" if least is None else f"{least:+.0%}"
        what = f"{one['network']}, {longer} times the longest sequence of base: time over base"
        rows.append([what, f"at most {MOST_OVERHEAD:.0%}; goal {GOAL_OVERHEAD:.0%}", reached + missed])
    for one in results["networks"]:
        ours, base = (one[name].get("parameters") for name in ("ckptplan", "base"))
        ratio = ours / base if ours and base else None
        missed = " (missed)" if ratio is None or ratio < LARGER else ""
        reached = "no run" if ratio is None else f"{ratio:.1f} times"
        what = f"{one['network']}, T = {one['steps']}: parameters of the largest network over base's"
        rows.append([what, f"at least {LARGER} times", reached + missed])
    return rows


def _cost(line: Line) -> list[str]:
    return [_show(line.get("seconds_per_step"), ".3f", 1e3) + " ms", _show(line.get("peak_bytes"), ",.1f", 1 / MIB) + " MiB"] if "seconds" in line else ["", ""]  # fmt: skip # noqa: E501


def _remote(results: Line) -> list[str]:
    rows = [
        [
            one["strategy"],
            f"{one['steps']:,}",
            ", ".join(f"{name} {value}" for name, value in one["parameters"].items()),
            f"{one['predicted_seconds']:.3f} s",
            f"{one['seconds']:.3f} s",
            f"{one['local_peak_bytes'] / MIB:,.1f} MiB",
            f"{one['remote_peak_bytes'] / MIB:,.1f} MiB",
        ]
        for one in results["compared"]
    ]
    head = ["strategy", "T", "parameters", "time predicted", "measured", "local, predicted", "remote"]
    standard, remote = results["compared"]
    hidden = "hidden" if results["hidden_as_planned"] else "not all hidden"
    ratio = remote["seconds"] / standard["seconds"]
    bound = results["hidden_as_planned"]
    limit = f"at most {MOST_REMOTE} where transfers are hidden; by the model they are {hidden} here"
    missed = " (missed)" if bound and ratio > MOST_REMOTE else ""
    parts = [table(head, rows), f"Remote over standard: {ratio:.3f}{missed}; {limit}."]
    trace = results.get("trace", {})
    if trace.get("status") == "measured":
        shares = " and ".join(
            f"{_show(trace[f'{way}_hidden_share'], '.0%')} of {trace[f'{way}_copies']} copies {text}"
            for way, text in (("DtoH", "to the host"), ("HtoD", "to the device"))
        )
        parts.append(f"Trace of PyTorch's profiler: {shares} (in time) ran beside kernels.")
    longest = results.get("longest", {})
    if "predicted" in longest:
        rows = [
            [name, f"{one['steps']:,}" if one["steps"] else "none", f"{one['bound_by']}"]
            for name, one in longest["predicted"].items()
        ]
        parts.append(table(["strategy", "longest T by the model", "bound by"], rows))
        ran = longest["ran"]
        parts.append(
            f"Executed with remote states: T = {ran['steps']:,} in {ran['seconds']:.2f} s (predicted "
            f"{ran['predicted_seconds']:.2f} s), {ran['remote_peak_bytes'] / MIB:,.1f} MiB in host memory."
        )
    return parts


def _compiled(results: Line) -> list[str]:
    rows = []
    for one in results["networks"]:
        plain: Line = next((line for line in one["variants"] if line["variant"] == "plain"), {})
        for line in one["variants"]:
            seconds, usual = line.get("median_seconds"), plain.get("median_seconds")
            rows.append(
                [
                    one["network"],
                    line["variant"],
                    line["status"],
                    _show(seconds, ".3f"),
                    _show(seconds / usual if seconds and usual else None, ".2f"),
                    _show(line.get("peak_bytes"), ",.1f", 1 / MIB),
                    _show(line.get("gradient_difference"), ".0e"),
                    _show(line.get("first_seconds"), ".1f"),
                    "; ".join(line.get("warnings", ())).replace("|", "/"),
                ]
            )
    head = ["network", "trained by", "became", "time, s", "over plain", "peak, MiB", "gradients differ by"]
    about = f"T = {results['steps']:,}, chunks of {results['chunk']} steps, pieces of {results['piece']}:"
    return [about, table([*head, "first call, s", "said"], rows)]


def _ddp(results: Line) -> list[str]:
    rows = [
        [one["backend"], one["device"], one["status"], _show(one.get("gradient_difference"), ".0e")]
        for one in results["cases"]
    ]
    return [
        f"DistributedDataParallel, {results['processes']} processes, {results['gpus']} GPUs:",
        table(["backend", "device", "became", "gradients differ from a plain loop by"], rows),
    ]


def _jax(results: Line) -> list[str]:
    if "programs" not in results:
        return [f"JAX: {results['status']}."]
    rows = []
    for one in results["programs"]:
        if "rows" not in one:
            rows.append([one["cell"], one["status"], "", "", "", ""])
        for line in one.get("rows", ()):
            rows.append(
                [
                    one["cell"],
                    line["program"],
                    f"{line['seconds']:.3f} s",
                    f"{line['compiled_bytes'] / MIB:,.2f} MiB",
                    f"{line['compile_seconds']:.1f} s",
                    f"{line['gradient_difference']:.0e}",
                ]
            )
    head = ["cell", "program", "time", "compiled memory", "compiled in", "gradients differ by"]
    return [f"JAX {results['jax']} on {results['device']}, T = {results['steps']:,}:", table(head, rows)]


TABLES: dict[str, Callable[[Line], list[str]]] = {
    "tests": _tests,
    "profile": _profile,
    "headline": _headline,
    "accuracy": _accuracy,
    "remote": _remote,
    "compiled": _compiled,
    "ddp": _ddp,
    "jax": _jax,
}
