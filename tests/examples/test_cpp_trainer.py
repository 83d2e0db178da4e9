"""The trainer in C++ of docs/own-loop.md: it compiles, and its gradients are those of PyTorch."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import ckptplan

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "examples/train.cpp"
STEPS, NEURONS = 512, 8


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, made by the machine's compiler."""
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler is not None
    source = SOURCE.read_text()
    assert len(source.splitlines()) <= 80
    folder = tmp_path_factory.mktemp("cpp")
    (folder / "train.cpp").write_text(source)
    header = find_spec("nlohmann_json")
    assert header is not None
    assert header.origin is not None
    include = Path(header.origin).parent / "include"
    options = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-isystem", str(include)]
    program = folder / "train"
    subprocess.run([compiler, *options, str(folder / "train.cpp"), "-o", str(program)], check=True)
    return program


@pytest.fixture(scope="module")
def expected() -> tuple[list[float], torch.Tensor]:
    """The losses of three epochs, and the last gradient, by plain backpropagation in PyTorch."""
    numbers = torch.arange(NEURONS * NEURONS, dtype=torch.float64)
    weights = (0.5 * torch.cos(numbers)).reshape(NEURONS, NEURONS).requires_grad_()
    losses = list[float]()
    gradient = torch.zeros_like(weights)
    for _ in range(3):
        state, loss = torch.zeros(NEURONS, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for step in range(STEPS):
            state = torch.tanh(weights @ state + torch.sin(0.1 * (step + 1) * (numbers[:NEURONS] + 1)))
            loss = loss + 0.5 * (state**2).sum()
        (gradient,) = torch.autograd.grad(loss, weights)
        losses.append(loss.item())
        with torch.no_grad():
            weights -= 1e-3 * gradient
    return losses, gradient.flatten()


@pytest.mark.parametrize("strategy", ["base", "standard", "remote", "hierarchical", "double", "nested", "all"])
def test_its_gradients_are_those_of_pytorch(
    strategy: str, trainer: Path, expected: tuple[list[float], torch.Tensor], tmp_path: Path
) -> None:
    budget = "1 MiB" if strategy == "base" else "260 KiB"
    plan = ckptplan.optimize("paper-snn", "ipu-mk2", steps=STEPS, strategies=strategy, local_bytes=budget)
    ckptplan.save_plan(plan, tmp_path / "plan.json")
    done = subprocess.run([trainer, tmp_path / "plan.json"], check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    losses = [float(line.removeprefix("loss ")) for line in lines if line.startswith("loss ")]
    gradient = torch.tensor([float(line) for line in lines[len(losses) :]], dtype=torch.float64)
    assert losses == pytest.approx(expected[0], rel=1e-12)
    torch.testing.assert_close(gradient, expected[1], rtol=1e-9, atol=1e-9)
