"""What benchmarks share: a device and sizes, runs in turn, results with their machine, and tables of pages.

A benchmark has ``run(setting)``, which returns plain data, and ``PAGES``: functions that make the sections of
pages from the data. ``main`` is its command; ``benchmarks.gpu`` starts several of these on a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MIB, GIB = 2**20, 2**30
_END = "<!-- end -->\n"
_T = TypeVar("_T")


class NeedsCudaError(SystemExit):
    """A benchmark measures nothing without a CUDA device."""

    def __init__(self) -> None:
        super().__init__("needs a CUDA device")


class ExhaustedError(Exception):
    """A run did not fit the memory."""


@dataclass(kw_only=True)
class Setting:
    """Where and how much to measure.

    Arguments:
        device: 'cpu' or 'cuda'.
        small: whether sizes are so small that everything runs in seconds, to see that it runs.
        seconds: how long it may take; what was saved by then is kept.
        folder: for files beside the results, such as traces.
        parts: what is measured, of a benchmark that has parts.
        save: keeps what was measured so far.
    """

    device: str = "cpu"
    small: bool = False
    seconds: float = 3600.0
    folder: Path = RESULTS
    parts: tuple[str, ...] = ()
    save: Callable[[Any], None] = lambda _: None
    began: float = field(default_factory=time.monotonic)
    #: What failed; the other measurements went on.
    failures: list[str] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether networks run on a GPU."""
        return self.device == "cuda"

    @property
    def seconds_left(self) -> float:
        """The seconds until the benchmark is stopped."""
        return self.seconds - (time.monotonic() - self.began)

    def pick(self, small: _T, cpu: _T, gpu: _T) -> _T:
        """Return one of three sizes."""
        return small if self.small else gpu if self.on_gpu else cpu

    def attempt(self, what: str, action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what an action measures, or why it failed: the other measurements go on."""
        try:
            found = {"status": "measured", **action()}
        except ExhaustedError as error:
            found = {"status": str(error)}
        except Exception as error:
            # Whatever it is, it is written down and shown.
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
            self.failures.append(f"{what}: {text}")
            found = {"status": f"failed: {text}"}
        clean(self)
        return found


def clean(setting: Setting) -> None:
    """Release what earlier runs left."""
    gc.collect()
    if setting.on_gpu:
        import torch

        torch.cuda.empty_cache()


def wait(setting: Setting) -> None:
    """Wait for the device."""
    if setting.on_gpu:
        import torch

        torch.cuda.synchronize()


def time_in_turn(
    jobs: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    setting: Setting | None = None,
    before: Callable[[], object] | None = None,
) -> dict[str, list[float]]:
    """Return the seconds of each job in each round; jobs run in turn, in an order that rotates.

    Processor time, since machines that run benchmarks are busy; on a GPU the time until it is at rest. What
    is done ``before`` each run is not timed.
    """
    on_gpu = setting is not None and setting.on_gpu
    clock = time.perf_counter if on_gpu else time.process_time
    times: dict[str, list[float]] = {name: [] for name in jobs}
    names = list(jobs)
    gc.collect()
    gc.disable()
    try:
        for round_ in range(rounds):
            shift = round_ % len(names)
            for name in (*names[shift:], *names[:shift]):
                if before is not None:
                    before()
                begun = clock()
                jobs[name]()
                if setting is not None:
                    wait(setting)
                times[name].append(clock() - begun)
    finally:
        gc.enable()
    return times


def spread(times: Sequence[float]) -> dict[str, float]:
    """Return the median, minimum and maximum of some timings."""
    return {"median_seconds": statistics.median(times), "least": min(times), "most": max(times)}


def find_ratio(times: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """Return the median of what a job took over what another one took in the same round."""
    return statistics.median(mine / theirs for mine, theirs in zip(times[one], times[other], strict=True))


def find_difference(ones: Sequence[Any], others: Sequence[Any]) -> float:
    """Return the largest difference of two lists of gradients, as a share of the largest entry of each."""
    pairs = zip(ones, others, strict=True)
    return max(float(abs(one - other).max() / max(float(abs(other).max()), 1e-30)) for one, other in pairs)


def write(name: str, results: Any) -> None:
    """Write results with the machine, the versions and the command."""
    import ckptplan

    document = {
        "benchmark": name,
        "command": f"python -m benchmarks.{name}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "ckptplan": ckptplan.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor_count": os.cpu_count(),
        "results": results,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    sys.stdout.write(f"written to benchmarks/results/{path.name}\n")


def read(name: str) -> Any:
    """Return the results of the last run of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text())["results"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def tabulate(rows: Iterable[Any], *columns: tuple[Any, ...]) -> str:
    """Return a table of Markdown with a row for each of ``rows``, which are dictionaries.

    A column is its head; the name of a field, or a function of a row; then, if numbers are to be formatted, the
    format as for ``str.format``, and a factor. A field that is missing or None leaves its cell empty.
    """

    def fill(row: Any, what: Any, form: str = "{}", factor: float | None = None) -> str:
        value = what(row) if callable(what) else row.get(what)
        return "" if value is None else form.format(value if factor is None else value * factor)

    lines = ([fill(row, *how) for _, *how in columns] for row in rows)
    return table([head for head, *_ in columns], lines)


def pivot(corner: str, cells: Iterable[tuple[str, str, str]]) -> str:
    """Return a table of Markdown of cells, each with the head of its row and of its column."""
    rows: dict[str, dict[str, str]] = {}
    for row, column, text in cells:
        rows.setdefault(row, {})[column] = text
    columns = list(dict.fromkeys(column for found in rows.values() for column in found))
    lines = ([row, *(found.get(column, "") for column in columns)] for row, found in rows.items())
    return table([corner, *columns], lines)


def list_tables(results: Any) -> Iterator[str]:
    """Yield all numbers of results as tables; rows that have names begin with them, and one row is a column."""
    rows = _list_rows(results) or [results]
    lines = [_flatten(row) for row in rows]
    columns = list(dict.fromkeys(key for line in lines for key in line))
    if len(lines) == 1 and columns:
        yield table(("field", "value"), lines[0].items())
    elif columns:
        yield table(columns, ([line.get(key, "") for key in columns] for line in lines))
    for row in rows:
        for inner in _find_rows(row):
            yield from list_tables(inner)


def _list_rows(value: Any) -> list[dict[str, Any]]:
    """Return the rows of a list or mapping whose values are mappings, none of anything else."""
    if isinstance(value, Mapping) and all(isinstance(row, Mapping) for row in value.values()):
        return [{"name": name, **row} for name, row in value.items()]
    is_list = isinstance(value, list) and all(isinstance(row, Mapping) for row in value)
    return value if is_list else []


def _find_rows(row: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the lists and mappings of rows inside a row."""
    for value in row.values():
        if _list_rows(value):
            yield value
        elif isinstance(value, Mapping):
            yield from _find_rows(value)


def _flatten(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a row, without rows inside it and the intervals of pictures."""
    cells: dict[str, str] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            inner = {} if _list_rows(value) else _flatten(value)
            cells |= {f"{name} {key}": text for key, text in inner.items()}
        elif not isinstance(value, list | tuple):
            cells[name] = _show(value)
        elif not any(isinstance(entry, list | tuple | Mapping) for entry in value):
            cells[name] = ", ".join(map(_show, value))
    return cells


def _show(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def put_section(page: Path, benchmark: str, text: str) -> None:
    """Write the results of a benchmark into a page, between its marks."""
    begin = f"<!-- benchmarks.{benchmark} -->\n"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + text + _END + rest.split(_END, 1)[1])


def main(
    name: str,
    run: Callable[[Setting], Any],
    pages: Mapping[Path, Callable[[Any], str]],
    *,
    about: str | None,
    parts: Iterable[str] = (),
    keeps_other_parts: bool = False,
    device: str = "cpu",
    seconds: float = Setting.seconds,
) -> None:
    """Measure on this machine, print all results, and write them into pages if everything was measured.

    Arguments:
        name: the module of the benchmark.
        run: measures.
        pages: makes the section of each page.
        about: what the benchmark says of itself.
        parts: names of which some may be given to measure no more than these.
        keeps_other_parts: whether ``run`` returns earlier results of the other parts, too.
        device: where it measures by default, and what is written.
        seconds: how long it may take by default.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="sizes that run in seconds; nothing is written")
    parser.add_argument("--show", action="store_true", help="print the last results, measure nothing")
    parser.add_argument("--write", action="store_true", help="write the last results into pages again")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device)
    parser.add_argument("--seconds", type=float, default=seconds, help="how long it may take")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results so far there alone")
    names = tuple(parts)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(names) or 'none'}; all by default"
    )
    given = parser.parse_args()
    if given.show:
        print("\n\n".join(list_tables(read(name))))
        return
    if given.write:
        _write_pages(name, pages)
        return
    if given.out is not None and given.out.is_dir():
        parser.error(f"--out: {given.out} is a folder; accepted is a file, as {given.out / f'{name}.json'}")
    chosen = tuple(given.parts) or names
    if unknown := set(chosen) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    if given.device == "cpu" and (torch := sys.modules.get("torch")):
        torch.set_num_threads(1)
    # Runs begin with a collection of garbage, which would take a tenth of a second for all loaded modules.
    gc.collect()
    gc.freeze()
    setting = Setting(device=given.device, small=given.small, seconds=given.seconds, parts=chosen)
    if given.out is not None:
        _run_into(given.out, run, setting)
        return
    results = run(setting)
    print("\n\n".join(list_tables(results)))
    if not setting.small and setting.device == device and (len(chosen) == len(names) or keeps_other_parts):
        write(name, results)
        _write_pages(name, pages)
    if setting.failures:
        raise SystemExit("\n".join(setting.failures))


def _write_pages(name: str, pages: Mapping[Path, Callable[[Any], str]]) -> None:
    for page, make_section in pages.items():
        put_section(page, name, make_section(read(name)))


def _run_into(path: Path, run: Callable[[Setting], Any], setting: Setting) -> None:
    """Run, and write into a file what was measured so far, and what became of it."""

    def keep(status: str, results: Any) -> None:
        part = path.with_suffix(".part")
        found = {"status": status, "failures": setting.failures, "results": results}
        part.write_text(json.dumps(found, indent=2))
        part.replace(path)

    setting.folder = path.parent
    setting.save = partial(keep, "stopped")
    try:
        results = run(setting)
    except NeedsCudaError as error:
        keep(str(error), None)
        return
    keep("failed" if setting.failures else "done", results)
