"""All measurements on an NVIDIA GPU in one run: python -m benchmarks.gpu [STAGE...].

Stages are benchmarks that run on a device, and the tests that need one. They run one after the other, the most
valuable first, each in a process of its own with a time limit of its own. A stage that fails or takes too long
keeps what it measured; the others go on. Stages that were measured before, on the same device with the same
version of PyTorch, stay in the results. ``--small --device cpu`` runs everything that needs no GPU with small
sizes, to see that it runs.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import DOCS, GIB, ROOT, NeedsCudaError, Setting, main, read
from benchmarks.headline import in_short

#: The modules of stages, and the seconds that each may take of eight minutes.
STAGES = {
    "headline": 210,
    "remote": 60,
    "accuracy": 80,
    "cuda_tests": 60,
    "jax": 35,
    "runtime": 35,
}
SECONDS = 8 * 60.0
#: Characters of a failure on the page; the results have all.
_LONG = 120


def run(setting: Setting) -> dict[str, Any]:
    """Run the stages, and save the results after each."""
    machine = describe_machine(setting.device)
    stages: dict[str, Any] = {}
    if setting.on_gpu and machine["device"] is None:
        raise NeedsCudaError
    if setting.on_gpu and not setting.small:
        before = read("gpu")
        is_same = all(before["machine"][name] == machine[name] for name in ("device", "torch"))
        stages = before["stages"] if is_same else {}
    results = {"machine": machine, "stages": stages}
    with tempfile.TemporaryDirectory(prefix="ckptplan-gpu-") as folder:
        for place, name in enumerate(setting.parts):
            # Stages that are done early leave their time to the later ones.
            share = STAGES[name] / sum(STAGES[later] for later in setting.parts[place:])
            stages[name] = run_stage(name, setting, Path(folder), share * setting.seconds_left)
            print(f"{name}: {stages[name]['status']}", file=sys.stderr)
            if stages[name]["status"] != "done":
                setting.failures.append(f"{name}: {stages[name]['status']}")
            setting.save(results)
    return results


def run_stage(name: str, setting: Setting, folder: Path, seconds: float) -> dict[str, Any]:
    """Run a stage in a process of its own, and return its results, with what became of it."""
    path = folder / f"{name}.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--out", str(path)]
    command += ["--device", setting.device, "--seconds", f"{seconds:.1f}"]
    command += ["--small"] if setting.small else []
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
        lines = log.read().replace(f"{ROOT}/", "").strip().splitlines()
    found = json.loads(path.read_text()) if path.exists() else {"failures": [], "results": None}
    if code:
        status = f"failed: {lines[-1][:400] if lines else f'exit code {code}'}"
        found["log"] = lines[-15:]
    spent = round(time.monotonic() - began, 1)
    return {**found, "status": status or found.get("status", "failed: no results"), "seconds": spent}


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
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return {**json.loads(done.stdout.splitlines()[-1]), "python": platform.python_version(), "date": date}


def document(results: dict[str, Any]) -> str:
    """Return the section of a page: the device, the status of every stage, and the tables of the headline."""
    machine, stages = results["machine"], results["stages"]
    states = "; ".join(f"{name} {_describe_stage(stages.get(name))}" for name in STAGES)
    return (
        f"`python -m benchmarks.gpu` on {machine['device']} ({machine['device_bytes'] / GIB:.0f} GiB), PyTorch "
        f"{machine['torch']}, CUDA {machine['cuda']}, cuDNN {machine['cudnn']}, Python {machine['python']}, "
        f"{machine['date']}. Stages: {states}. `python -m benchmarks.gpu --show` prints all tables.\n\n"
        f"{in_short(stages['headline']['results'])}"
    )


def _describe_stage(stage: dict[str, Any] | None) -> str:
    """Return the status of a stage, with its failures."""
    if stage is None:
        return "was not measured"
    failures = f" ({'; '.join(text[:_LONG] for text in stage['failures'])})" if stage["failures"] else ""
    return f"{stage['status']} in {stage.get('seconds', 0):.0f} s{failures}"


PAGES = {DOCS / "measured.md": document}

if __name__ == "__main__":
    main("gpu", run, PAGES, about=__doc__, parts=STAGES, device="cuda", seconds=SECONDS, keeps_other_parts=True)
