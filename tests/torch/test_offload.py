"""Law: with ``offload=`` checkpoints go where that is quicker, within ``memory=``; nothing else changes."""

from __future__ import annotations

import logging
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ckptplan import InputError, Plan
from ckptplan.execution.advice import find_limit
from ckptplan.storage import place as places
from ckptplan.storage.remote_folder import StateFiles
from ckptplan.torch import LIF, Offload, bptt, plan_for, scan, unroll, wrap
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.device.meters import LiveBytes
from ckptplan.torch.fit import choose
from ckptplan.torch.store import place as torch_place
from tests.support import started
from tests.torch.limit_tables import mean_square
from tests.torch.support import assert_close, forget_measurements, gradients, plan_of, read_least

STEPS, BATCH, WIDTH = 120, 64, 128
_STATE = 4 * BATCH * WIDTH


@pytest.fixture(autouse=True)
def _forget(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test times places and measures calls anew."""
    monkeypatch.setenv("CKPTPLAN_CACHE", str(tmp_path_factory.mktemp("cache")))
    places._timed.clear()
    forget_measurements()
    torch.manual_seed(0)


@pytest.fixture
def rate(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the seconds that a state takes each way and in being handed over, and what was timed."""
    found = SimpleNamespace(seconds=1e-7, handoff=0.0, timed=[])

    def time_states(
        _: object, place: places.OffloadPlace, __: int, *, through: bool, most: int
    ) -> places.Rates:
        assert most >= 2
        found.timed.append((place.name, through))
        return places.Rates(found.seconds, found.seconds, found.handoff)

    monkeypatch.setattr(torch_place, "_time_states", time_states)
    return found


@pytest.fixture
def fill_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what leaves 1000 B on each disk from then on."""
    return lambda: monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))


@pytest.fixture
def warnings_told(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return what lists the warnings that were logged."""
    return lambda: [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class Network:
    """A recurrent layer, a sequence, and a limit with room for a few states."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.GRUCell(8, WIDTH)
        self.cell = TorchCell(self.module)
        self.inputs, self.state = torch.randn(STEPS, BATCH, 8), torch.zeros(BATCH, WIDTH)
        self.wanted = list(self.module.parameters())

    def find_limit(self) -> int:
        """Return a limit in which the best local plan runs most steps again."""
        with pytest.raises(InputError) as caught:
            self.plan(memory=1)
        return read_least(caught.value) + 8 * _STATE

    def plan(self, *, steps: int = STEPS, **options: Any) -> Plan:
        """Return a plan for the first steps."""
        return plan_for(self.cell, self.inputs[:steps], self.state, mean_square, **options)

    def run(self, **options: Any) -> tuple[Any, list[torch.Tensor]]:
        result = bptt(self.cell, self.inputs, self.state, mean_square, **options)
        return result, gradients(result.loss, self.wanted)


class Kept(torch.nn.Module):
    """A network that keeps its state in two places, of which one is written in place."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.h = torch.nn.Linear(8, WIDTH), torch.zeros(BATCH, WIDTH)
        self.register_buffer("total", torch.zeros(BATCH, WIDTH))

    def reset(self) -> None:
        self.h = torch.zeros(BATCH, WIDTH)
        self.total.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.h = torch.tanh(self.linear(x) + 0.9 * self.h)
        self.total += self.h.detach()
        return self.h + 0.01 * torch.sin(self.total)


def run_kept(net: Any, inputs: torch.Tensor, **options: Any) -> tuple[Any, torch.Tensor]:
    wrapped = wrap(net, reset=Kept.reset, **options)
    loss = wrapped.bptt(inputs, loss=mean_square)
    return wrapped.plan, loss


def run_layer(net: Any, inputs: torch.Tensor, **options: Any) -> tuple[Any, torch.Tensor]:
    wrapped = wrap(net, **options)
    loss = wrapped(inputs)[0].sum()
    return wrapped.plan, loss


def run_cell(cell: Any, inputs: torch.Tensor, **options: Any) -> tuple[Any, torch.Tensor]:
    state = torch.zeros(BATCH, WIDTH)
    result = bptt(cell, inputs, state, mean_square, **options)
    return result.plan, result.loss


#: Networks and the ways to run them; of layers, both directions share the place.
RUNS: dict[str, tuple[Any, Any]] = {
    "cell": (run_cell, lambda: TorchCell(torch.nn.GRUCell(8, WIDTH))),
    "LIF": (run_cell, lambda: LIF(8, WIDTH, threshold=0.3)),
    "kept state": (run_kept, Kept),
    "GRUCell": (run_layer, lambda: torch.nn.GRUCell(8, WIDTH)),
    "GRU, both ways": (run_layer, lambda: torch.nn.GRU(8, WIDTH, bidirectional=True)),
}


@pytest.mark.usefixtures("rate")
@pytest.mark.parametrize("kind", ["folder", "host"])
@pytest.mark.parametrize("name", RUNS)
def test_gradients_are_those_without_it_and_the_limit_holds(tmp_path: Path, name: str, kind: str) -> None:
    run, make = RUNS[name]
    net, inputs = make(), torch.randn(STEPS, BATCH, 8)
    wanted = list(net.parameters())
    with pytest.raises(InputError) as caught:
        run(net, inputs, memory=1)
    limit = read_least(caught.value) + 8 * _STATE
    theirs = gradients(run(net, inputs, memory="1 GiB")[1], wanted)
    for _ in range(2):
        with LiveBytes() as live:
            plan, loss = run(net, inputs, memory=limit, offload=tmp_path if kind == "folder" else kind)
            ours = gradients(loss, wanted)
        assert isinstance(plan, Plan)
        assert plan.predicted.remote_peak_bytes > 0 or run is run_layer
        assert_close(ours, theirs, relative=1e-3)
        if kind == "folder":
            # On a CPU, host memory is what is counted.
            assert live.peak <= 1.03 * limit
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("strategy", ["remote", "double", "hierarchical", "periodic"])
def test_remote_checkpoints_of_a_plan_lie_in_a_folder(strategy: str, tmp_path: Path) -> None:
    cell, inputs = TorchCell(torch.nn.GRUCell(5, 7).double()), torch.randn(60, 3, 5).double()
    plan = plan_of(60, strategy, states=12)
    wanted, found = list(cell.parameters()), []
    ways: list[dict[str, Any]] = [{"remote_dir": tmp_path / "states"}, {}, {"plan": plan_of(60, states=999)}]
    for options in ways:
        outputs, _ = unroll(cell, inputs, None, **{"plan": plan, **options})
        found.append(gradients(outputs.square().sum(), wanted))
    assert_close(found[0], found[2], relative=1e-12)
    assert_close(found[1], found[2], relative=1e-12)


@pytest.mark.parametrize("beside", [True, False])
def test_live_tensors_stay_within_the_limit_with_the_buffers(tmp_path: Path, beside: bool, rate: Any) -> None:
    """Buffers of transfers beside compute are two more states. States that move quickly move without these."""
    rate.handoff = rate.seconds / 10 if beside else rate.seconds
    network = Network()
    limit = network.find_limit()
    # The first call of a kind tries more.
    for _ in range(2):
        with LiveBytes() as live:
            result, _ = network.run(memory=limit, offload=tmp_path)
    assert result.plan.profile.overlaps_compute is beside
    assert result.plan.predicted.remote_writes > 1
    assert live.peak <= limit


@pytest.mark.parametrize("is_quick", [True, False])
def test_the_plan_and_its_line_say_what_offloading_bought(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rate: SimpleNamespace, is_quick: bool
) -> None:
    """A slow place is not used."""
    rate.seconds = rate.seconds if is_quick else 100.0
    network = Network()
    limit = network.find_limit()
    without = network.plan(memory=limit).predicted.overhead
    with caplog.at_level(logging.INFO, "ckptplan.torch"):
        plan = network.plan(memory=limit, offload=tmp_path)
    (note,) = (entry.text for entry in plan.estimate_basis if entry.field == "offload")
    overhead = plan.predicted.overhead
    assert f"({note})" in caplog.text
    if not is_quick:
        assert plan.predicted.remote_writes == 0
        assert note.startswith(f"local only: {overhead:+.0%}; remote in {tmp_path}: +")
        return
    assert note == f"remote in {tmp_path}: {overhead:+.0%}; local only: {without:+.0%}"
    assert overhead < without
    assert plan.profile.sources["write_bytes_per_second"].source == (
        f"timed in {tmp_path}: states of 32 KiB, as they find room in memory"
    )


@pytest.mark.usefixtures("rate")
def test_no_more_goes_there_than_the_limit_of_the_place(tmp_path: Path) -> None:
    network = Network()
    memory = network.find_limit()
    for states in (20, 40):
        to = Offload(tmp_path, limit=states * _STATE)
        plan = network.plan(memory=memory, offload=to)
        assert 0 < plan.predicted.remote_peak_bytes <= states * _STATE


def test_what_finds_no_room_in_memory_is_timed_at_the_rate_of_the_device(
    tmp_path: Path, rate: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network()
    limit = network.find_limit()
    network.plan(memory=limit, offload=tmp_path)
    assert rate.timed == [(str(tmp_path), False)]
    monkeypatch.setattr(torch_place, "find_host_room", lambda *_: 2 * _STATE)
    plan = network.plan(memory=limit, offload=tmp_path)
    assert rate.timed == [(str(tmp_path), False), (str(tmp_path), True)]
    assert plan.predicted.remote_peak_bytes > 2 * _STATE
    assert "read back cold" in str(plan.profile.sources["read_bytes_per_second"].source)


def first_of(_: int, output: torch.Tensor) -> torch.Tensor:
    return output


class Waves(torch.nn.Module):
    """A wave: two states one after the other share the field between them."""

    def __init__(self) -> None:
        super().__init__()
        self.speed = torch.nn.Parameter(torch.full((64, 64), 0.1))

    def forward(self, state: Any, x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        before, now = state
        after = 2 * now - before + self.speed * (now.roll(1, 0) - now) + x
        return (now, after), after[::8].square().mean()


class Leaks(torch.nn.Module):
    """Leaky neurons with a soft threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = torch.nn.Parameter(torch.full((4096,), 0.9))

    def forward(self, potential: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        potential = self.decay * potential + x
        spikes = torch.sigmoid(4 * (potential - 1))
        return potential - spikes, spikes.mean()


@pytest.mark.usefixtures("rate")
@pytest.mark.parametrize("share", [1.0, 1.3])
@pytest.mark.parametrize("steps", [9, 25])
def test_the_least_limit_holds_without_room_for_a_local_checkpoint(
    tmp_path: Path, steps: int, share: float
) -> None:
    """Nothing outlives its use: neither the state after a chunk, nor the gradient that enters it."""
    linear, state = torch.nn.Linear(8, 1024), torch.zeros(4, 1024)
    inputs = torch.randn(steps, 4, 8)

    def cell(h: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.tanh(h.roll(1, 1) + linear(x))
        return h, h

    def run(limit: int) -> Any:
        result = bptt(cell, inputs, state, mean_square, memory=limit, offload=tmp_path)
        gradients(result.loss, list(linear.parameters()))
        return result.plan

    with pytest.raises(InputError) as caught:
        run(1000)
    limit = int(share * read_least(caught.value))
    for _ in range(3):
        with LiveBytes() as live:
            plan = run(limit)
        assert live.peak <= limit
    assert plan.strategy == "remote" or share > 1


@pytest.mark.parametrize("strategy", ["remote", "hierarchical"])
@pytest.mark.parametrize(
    ("net", "state"),
    [(Waves(), (torch.zeros(64, 64), torch.zeros(64, 64))), (Leaks(), torch.zeros(4, 4096))],
    ids=["waves", "leaks"],
)
def test_the_peak_of_a_remote_plan_is_the_predicted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, net: Any, state: Any, strategy: str
) -> None:
    """Whether states move singly or in batches, and whatever states share."""
    # "base" does not fit.
    singly = (strategy,) if strategy == "remote" else ("base",)
    monkeypatch.setattr(choose, "_STRATEGIES", ("base",))
    monkeypatch.setattr(choose, "_REMOTE_STRATEGIES", singly)
    monkeypatch.setattr(choose, "_BATCH_STRATEGIES", ("base",) if strategy == "remote" else (strategy,))
    inputs = torch.linspace(0, 0.2, 24).reshape(24, 1, 1)
    work = plan_for(net, inputs, state, first_of, memory="1 GB").workload
    limit = find_limit(work.workspace_bytes + 4 * work.state_bytes + 24 * work.resident_bytes_per_step)
    for _ in range(2):
        with LiveBytes() as live:
            result = bptt(net, inputs, state, first_of, memory=limit, offload=tmp_path)
            result.loss.backward()
    plan = result.plan
    assert isinstance(plan, Plan)
    assert plan.strategy == strategy
    assert 0.85 * plan.predicted.local_peak_bytes <= live.peak <= 1.01 * plan.predicted.local_peak_bytes


@pytest.mark.usefixtures("rate")
def test_plans_count_what_saving_and_loading_take(tmp_path: Path) -> None:
    """Before and after the first call: in local memory as actions, and of single states as messages."""
    network = Network()
    options: dict[str, Any] = {"memory": network.find_limit(), "offload": tmp_path}
    for _ in range(2):
        plan = network.plan(**options)
        assert plan.workload.save_seconds > 0
        assert plan.workload.load_seconds > 0
        if plan.predicted.remote_peak_bytes and plan.strategy != "hierarchical":
            assert plan.profile.latency_seconds > 0
        network.run(**options)


@pytest.mark.parametrize("through", [False, True])
def test_a_place_is_timed_as_it_is_used(tmp_path: Path, through: bool) -> None:
    """By real writes and reads of which nothing is left."""
    place = places.OffloadPlace(folder=tmp_path)
    write, read, _ = torch_place._time_states(torch.device("cpu"), place, 2**20, through=through, most=4)
    assert write > 0
    assert read > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("rate")
def test_scan_and_unroll_take_it(tmp_path: Path) -> None:
    network = Network()
    outputs, _ = unroll(network.cell, network.inputs, network.state, memory="1 GiB")
    limit = network.find_limit() + 3 * STEPS * _STATE
    _, ours = scan(network.cell, network.state, network.inputs, memory=limit, offload=str(tmp_path))
    assert torch.allclose(ours, outputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": None}, "offload: needs a limit of local memory"),
        ({"memory": None, "plan": plan_of(STEPS)}, "offload: is given together with plan.* with remote_dir"),
        ({"memory": "1 MB", "offload": None, "remote_dir": "x"}, "remote_dir: is given together with memory"),
        ({"memory": None, "offload": None, "remote_dir": 3, "plan": plan_of(STEPS)}, "remote_dir: is"),
        ({"offload": 3}, r"offload: is 3 \(accepted: 'host', a folder, or Offload"),
        ({"offload": ""}, "offload: is ''"),
        ({"offload": Offload("x", limit="much")}, "offload.limit: .*much"),
        ({"offload": Offload("x", limit=-1)}, "offload.limit: -1 is not positive"),
        ({"offload": "FILE"}, "offload: .*FILE is a file"),
        ({"offload": "/proc/nowhere"}, "offload: /proc/nowhere cannot be made"),
        ({"offload": "s3://bucket/states"}, r"offload: is 's3://bucket/states' \(accepted: a folder on this"),
    ],
)
def test_places_that_cannot_be_used_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").touch()
    network = Network()
    with pytest.raises(InputError, match=message):
        network.run(**{"memory": "1 GiB", "offload": "host", **options})


def test_a_folder_without_room_is_named_once(tmp_path: Path, fill_disk: Any, warnings_told: Any) -> None:
    fill_disk()
    for _ in range(2):
        Network().run(memory="1 GiB", offload=tmp_path)
    (told,) = warnings_told()
    assert told == f"{tmp_path} is not used for checkpoints: there is room for 900 B, and a state takes 32 KiB"


def test_a_hint_is_given_once_for_calls_of_a_kind(monkeypatch: pytest.MonkeyPatch, warnings_told: Any) -> None:
    """Whatever their lengths: batches of sequences often have different ones."""
    monkeypatch.setattr(choose, "DEAR", -1.0)
    monkeypatch.setattr("ckptplan.execution.advice._WORTH", 0.0)
    network = Network()
    limit = network.find_limit() + 3 * STEPS * _STATE
    for length in (STEPS, STEPS - 1, STEPS):
        network.plan(steps=length, memory=limit)
    assert len(warnings_told()) == 1


def test_a_hint_is_given_for_recurrent_layers(monkeypatch: pytest.MonkeyPatch, warnings_told: Any) -> None:
    monkeypatch.setattr(choose, "DEAR", 0.2)
    monkeypatch.setattr("ckptplan.execution.advice._WORTH", 0.0)
    data = torch.randn(STEPS, 16, 8)
    with pytest.raises(InputError) as caught:
        wrap(torch.nn.LSTM(8, 64), memory=1)(data)
    for _ in range(2):
        net = wrap(torch.nn.LSTM(8, 64), memory=read_least(caught.value))
        net(data)
        assert isinstance(net.plan, Plan)
        assert net.plan.predicted.overhead > 0.2
    hints = warnings_told()
    (hint,) = (one for one in hints if "With offload=" in one)
    assert re.search(
        r"this plan takes \+\d+% time over plain .* would take about \+\d+%, at an assumed 1 GB/s", hint
    )
    plan_for(TorchCell(torch.nn.GRUCell(8, 64)), data, None, mean_square, memory="1 GiB")
    assert warnings_told() == hints


@pytest.mark.usefixtures("rate")
def test_a_disk_without_room_is_found_before_the_first_step(tmp_path: Path, fill_disk: Any) -> None:
    """If somebody else filled it after the plan was made."""
    network = Network()
    limit = network.find_limit()
    plan = network.plan(memory=limit, offload=tmp_path)
    fill_disk()
    ran: list[Any] = []

    def cell(state: Any, x: Any) -> Any:
        ran.append(x)
        return network.cell(state, x)

    with pytest.raises(InputError, match=rf"{tmp_path} has no room .* and 1000 B are free"):
        bptt(cell, network.inputs, network.state, mean_square, plan=plan, remote_dir=tmp_path)
    assert not ran


@pytest.mark.usefixtures("rate")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_disk_that_is_full_is_that_of_offload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the argument that the caller gave, and nothing is left."""

    def lead_nowhere(files: StateFiles, number: int) -> Path:
        path = files._folder.path / f"{number}.state"
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/full")
        return path

    network = Network()
    limit = network.find_limit()
    monkeypatch.setattr(StateFiles, "_path", lead_nowhere)
    with pytest.raises(
        InputError, match=rf"offload: {tmp_path} cannot take a checkpoint of .* the disk is full"
    ):
        network.run(memory=limit, offload=tmp_path)
    assert not list(tmp_path.iterdir())


_RUN = """
import sys, torch
from ckptplan.torch import bptt
from ckptplan.torch.store import place
from ckptplan.torch.adapters import TorchCell
place._time_states = lambda *_, through, most: place.Rates(1e-7, 1e-7)
def cell(state, x):
    state = torch.tanh(state + x * weight)
    return state, state
weight = torch.ones(2**14, requires_grad=True)
def loss(_, output):
    return output.mean()
result = bptt(cell, torch.ones(120, 1), torch.zeros(2**14), loss, memory=int(sys.argv[2]), offload=sys.argv[1])
print(result.plan.predicted.remote_writes, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_run_that_ends_early_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    """What a killed one leaves goes with the next run."""
    command = ("-c", _RUN, str(tmp_path), str(20 * 2**16))
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with started(*command, **pipes, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 1
        assert list(tmp_path.rglob("*.state"))
        process.send_signal(how)
        assert process.wait() != 0
    assert bool(list(tmp_path.iterdir())) is (how is signal.SIGKILL)
    with started(*command, **pipes, text=True) as process:
        process.communicate("")
    assert not list(tmp_path.iterdir())
