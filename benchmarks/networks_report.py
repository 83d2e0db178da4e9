"""The results of benchmarks/networks.py as tables of docs/networks.md, with the bounds."""

from __future__ import annotations

from typing import Any

from benchmarks.harness import DOCS, MIB, put_section

PAGE, README = DOCS / "networks.md", DOCS.parent / "README.md"
CONVERTED = DOCS.parent / "examples/convert/README.md"
#: At this length nothing is gained, and the page has a line instead of rows.
SHORT = 16
#: The length that the page of the converted programs shows.
SUMMARISED = 256
COLUMNS = (
    "T",
    "method",
    "first step, s",
    "later",
    "live tensors, MiB",
    "growth, MiB",
    "gradients",
)
LINES, GRADIENTS, GROWTH = 6, 1e-5, 0.25


def document(results: dict[str, Any]) -> str:
    """Return a table for each network, and the bounds."""
    rows = [row for row in results["rows"] if row["steps"] > SHORT]
    parts = []
    for name in dict.fromkeys(row["network"] for row in rows):
        of_network = [row for row in rows if row["network"] == name]
        lines = [_line(row, _plain(rows, row)) for row in of_network]
        head = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
        parts.append("\n".join([f"**{name}** ({_changes(of_network)})\n", *head, *lines]))
    missed = [one for one in results["bounds"] if not one["kept"]]
    count = len(results["bounds"])
    told = f"ckptplan keeps {count - len(missed)} of {count} bounds ({BOUNDS})"
    parts.append(told + (". What it misses is bold." if missed else "."))
    parts.append(_short(results["rows"]))
    return "\n\n".join(parts) + "\n"


def _short(rows: list[dict[str, Any]]) -> str:
    """Return what ckptplan takes at the length that has no rows, and how many bounds it misses there."""
    ours = [row for row in rows if row["steps"] == SHORT and row["method"].startswith("ckptplan")]
    told = []
    for key in ("median_seconds", "live_bytes", "growth_bytes"):
        shares = sorted(row[key] / _plain(rows, row)[key] for row in ours)
        told.append(f"{shares[0]:.2g} to {shares[-1]:.2g}")
    missed = sum(not one["kept"] for row in ours for one in bounds([row, _plain(rows, row)]))
    return (
        f"At T = {SHORT} no plan fits 15 %. At the least limit that is possible, ckptplan takes {told[0]} "
        f"times the plain loop's time, {told[1]} times its live tensors and {told[2]} times its growth of the "
        f"process; {missed} of the missed bounds are these."
    )


def _changes(rows: list[dict[str, Any]]) -> str:
    """Return the changed lines of each method; they do not depend on T."""
    changed = {row["method"]: f"+{row['lines_written']} -{row['lines_gone']}" for row in rows}
    return "; ".join(f"{method} {lines}" for method, lines in changed.items() if method != "plain")


BOUNDS = (
    f"at most {LINES} lines written, gradients within {GRADIENTS:g} of plain's, growth of the process at most "
    f"{GROWTH:g} of plain's"
)


def summary(results: dict[str, Any]) -> str:
    """Return a table of the converted programs at T = 256: lines, live tensors and growth of the process."""
    lines = [
        "| network | with | lines + and - | live tensors | growth of the process |",
        "|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        if row["steps"] == SUMMARISED and row["method"].startswith("ckptplan"):
            plain = _plain(results["rows"], row)
            live, growth = [
                f"{plain[key] / MIB:.1f} to {row[key] / MIB:.1f} MiB" for key in ("live_bytes", "growth_bytes")
            ]
            changed = f"+{row['lines_written']} -{row['lines_gone']}"
            lines.append(f"| {row['network']} | {row['method']} | {changed} | {live} | {growth} |")
    return "\n".join(lines) + "\n"


def in_short(results: dict[str, Any]) -> str:
    """Return a table of the plain loops beside ckptplan at the greatest T: live tensors, process, time."""
    lines = ["| network | live tensors | growth of the process | a training step |", "|---|---|---|---|"]
    most = max(row["steps"] for row in results["rows"])
    for row in results["rows"]:
        if row["steps"] == most and row["method"].startswith("ckptplan"):
            plain = _plain(results["rows"], row)
            sizes = " | ".join(
                f"{plain[key] / MIB:,.0f} to {row[key] / MIB:,.0f} MiB"
                for key in ("live_bytes", "growth_bytes")
            )
            network = f"{row['network']}{row['method'].removeprefix('ckptplan')}"
            times = f"{plain['median_seconds']:.1f} to {row['median_seconds']:.1f} s"
            lines.append(f"| {network} | {sizes} | {times} |")
    return "\n".join(lines) + "\n"


def write_document(results: dict[str, Any]) -> None:
    """Write the tables into the pages."""
    for page, text in ((PAGE, document(results)), (CONVERTED, summary(results)), (README, in_short(results))):
        put_section(page, "networks", text)


def bounds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the bounds for each row of ckptplan, and what was reached."""
    found = []
    for row in rows:
        if row["method"].startswith("ckptplan"):
            reached = {
                "lines": (row["lines_written"], LINES),
                "gradients": (row["gradient_difference"], GRADIENTS),
                "growth": (row["growth_bytes"] / _plain(rows, row)["growth_bytes"], GROWTH),
            }
            for what, (value, limit) in reached.items():
                where = f"{row['network']}, T = {row['steps']:,}, {row['method']}, {what}"
                found.append({"what": where, "at_most": limit, "reached": value, "kept": value <= limit})
    return found


def _plain(rows: list[dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    kind = row["network"], row["steps"], "plain"
    return next(one for one in rows if (one["network"], one["steps"], one["method"]) == kind)


def _line(row: dict[str, Any], plain: dict[str, Any]) -> str:
    method = row["method"]
    if row["asked_bytes"] != row["limit_bytes"]:
        # The limit asked for is too small for any plan.
        method += f", least: {row['limit_bytes'] / plain['live_bytes']:.0%}"
    missed = [one["what"].rpartition(", ")[2] for one in bounds([row, plain]) if not one["kept"]]
    growth, compared = _share(row, plain, "growth_bytes", MIB), _compared(row)
    cells = [
        f"{row['steps']:,}",
        f"**{method}**" if "lines" in missed else method,
        f"{row['first_seconds']:.2f}",
        _share(row, plain, "median_seconds", 1),
        _share(row, plain, "live_bytes", MIB),
        f"**{growth}**" if "growth" in missed else growth,
        f"**{compared}**" if "gradients" in missed else compared,
    ]
    return "| " + " | ".join(cells) + " |"


def _compared(row: dict[str, Any]) -> str:
    difference, finite = row["gradient_difference"], row.get("finite_share", 1.0)
    text = "" if difference is None else f"{difference:.0e}" if difference else "equal"
    return text if finite == 1 else f"{text} ({finite:.0%} finite)".strip()


def _share(row: dict[str, Any], plain: dict[str, Any], key: str, unit: int) -> str:
    digits = 2 if unit == 1 else 1
    told = f"{row[key] / unit:.{digits}f}"
    return told if row is plain else f"{told} ({row[key] / plain[key]:.2f})"
