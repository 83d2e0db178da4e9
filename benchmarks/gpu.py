"""All measurements on an NVIDIA GPU in one run: python -m benchmarks.gpu.

Stages are benchmarks that run on a device, and the tests that need one. They run one after the other, the most
valuable first, each in a process of its own with a time limit of its own. After each, all
results so far are written. A stage that fails or takes too long keeps what it measured; the others go on.
``--small --device cpu`` runs everything that needs no GPU with small sizes, to see that it runs; nothing of it
is written into the docs. ``--report FILE...`` writes tables into docs/measured.md; several files may each
have some of the stages. ``--show`` prints all tables of the last run.

Exit codes: 0 all stages were measured, 1 a stage failed or was stopped, 3 a stage needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.harness import DOCS, NEEDS_CUDA, NEEDS_GPU, RESULTS, make_document, put_section, table

ROOT = Path(__file__).parent.parent
MINUTES = 25.0
FAILED = 1
#: The modules of stages, and the seconds that each may take of 25 minutes.
STAGES = {
    "cuda_tests": 120,
    "headline": 330,
    "accuracy": 390,
    "remote": 240,
    "runtime": 270,
    "jax": 150,
}
#: The stages whose tables a page shows; ``--show`` prints the tables of all stages.
PAGES = {"measured.md": ("headline",)}
#: Characters of a failure in a table; the results have all.
_LONG = 120
Document = dict[str, Any]


def run_stage(name: str, options: argparse.Namespace, folder: Path, seconds: float) -> dict[str, Any]:
    """Run a stage in a process of its own, and return its results, with what became of it."""
    path = folder / f"{name}.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--out", str(path)]
    command += ["--device", options.device, "--seconds", f"{seconds:.1f}"]
    command += ["--small"] if options.small else []
    began = time.monotonic()
    status = ""
    # A file, since a pipe that grandchildren hold open would outlast the time limit.
    with (folder / f"{name}.log").open("w+") as log:
        try:
            code = subprocess.run(
                command, cwd=ROOT, stdout=log, stderr=log, timeout=seconds, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status, code = f"stopped after {seconds:.0f} s", 0
        log.seek(0)
        # Where the project lies is nobody else's business.
        said = log.read().replace(f"{ROOT}/", "")
    spent = time.monotonic() - began
    found = json.loads(path.read_text()) if path.exists() else {"failures": [], "results": None}
    if code:
        lines = said.strip().splitlines()
        status = f"failed: {lines[-1][:400] if lines else f'exit code {code}'}"
        found["log"] = lines[-15:]
    return {**found, "status": status or found.get("status", "failed: no results"), "seconds": round(spent, 1)}


def describe_machine(device: str) -> dict[str, Any]:
    """Return the device and the versions, found out in a process that leaves no context behind."""
    program = (
        "import json, torch\n"
        f"on = {device!r} == 'cuda' and torch.cuda.is_available()\n"
        "p = torch.cuda.get_device_properties(0) if on else None\n"
        "print(json.dumps({'torch': torch.__version__, 'cuda': torch.version.cuda,\n"
        "  'cudnn': torch.backends.cudnn.version() if on else None, 'gpus': torch.cuda.device_count(),\n"
        "  'device': p.name if on else None, 'device_bytes': p.total_memory if on else None}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"PyTorch cannot be imported:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_stages(options: argparse.Namespace, names: list[str]) -> Document:
    """Run the stages, and write the results after each."""
    machine = describe_machine(options.device)
    stages: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + 60 * options.minutes
    written: Document = {}
    out: Path | None = options.out
    with tempfile.TemporaryDirectory(prefix="ckptplan-gpu-") as temporary:
        folder = Path(temporary) if out is None else out.parent / f"{out.stem}-stages"
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            left = end - time.monotonic()
            # Stages that are done early leave their time to the later ones.
            share = STAGES[name] / sum(STAGES[one] for one in names[names.index(name) :])
            limit = min(left, max(STAGES[name] * options.minutes / MINUTES, share * left))
            if left < 1:
                stages[name] = {"status": "not begun: time was over", "results": None, "failures": []}
            else:
                print(f"{name}: at most {limit:.0f} s", flush=True)
                stages[name] = run_stage(name, options, folder, limit)
                report_stage(name, stages[name])
            written = make_document("gpu", {"small": options.small, "stages": stages}, **machine)
            if out is not None:
                out.write_text(json.dumps(written, indent=2) + "\n")
    return written


def report_stage(name: str, found: dict[str, Any]) -> None:
    """Print what became of a stage."""
    print(f"{name}: {found['status']}, {found.get('seconds', 0):.1f} s")
    for line in (*(f"  {one}" for one in found["failures"]), *(f"  | {one}" for one in found.get("log", ()))):
        print(line)
    sys.stdout.flush()


def choose_code(stages: dict[str, Any]) -> int:
    """Return the exit code: whether anything failed, then whether anything needs a GPU."""
    states = [one["status"] for one in stages.values()]
    if any(state != "done" and not state.startswith(NEEDS_CUDA) for state in states):
        return FAILED
    return NEEDS_GPU if any(state != "done" for state in states) else 0


def merge(documents: list[Document]) -> Document:
    """Return one document with the stages of several runs on the same device, the later ones last."""
    first = documents[0]
    if any(one["results"]["small"] for one in documents) or any(one["device"] is None for one in documents):
        raise SystemExit("results of small runs, or of no GPU, are no measurements: they are not reported")
    if len({(one["device"], one["torch"]) for one in documents}) > 1:
        raise SystemExit("the files are of different devices, or of different versions of PyTorch")
    stages = {name: stage for one in documents for name, stage in one["results"]["stages"].items()}
    return {**first, "results": {"small": False, "stages": stages}}


def make_tables(measured: Document, names: Sequence[str]) -> str:
    """Return what became of some stages, and their tables; none is left out."""
    stages = measured["results"]["stages"]
    rows, parts = [], []
    for name in names:
        one = stages.get(name, {"status": "not measured", "failures": [], "results": None})
        failures = "; ".join(text[:_LONG] for text in one["failures"]).replace("|", "/")
        rows.append([name, one["status"], f"{one.get('seconds', 0):.0f} s", failures])
        if one["results"]:
            make: Callable[[Any], str] = import_module(f"benchmarks.{name}").document
            parts.append(make(one["results"]).rstrip())
    return "\n\n".join([table(["stage", "became", "took", "failures"], rows), *parts]) + "\n"


def make_section(measured: Document, names: Sequence[str]) -> str:
    """Return the section of a page: the device, the status of every stage, and the tables of ``names``."""
    head = (
        f"`python -m benchmarks.gpu` on {measured['device']} ({measured['device_bytes'] / 2**30:.0f} GiB), "
        f"PyTorch {measured['torch']}, CUDA {measured['cuda']}, cuDNN {measured['cudnn']}, Python "
        f"{measured['python']}, {measured['date']}."
    )
    stages = measured["results"]["stages"]
    told = "; ".join(f"{name} {_describe_stage(stages.get(name))}" for name in STAGES)
    tables = (import_module(f"benchmarks.{name}").in_short(stages[name]["results"]).rstrip() for name in names)
    return (
        "\n\n".join([f"{head} Stages: {told}. `python -m benchmarks.gpu --show` prints all tables.", *tables])
        + "\n"
    )


def _describe_stage(stage: dict[str, Any] | None) -> str:
    """Return the status of a stage, with its failures."""
    if stage is None:
        return "was not measured"
    failures = f" ({'; '.join(text[:_LONG] for text in stage['failures'])})" if stage["failures"] else ""
    return f"{stage['status']} in {stage.get('seconds', 0):.0f} s{failures}"


def write_pages(measured: Document) -> None:
    """Write the results, and the tables into the pages."""
    (RESULTS / "gpu.json").write_text(json.dumps(measured, indent=2) + "\n")
    for page, names in PAGES.items():
        put_section(DOCS / page, "gpu", make_section(measured, names))
    print(f"written into {', '.join(f'docs/{page}' for page in PAGES)}")


def main() -> int:
    """Measure or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes that run in seconds")
    parser.add_argument("--stages", default=",".join(STAGES), help="of " + ",".join(STAGES))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the time for all stages; 25")
    parser.add_argument("--out", type=Path, help="results; benchmarks/results/gpu.json if a GPU was measured")
    parser.add_argument("--show", action="store_true", help="print the tables of the last run, measure nothing")
    parser.add_argument("--report", type=Path, nargs="+", metavar="FILE", help="write the tables of results")
    options = parser.parse_args()
    if options.out is not None and options.out.is_dir():
        parser.error(f"--out: {options.out} is a folder; accepted is a file, as {options.out / 'gpu.json'}")
    if options.show:
        print(make_tables(json.loads((RESULTS / "gpu.json").read_text()), list(STAGES)))
        return 0
    if options.report:
        write_pages(merge([json.loads(path.read_text()) for path in options.report]))
        return 0
    names = options.stages.split(",")
    if unknown := sorted(set(names) - STAGES.keys()):
        parser.error(f"--stages: there is no {', '.join(unknown)}; there are {', '.join(STAGES)}")
    real = options.device == "cuda" and not options.small
    if options.out is None and real:
        options.out = RESULTS / "gpu.json"
    measured = run_stages(options, names)
    print("\n" + make_tables(measured, list(measured["results"]["stages"])))
    if real and options.out == RESULTS / "gpu.json":
        write_pages(measured)
    return choose_code(measured["results"]["stages"])


if __name__ == "__main__":
    sys.exit(main())
