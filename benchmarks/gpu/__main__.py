"""All measurements on an NVIDIA GPU in one run: python -m benchmarks.gpu.

Stages run one after the other, the most valuable first, each in a process of its own with a time limit of its
own. After each, all results so far are written. A stage that fails or takes too long keeps what it measured;
the others go on. ``--small --device cpu`` runs everything that needs no GPU with small sizes, to see that it
runs; nothing of it is written into the docs. ``--report FILE...`` writes tables into docs/gpu.md and
docs/accuracy.md; several files may each have some of the stages.

Exit codes: 0 all stages were measured, 1 a stage failed or was stopped, 3 a stage needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.stage import STAGES
from benchmarks.record import RESULTS, make_document

ROOT = Path(__file__).parent.parent.parent
MINUTES = 25.0
FAILED, NEEDS_GPU = 1, 3
#: What begins a status that only a GPU would change.
_NEEDS = "needs a CUDA device"


def run_stage(name: str, options: argparse.Namespace, folder: Path, seconds: float) -> dict[str, Any]:
    """Run a stage, and return its results, with what became of it."""
    path = folder / f"{name}.json"
    command = [sys.executable, "-m", "benchmarks.gpu.stage", name, str(path), "--device", options.device]
    command += ["--seconds", f"{seconds:.1f}", *(["--small"] if options.small else [])]
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
        said = log.read()
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


def run_stages(options: argparse.Namespace, names: list[str], out: Path | None) -> dict[str, Any]:
    """Run the stages, and write the results after each."""
    machine = describe_machine(options.device)
    stages: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + 60 * options.minutes
    document: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ckptplan-gpu-") as temporary:
        folder = Path(temporary) if out is None else out.parent / f"{out.stem}-stages"
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            left = end - time.monotonic()
            # Stages that are done early leave their time to the later ones.
            share = STAGES[name] / sum(STAGES[one] for one in names[names.index(name) :])
            limit = max(STAGES[name] * options.minutes / MINUTES, share * left)
            if left < 1:
                stages[name] = {"status": "not begun: time was over", "results": None, "failures": []}
            else:
                sys.stdout.write(f"{name}: at most {min(limit, left):.0f} s\n")
                sys.stdout.flush()
                stages[name] = run_stage(name, options, folder, min(limit, left))
                say(name, stages[name])
            document = make_document("gpu", {"small": options.small, "stages": stages}, **machine)
            if out is not None:
                out.write_text(json.dumps(document, indent=2) + "\n")
    return document


def say(name: str, found: dict[str, Any]) -> None:
    """Print what became of a stage."""
    sys.stdout.write(f"{name}: {found['status']}, {found.get('seconds', 0):.1f} s\n")
    for failure in found["failures"]:
        sys.stdout.write(f"  {failure}\n")
    for line in found.get("log", ()):
        sys.stdout.write(f"  | {line}\n")
    sys.stdout.flush()


def choose_code(stages: dict[str, Any]) -> int:
    """Return the exit code: whether anything failed, then whether anything needs a GPU."""
    states = [one["status"] for one in stages.values()]
    if any(state != "done" and not state.startswith(_NEEDS) for state in states):
        return FAILED
    return NEEDS_GPU if any(state != "done" for state in states) else 0


def main() -> int:
    """Measure or report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes that run in seconds")
    parser.add_argument("--stages", default=",".join(STAGES), help="of " + ",".join(STAGES))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the time for all stages; 25")
    parser.add_argument("--out", type=Path, help="results; benchmarks/results/gpu.json if a GPU was measured")
    parser.add_argument("--report", type=Path, nargs="+", metavar="FILE", help="write the tables of results")
    options = parser.parse_args()
    # Imported here: a report needs no GPU, and stages need no report.
    from benchmarks.gpu.report import merge, print_tables, write_pages

    if options.report:
        write_pages(merge([json.loads(path.read_text()) for path in options.report]))
        return 0
    names = options.stages.split(",")
    if unknown := sorted(set(names) - STAGES.keys()):
        parser.error(f"--stages: there is no {', '.join(unknown)}; there are {', '.join(STAGES)}")
    real = options.device == "cuda" and not options.small
    if options.out is None and real:
        options.out = RESULTS / "gpu.json"
    document = run_stages(options, names, options.out)
    print_tables(document)
    if real and options.out == RESULTS / "gpu.json":
        write_pages(document)
    return choose_code(document["results"]["stages"])


if __name__ == "__main__":
    sys.exit(main())
