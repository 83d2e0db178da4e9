"""Runs one stage in a process of its own: python -m benchmarks.gpu.stage NAME FILE --device cuda."""

from __future__ import annotations

import argparse
import gc
import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

#: What a stage is called, and the seconds that it may take of 25 minutes.
STAGES = {
    "tests": 120,
    "profile": 90,
    "headline": 330,
    "accuracy": 390,
    "remote": 150,
    "compiled": 210,
    "ddp": 60,
    "jax": 150,
}


@dataclass(frozen=True)
class Output:
    """The file of a stage; it is written whenever something was measured."""

    path: Path

    def write(self, status: str, results: Any, failures: list[str]) -> None:
        """Replace what the file has."""
        text = json.dumps({"status": status, "failures": failures, "results": results}, indent=2)
        part = self.path.with_suffix(".part")
        part.write_text(text + "\n")
        part.replace(self.path)


def main() -> None:
    """Run a stage, and write what it measured, or why it could not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=STAGES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--device", required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    import torch

    # Each run begins with a collection, which would take a tenth of a second for all loaded modules.
    gc.collect()
    gc.freeze()
    from benchmarks.gpu.setting import NeedsCudaError, Setting

    output = Output(options.file)
    if options.device == "cpu":
        torch.set_num_threads(1)
    setting = Setting(
        device=torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu"),
        small=options.small,
        seconds=options.seconds,
        folder=options.file.parent,
        save=lambda results: output.write("stopped", results, setting.failures),
    )
    run = import_module(f"benchmarks.gpu.{options.name}_stage").run
    try:
        results = run(setting)
    except NeedsCudaError as error:
        output.write(str(error), None, [])
        return
    output.write("failed" if setting.failures else "done", results, setting.failures)


if __name__ == "__main__":
    main()
