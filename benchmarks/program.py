"""Runs a training program in this process with other constants, and measures its first steps of training.

``python -m benchmarks.program FILE OUT --set steps=16 --memory 100000 --steps 3 --live``. The program stays as
it is; hooks of PyTorch's modules and optimizers see it train. Constants are lines ``name = value`` of the
program. OUT is a file of ``torch.save`` with gradients, seconds and bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ckptplan.storage.memory import read_field
from ckptplan.torch.device.meters import LiveBytes


class _EnoughError(BaseException):
    """Ends the program after the last step that is wanted."""


class Watch:
    """Measures each step of training, from the first call of a module on.

    Arguments:
        steps: how many steps of training are wanted.
        live: whether live tensors are measured, which is slow, and not time and the process.
    """

    def __init__(self, *, steps: int, live: bool) -> None:
        self._steps, self._meter = steps, LiveBytes() if live else None
        self._began, self._resident = 0.0, 0
        #: Of each step: its time without the optimizer's, its peak of live tensors, its gradients.
        self.seconds: list[float] = []
        self.live: list[int] = []
        self.gradients: list[list[torch.Tensor]] = []
        #: How much larger the process was at most than before the first step.
        self.growth = 0

    def begin(self) -> None:
        """Wait for the first call."""
        self._wait()
        register_optimizer_step_pre_hook(self._see_gradients)
        register_optimizer_step_post_hook(self._see_end)

    def _wait(self) -> None:
        # Data are drawn before: they are not counted.
        self._stop_waiting = register_module_forward_pre_hook(self._begin_step).remove

    def _begin_step(self, *_: object) -> None:
        self._stop_waiting()
        if not self.seconds:
            # From here on, the highest mark is that of training.
            Path("/proc/self/clear_refs").write_text("5")
            self._resident = read_field("/proc/self/status", "VmRSS")
        if self._meter is not None:
            self._meter.peak = self._meter.now
            self._meter.__enter__()  # type: ignore[no-untyped-call]
        # Processor time, since machines that run benchmarks are busy.
        self._began = time.process_time()

    def _see_gradients(self, one: torch.optim.Optimizer, *_: object) -> None:
        self.seconds.append(time.process_time() - self._began)
        self.growth = read_field("/proc/self/status", "VmHWM") - self._resident
        if self._meter is not None:
            self._meter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.live.append(self._meter.peak)
        parameters = [parameter for group in one.param_groups for parameter in group["params"]]
        self.gradients.append([torch.zeros(()) if p.grad is None else p.grad.clone() for p in parameters])

    def _see_end(self, *_: object) -> None:
        if len(self.seconds) == self._steps:
            raise _EnoughError
        self._wait()


def change(text: str, constants: dict[str, str], memory: int | None) -> str:
    """Return a program with other constants and another limit of memory."""
    for name, value in constants.items():
        text, count = re.subn(rf"^{name} = .*?(?=  #|$)", f"{name} = {value}", text, flags=re.M)
        if count != 1:
            raise ValueError(f"{count} lines of the program begin with {name} =")
    if memory is not None:
        text, count = re.subn(r'memory="[^"]*"', f"memory={memory}", text)
        if count != 1:
            raise ValueError(f"the program has {count} limits of memory")
    return text


def main() -> None:
    """Run a program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--memory", type=int)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--live", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    constants = dict(one.split("=", 1) for one in options.set)
    text = change(options.file.read_text(), constants, options.memory)
    watch = Watch(steps=options.steps, live=options.live)
    watch.begin()
    try:
        exec(compile(text, str(options.file), "exec"), {"__name__": "__main__"})  # noqa: S102
    except _EnoughError:
        sys.stdout.flush()
    names = ("seconds", "live", "growth", "gradients")
    torch.save({name: getattr(watch, name) for name in names}, options.out)


if __name__ == "__main__":
    main()
