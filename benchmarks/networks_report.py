"""The results of benchmarks/networks.py as tables of docs/networks.md, with the bounds."""

from __future__ import annotations

from typing import Any

from benchmarks.harness import DOCS, MIB, put_section, table

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
Row = dict[str, Any]


def document(results: Row) -> str:
    """Return a table for each network, and the bounds."""
    rows = [row for row in results["rows"] if row["steps"] > SHORT]
    parts = []
    for name in dict.fromkeys(row["network"] for row in rows):
        of_network = [row for row in rows if row["network"] == name]
        lines = [_line(row, _plain(rows, row)) for row in of_network]
        parts.append(f"**{name}** ({_changes(of_network)})\n\n{table(COLUMNS, lines)}")
    missed = [one for one in results["bounds"] if not one["kept"]]
    count = len(results["bounds"])
    told = f"ckptplan keeps {count - len(missed)} of {count} bounds ({BOUNDS})"
    parts.append(told + (". What it misses is bold." if missed else "."))
    parts.append(_short(results["rows"]))
    return "\n\n".join(parts) + "\n"


def _short(rows: list[Row]) -> str:
    """Return what ckptplan takes at the length that has no rows, and how many bounds it misses there."""
    ours = _ours(rows, SHORT)
    told = []
    for key in ("median_seconds", "live_bytes", "growth_bytes"):
        shares = sorted(row[key] / plain[key] for row, plain in ours)
        told.append(f"{shares[0]:.2g} to {shares[-1]:.2g}")
    missed = sum(not one["kept"] for pair in ours for one in bounds([*pair]))
    return (
        f"At T = {SHORT} no plan fits 15 %. At the least limit that is possible, ckptplan takes {told[0]} "
        f"times the plain loop's time, {told[1]} times its live tensors and {told[2]} times its growth of the "
        f"process; {missed} of the missed bounds are these."
    )


def _changes(rows: list[Row]) -> str:
    """Return the changed lines of each method; they do not depend on T."""
    changed = {row["method"]: f"+{row['lines_written']} -{row['lines_gone']}" for row in rows}
    return "; ".join(f"{method} {lines}" for method, lines in changed.items() if method != "plain")


BOUNDS = (
    f"at most {LINES} lines written, gradients within {GRADIENTS:g} of plain's, growth of the process at most "
    f"{GROWTH:g} of plain's"
)


def summary(results: Row) -> str:
    """Return a table of the converted programs at T = 256: lines, live tensors and growth of the process."""
    lines = [
        [row["network"], row["method"], f"+{row['lines_written']} -{row['lines_gone']}", *_sizes(row, plain, 1)]
        for row, plain in _ours(results["rows"], SUMMARISED)
    ]
    head = ["network", "with", "lines + and -", "live tensors", "growth of the process"]
    return table(head, lines) + "\n"


def in_short(results: Row) -> str:
    """Return a table of the plain loops beside ckptplan at the greatest T: live tensors, process, time."""
    lines = [
        [
            f"{row['network']}{row['method'].removeprefix('ckptplan')}",
            *_sizes(row, plain, 0),
            f"{plain['median_seconds']:.1f} to {row['median_seconds']:.1f} s",
        ]
        for row, plain in _ours(results["rows"], max(row["steps"] for row in results["rows"]))
    ]
    return table(["network", "live tensors", "growth of the process", "a training step"], lines) + "\n"


def _ours(rows: list[Row], steps: int) -> list[tuple[Row, Row]]:
    """Return the rows of ckptplan at a length, each with that of the plain loop."""
    return [
        (row, _plain(rows, row))
        for row in rows
        if row["steps"] == steps and row["method"].startswith("ckptplan")
    ]


def _sizes(row: Row, plain: Row, digits: int) -> list[str]:
    return [
        f"{plain[key] / MIB:,.{digits}f} to {row[key] / MIB:,.{digits}f} MiB"
        for key in ("live_bytes", "growth_bytes")
    ]


def write_document(results: Row) -> None:
    """Write the tables into the pages."""
    for page, text in ((PAGE, document(results)), (CONVERTED, summary(results)), (README, in_short(results))):
        put_section(page, "networks", text)


def bounds(rows: list[Row]) -> list[Row]:
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


def _plain(rows: list[Row], row: Row) -> Row:
    kind = row["network"], row["steps"], "plain"
    return next(one for one in rows if (one["network"], one["steps"], one["method"]) == kind)


def _line(row: Row, plain: Row) -> list[str]:
    method = row["method"]
    if row["asked_bytes"] != row["limit_bytes"]:
        # The limit asked for is too small for any plan.
        method += f", least: {row['limit_bytes'] / plain['live_bytes']:.0%}"
    missed = [one["what"].rpartition(", ")[2] for one in bounds([row, plain]) if not one["kept"]]
    growth, compared = _share(row, plain, "growth_bytes", MIB), _compared(row)
    return [
        f"{row['steps']:,}",
        f"**{method}**" if "lines" in missed else method,
        f"{row['first_seconds']:.2f}",
        _share(row, plain, "median_seconds", 1),
        _share(row, plain, "live_bytes", MIB),
        f"**{growth}**" if "growth" in missed else growth,
        f"**{compared}**" if "gradients" in missed else compared,
    ]


def _compared(row: Row) -> str:
    difference, finite = row["gradient_difference"], row.get("finite_share", 1.0)
    text = "" if difference is None else f"{difference:.0e}" if difference else "equal"
    return text if finite == 1 else f"{text} ({finite:.0%} finite)".strip()


def _share(row: Row, plain: Row, key: str, unit: int) -> str:
    digits = 2 if unit == 1 else 1
    told = f"{row[key] / unit:.{digits}f}"
    return told if row is plain else f"{told} ({row[key] / plain[key]:.2f})"
