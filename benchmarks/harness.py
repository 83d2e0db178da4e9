"""What benchmarks share: a device and sizes, runs in turn, results with their machine, and tables of pages.

A benchmark has ``run(setting)``, which returns plain data, and ``document(results)``, which makes tables of
them. ``main`` is its command; ``benchmarks.gpu`` starts several of these on a GPU.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ckptplan.storage.memory import read_field

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
MIB, GIB = 2**20, 2**30
#: What a benchmark says in place of results that only a GPU can give.
NEEDS_CUDA = "needs a CUDA device"
#: The exit code that says so.
NEEDS_GPU = 3
_END = "<!-- end -->\n"
_T = TypeVar("_T")


class NeedsCudaError(Exception):
    """A benchmark measures nothing without a CUDA device."""

    def __init__(self) -> None:
        super().__init__(NEEDS_CUDA)


class ExhaustedError(Exception):
    """A run did not fit the memory."""


def _forget(_: object) -> None:
    """Save nothing."""


@dataclass(kw_only=True)
class Setting:
    """Where and how much to measure.

    Arguments:
        device: 'cpu' or 'cuda'.
        small: whether sizes are so small that everything runs in seconds, to see that it runs.
        seconds: how long it may take; what was saved by then is kept.
        folder: for files beside the results, such as traces.
        parts: what is measured, of a benchmark that has parts.
        options: values of options that a benchmark has besides, by their names.
        save: keeps what was measured so far.
    """

    device: str = "cpu"
    small: bool = False
    seconds: float = 3600.0
    folder: Path = RESULTS
    parts: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    save: Callable[[Any], None] = _forget
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


def read_status(name: str) -> int:
    """Return a size of this process, as ``VmHWM``, in bytes."""
    return read_field("/proc/self/status", name)


def make_document(name: str, results: Any, **more: Any) -> dict[str, Any]:
    """Return results with the machine, the versions and the command; ``more`` is added to these."""
    import ckptplan

    return {
        "benchmark": name,
        "command": f"python -m benchmarks.{name}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "ckptplan": ckptplan.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor_count": os.cpu_count(),
        **more,
        "results": results,
    }


def write(name: str, results: Any) -> None:
    """Write results with the machine, the versions and the command."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(make_document(name, results), indent=2) + "\n")
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


def show(value: Any, form: str, factor: float = 1.0) -> str:
    """Return a number as text, an empty one if there is none."""
    return "" if value is None else format(value * factor, form)


def put_section(page: Path, benchmark: str, text: str) -> None:
    """Write the results of a benchmark into a page, between its marks."""
    begin = f"<!-- benchmarks.{benchmark} -->\n"
    before, rest = page.read_text().split(begin)
    page.write_text(before + begin + text + _END + rest.split(_END, 1)[1])


def main(
    name: str,
    run: Callable[[Setting], Any],
    document: Callable[[Any], str],
    *,
    about: str | None,
    page: Path | None = None,
    others: Mapping[Path, Callable[[Any], str]] | None = None,
    shown: Callable[[Any], str] | None = None,
    parts: Iterable[str] = (),
    options: Mapping[str, str] | None = None,
    in_processes: bool = False,
) -> None:
    """Measure on this machine, print tables, and write them into pages if everything was measured.

    Arguments:
        name: the module of the benchmark.
        run: measures.
        document: makes tables of results.
        about: what the benchmark says of itself.
        page: has the tables between marks, if there is one.
        others: further pages, each with tables of its own.
        shown: makes what ``--show`` prints, if that is more than the tables.
        parts: names of which some may be given to measure no more than these.
        options: what further options mean, by their names; with one of them, nothing is written.
        in_processes: whether all that is measured runs in other processes. PyTorch is not loaded then: the peak
            of a process is never less than what its parent has.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="sizes that run in seconds; nothing is written")
    parser.add_argument("--show", action="store_true", help="print the tables of the last run, measure nothing")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=Setting.seconds, help="how long it may take")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the results so far there alone")
    if names := tuple(parts):
        parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(names)}; all by default")
    for option, meaning in (options or {}).items():
        parser.add_argument(f"--{option}", help=meaning)
    given = parser.parse_args()
    if given.show:
        print((shown or document)(read(name)))
        return
    chosen: Sequence[str] = getattr(given, "parts", ()) or names
    if unknown := set(chosen) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    if not in_processes:
        _prepare(given.device)
    setting = Setting(device=given.device, small=given.small, seconds=given.seconds, parts=tuple(chosen))
    setting.options = {option: value for option in options or {} if (value := getattr(given, option))}
    if given.out is not None:
        _run_into(given.out, run, setting)
        return
    try:
        results = run(setting)
    except NeedsCudaError as error:
        parser.exit(NEEDS_GPU, f"{name}: {error}\n")
    print(document(results))
    for failure in setting.failures:
        print(failure, file=sys.stderr)
    if not (setting.small or setting.on_gpu or setting.options or len(chosen) < len(names)):
        write(name, results)
        pages = {**({} if page is None else {page: document}), **(others or {})}
        for one, make in pages.items():
            put_section(one, name, make(results))
    if setting.failures:
        raise SystemExit(1)


def _prepare(device: str) -> None:
    """Let one thread compute, and collections of garbage pass over what is loaded.

    Each run begins with a collection, which would take a tenth of a second for all loaded modules.
    """
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


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
