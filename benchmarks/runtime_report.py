"""The results of benchmarks/runtime.py as a section of docs/measured.md, with the targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs/measured.md"
BEGIN, END = "<!-- benchmarks.runtime -->\n", "<!-- end -->\n"
FIRST_STEP = "plain, one step"
MIB = 2**20
REPLAY = "replay over forward, inputs "
COLUMNS = {
    "live_peak_bytes": "live tensors, MiB",
    "predicted_peak_bytes": "predicted",
    "process_peak_bytes": "process",
    "process_added_bytes": "its growth",
}
#: Columns of the table of ratios: a title, what is compared, and what it is compared with.
RATIOS = (
    ("time over checkpoint's", "time", "torch.utils.checkpoint"),
    ("over plain's", "time", "plain"),
    ("live over checkpoint's", "live peak", "torch.utils.checkpoint"),
    ("process over predicted", "process", "predicted"),
    ("its growth over predicted", "growth of the process", "predicted"),
)
ABOUT = (
    "`python -m benchmarks.runtime`, on one thread of a shared machine: T = 4,096, batch 32, 64 inputs, 256 "
    "neurons, fp32, the loss inside the chunk; medians of 5 rounds. Live tensors do not include parameters and "
    "inputs. The prediction covers checkpoints, tapes and saved spikes, but no gradients and workspaces. A "
    "fresh process is measured at its peak, with the growth that the run caused. "
    "`torch.utils.checkpoint` is non-reentrant."
)
ABOUT_RATIOS = (
    "Ratios, with the bound that was set where there is one (≤). `torch.utils.checkpoint` has the same chunks; "
    "beside `optimal` it is nested. The process is compared with the prediction and one plain step."
)
NAMES = {"lif": "Spiking neurons (LIF)", "gru": "GRU"}


def document(results: dict[str, Any]) -> str:
    """Return the tables."""
    parts = [ABOUT]
    for kind, name in NAMES.items():
        rows = [_row(line) for line in results["variants"] if line["network"] == kind]
        head = [f"| {' | '.join([name, 'time, s', *COLUMNS.values()])} |", "|" + "---|" * (2 + len(COLUMNS))]
        parts.append("\n".join([*head, *rows]))
    parts.append(" ".join(_replay(one, results["bounds"]) for one in results["replay"]))
    parts += [ABOUT_RATIOS, _ratios(results["bounds"])]
    return "\n\n".join(parts) + "\n"


def write_document(results: dict[str, Any]) -> None:
    """Write the tables into the page."""
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + document(results) + END + rest.partition(END)[2])


def _row(line: dict[str, Any]) -> str:
    seconds = f"{line['median_seconds']:.2f}" if "median_seconds" in line else ""
    sizes = [f"{line[key] / MIB:.2f}" if line.get(key) else "" for key in COLUMNS]
    return "| " + " | ".join([line["variant"], seconds, *sizes]) + " |"


def _replay(one: dict[str, Any], limits: list[dict[str, Any]]) -> str:
    limit = next(each for each in limits if each["what"] == f"{REPLAY}{one['inputs']}")
    return (
        f"Replay of a chunk of 64 steps, inputs {one['inputs']}: {one['replay_seconds'] * 1e3:.2f} ms, "
        f"{_bound(limit)} of its forward pass."
    )


def _ratios(limits: list[dict[str, Any]]) -> str:
    """Return the bounds with what was reached, a row for each plan and a column for each comparison."""
    cells: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for one in limits:
        kind, _, rest = one["what"].partition(", ")
        noun, _, names = rest.partition(": ")
        ours, _, theirs = names.partition(" over ")
        if ours:
            other = theirs.partition(",")[0].partition(" and ")[0]
            cells.setdefault((kind, ours), {})[noun, other] = _bound(one)
    rows = [
        " | ".join([f"{kind}, {ours}", *(row.get(column[1:], "") for column in RATIOS)])
        for (kind, ours), row in cells.items()
    ]
    head = " | ".join(["plan", *(column[0] for column in RATIOS)])
    return "\n".join([f"| {head} |", "|---" * (1 + len(RATIOS)) + "|", *(f"| {row} |" for row in rows)])


def _bound(one: dict[str, Any]) -> str:
    if one["at_most"] is None:
        return f"{one['reached']:.2f}"
    missed = ", missed" if one["reached"] > one["at_most"] else ""
    return f"{one['reached']:.2f} (≤ {one['at_most']:.2f}{missed})"


def bounds(lines: list[dict[str, Any]], replays: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the targets and the values reached."""
    peer, nested_, cell = (
        "torch.utils.checkpoint, chunk",
        "torch.utils.checkpoint, nested",
        "ckptplan, LIF cell",
    )
    standard, optimal, live = "ckptplan, standard", "ckptplan, optimal", "live_peak_bytes"
    found = [
        _ratio(lines, "lif", f"{cell}, standard", peer, at_most=0.80),
        _ratio(lines, "lif", f"{cell}, standard", "plain", at_most=1.15),
        _ratio(lines, "lif", f"{cell}, standard", peer, of=live, at_most=1.10),
        _ratio(lines, "lif", f"{cell}, standard", f"{cell}, base"),
        _ratio(lines, "lif", standard, peer, at_most=0.80),
        _ratio(lines, "lif", standard, "plain", at_most=1.30),
        _ratio(lines, "lif", standard, peer, of=live, at_most=1.10),
        _ratio(lines, "gru", standard, peer, at_most=0.85),
    ]
    for kind in ("lif", "gru"):
        found.append(_ratio(lines, kind, optimal, nested_, at_most=0.80))
        found.append(_ratio(lines, kind, optimal, nested_, of=live, at_most=1.0))
    for one, limit in zip(replays, (0.25, 0.15), strict=True):
        what = f"{REPLAY}{one['inputs']}"
        found.append({"what": what, "at_most": limit, "reached": one["ratio"]})
    planned = [line for line in lines if line.get("predicted_peak_bytes")]
    found += [_process(lines, line, of="process_peak_bytes", at_most=1.2) for line in planned]
    return found + [_process(lines, line, of="process_added_bytes", at_most=None) for line in planned]


def _line(lines: list[dict[str, Any]], kind: str, start: str) -> dict[str, Any]:
    return next(one for one in lines if one["network"] == kind and one["variant"].startswith(start))


def _ratio(
    lines: list[dict[str, Any]],
    kind: str,
    ours: str,
    theirs: str,
    *,
    of: str = "median_seconds",
    at_most: float | None = None,
) -> dict[str, Any]:
    one, other = _line(lines, kind, ours), _line(lines, kind, theirs)
    noun = "time" if of == "median_seconds" else "live peak"
    what = f"{kind}, {noun}: {one['variant']} over {other['variant']}"
    return {"what": what, "at_most": at_most, "reached": one[of] / other[of]}


def _process(
    lines: list[dict[str, Any]], line: dict[str, Any], *, of: str, at_most: float | None
) -> dict[str, Any]:
    """Return the memory of a fresh process over the prediction plus the memory of one step of plain BPTT."""
    first = _line(lines, line["network"], FIRST_STEP)
    noun = {"process_peak_bytes": "process", "process_added_bytes": "growth of the process"}[of]
    what = f"{line['network']}, {noun}: {line['variant']} over predicted and that of one plain step"
    return {"what": what, "at_most": at_most, "reached": line[of] / (line["predicted_peak_bytes"] + first[of])}
