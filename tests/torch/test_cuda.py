"""The same laws on a CUDA device: pinned buffers, copies that overlap compute, the device's own generator."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

import ckptplan
from ckptplan import InputError, Plan
from ckptplan.torch import Compile, bptt, plan_for
from ckptplan.torch.adapters import TorchCell
from ckptplan.torch.device.memory import available_bytes
from ckptplan.torch.device.meters import make_meter
from ckptplan.torch.lif import LIF
from ckptplan.torch.store.host import HostStore
from tests.torch.support import MACHINE, assert_close, gradients, plain, plan_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
STEPS = 120


def on(plan: Plan, *, beside: bool) -> Plan:
    """The plan for a machine whose transfers overlap compute, or do not."""
    workload = plan.workload
    machine = ckptplan.HardwareProfile(**{**dict(MACHINE), "overlaps_compute": beside})
    return ckptplan.optimize(workload, machine, strategies=[plan.strategy], local_bytes=12)


def squares(_: int, output: torch.Tensor) -> Any:
    return output.square().sum()


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("strategy", ["remote", "hierarchical", "double", "disk-revolve", "optimal"])
def test_gradients_equal_those_of_plain_bptt(strategy: str, beside: bool) -> None:
    """Whatever is on its way when it is asked for."""
    torch.manual_seed(0)
    module = torch.nn.GRUCell(5, 7).double().cuda()

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = module(x, state)
        return state, state

    inputs = torch.randn(STEPS, 3, 5, dtype=torch.float64, device="cuda", requires_grad=True)
    state = torch.randn(3, 7, dtype=torch.float64, device="cuda", requires_grad=True)
    wanted = [state, inputs, *module.parameters()]
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(torch.stack(outputs).square().sum(), wanted)
    result = bptt(cell, inputs, state, squares, plan=on(plan_of(STEPS, strategy), beside=beside))
    assert_close(gradients(result.loss, wanted), theirs, relative=1e-11)


def test_spiking_neurons_are_replayed() -> None:
    cell = LIF(5, 7, dtype=torch.float64, device="cuda", threshold=0.3)
    inputs = torch.randn(STEPS, 3, 5, dtype=torch.float64, device="cuda")
    state = cell.initial_state(3)
    outputs, _ = plain(cell, inputs, state, STEPS)
    theirs = gradients(torch.stack(outputs).square().sum(), list(cell.parameters()))
    result = bptt(cell, inputs, state, squares, plan=plan_of(STEPS, "optimal", alpha=1))
    assert_close(gradients(result.loss, list(cell.parameters())), theirs, relative=1e-11)


def test_dropout_on_the_device_is_drawn_again() -> None:
    torch.manual_seed(0)
    weight = torch.randn(7, 7, dtype=torch.float64, device="cuda", requires_grad=True)

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(torch.nn.functional.dropout(state @ weight, 0.5) + x)
        return state, state

    inputs = torch.randn(STEPS, 3, 7, dtype=torch.float64, device="cuda")
    state = torch.zeros(3, 7, dtype=torch.float64, device="cuda")
    torch.manual_seed(1)
    outputs, _ = plain(cell, inputs, state, STEPS)
    (theirs,) = gradients(torch.stack(outputs).square().sum(), [weight])
    torch.manual_seed(1)
    result = bptt(cell, inputs, state, squares, plan=plan_of(STEPS, "double"))
    assert_close(gradients(result.loss, [weight]), [theirs], relative=1e-11)


def test_host_memory_is_pinned_and_used_again() -> None:
    store = HostStore(torch.device("cuda"), ahead=True)
    for turn in range(50):
        state = torch.full((1 << 20,), float(turn), device="cuda")
        store.keep(turn, [state])
        # What is let go, and filled anew, must not reach the copy that is under way.
        del state
        torch.zeros(1 << 20, device="cuda")
        store.expect((turn,))
        assert store.fetch(turn)[0].eq(float(turn)).all()
        store.drop(turn)
    assert store.buffers == 1
    store.close()


class Network:
    """A recurrent cell on the device, with inputs and a state that need gradients."""

    def __init__(self, *, size: int = 7, batch: int = 3, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.GRUCell(5, size).to("cuda", dtype)
        self.inputs = torch.randn(STEPS, batch, 5, dtype=dtype).cuda().requires_grad_()
        self.state = torch.randn(batch, size, dtype=dtype).cuda().requires_grad_()
        self.wanted = [self.state, self.inputs, *self.module.parameters()]

    def cell(self, state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.module(x, state)
        return state, state

    def plain(self) -> list[torch.Tensor]:
        outputs, _ = plain(self.cell, self.inputs, self.state, STEPS)
        return gradients(torch.stack(outputs).square().sum(), self.wanted)

    def planned(self, plan: Plan, **options: Any) -> list[torch.Tensor]:
        result = bptt(self.cell, self.inputs, self.state, squares, plan=plan, **options)
        return gradients(result.loss, self.wanted)


@pytest.mark.parametrize("strategy", ["remote", "hierarchical"])
def test_a_run_in_a_stream_of_the_caller_is_ordered_with_it(strategy: str) -> None:
    network, plan = Network(), on(plan_of(STEPS, strategy), beside=True)
    theirs = network.plain()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        ours = network.planned(plan)
    stream.synchronize()
    assert_close(ours, theirs, relative=1e-11)


def test_host_memory_is_on_the_host_whatever_the_default_device() -> None:
    network, plan = Network(), plan_of(STEPS, "remote")
    theirs = network.plain()
    with torch.device("cuda"):
        ours = network.planned(plan)
    assert_close(ours, theirs, relative=1e-11)


def test_a_generator_on_the_device_draws_again() -> None:
    network = Network()
    generator = torch.Generator("cuda")

    def cell(state: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.rand(state.shape, generator=generator, device="cuda", dtype=state.dtype)
        state = network.module(x, state) * (noise > 0.2)
        return state, state

    generator.manual_seed(1)
    outputs, _ = plain(cell, network.inputs, network.state, STEPS)
    theirs = gradients(torch.stack(outputs).square().sum(), network.wanted)
    generator.manual_seed(1)
    result = bptt(cell, network.inputs, network.state, squares, plan=plan_of(STEPS, "double"))
    assert_close(gradients(result.loss, network.wanted), theirs, relative=1e-11)


def test_a_count_on_the_device_is_as_it_was_when_steps_run_again() -> None:
    """A truncation in every 25th step, of which no value tells."""
    network, theirs = Network(), list[torch.Tensor]()
    for planned in (False, True):
        count = torch.zeros((), device="cuda")

        def cell(state: torch.Tensor, x: torch.Tensor, count: torch.Tensor = count) -> Any:
            count += 1
            state = network.module(x, torch.where(count % 25 == 0, state.detach(), state))
            return state, state

        if planned:
            result = bptt(cell, network.inputs, network.state, squares, plan=plan_of(STEPS, "double"))
            assert_close(gradients(result.loss, network.wanted), theirs, relative=1e-11)
        else:
            outputs, _ = plain(cell, network.inputs, network.state, STEPS)
            theirs = gradients(torch.stack(outputs).square().sum(), network.wanted)
        assert int(count) == STEPS


def test_autocast_of_the_forward_pass_holds_when_steps_run_again() -> None:
    network = Network(size=64, dtype=torch.float32)
    with torch.autocast("cuda", dtype=torch.float16):
        outputs, _ = plain(network.cell, network.inputs, network.state, STEPS)
        loss = torch.stack([squares(0, one.float()) for one in outputs]).sum()
        result = bptt(
            network.cell,
            network.inputs,
            network.state,
            lambda t, output: squares(t, output.float()),
            plan=plan_of(STEPS, "double"),
        )
    theirs = gradients(loss, network.wanted)
    assert_close(gradients(result.loss, network.wanted), theirs, relative=1e-2)


def test_a_limit_of_memory_is_kept_on_the_device() -> None:
    """As the allocator counts it, which rounds each tensor up to 512 bytes; workspaces were made before."""
    network = Network(size=256, batch=64, dtype=torch.float32)
    plan = plan_for(network.cell, network.inputs, network.state, squares, memory=limit_of(network))
    network.planned(plan)
    with make_meter(torch.device("cuda")) as allocated:
        network.planned(plan)
    assert plan.strategy != "base"
    assert allocated.peak <= limit_of(network)


def limit_of(network: Network) -> int:
    """A tenth of what the tapes of all steps take, and the gradients."""
    weights = sum(one.nbytes for one in network.module.parameters())
    return STEPS * 7 * network.state.nbytes // 10 + 4 * weights


def test_available_memory_is_what_the_allocator_may_take() -> None:
    device = torch.device("cuda")
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.25)
    try:
        free = available_bytes(device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert free is not None
    assert free <= 0.25 * total - torch.cuda.memory_allocated(device)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore:The .grad attribute of a Tensor",
    "ignore:TensorFloat32 tensor cores",
    "ignore:The CUDA Graph is empty",
)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "cudagraphs"])
def test_compiled_pieces_give_the_gradients_of_steps(mode: str) -> None:
    """CUDA graphs overwrite their results: checkpoints and gradients outlive them, in later calls, too."""
    network, plan = Network(size=32, dtype=torch.float32), plan_of(STEPS, "double")
    theirs = network.plain()
    for _ in range(3):
        ours = network.planned(plan, compile=Compile(steps=4, mode=mode))
        assert_close(ours, theirs, relative=1e-4)


def test_gradients_under_ddp_on_one_device(tmp_path: Any) -> None:
    """A plan reduces its gradients once, as a plain loop under the same wrapper does."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = TorchCell(torch.nn.GRUCell(4, 6)).double()

        def forward(self, inputs: torch.Tensor, state: torch.Tensor, plan: Plan | None) -> torch.Tensor:
            if plan is not None:
                return bptt(self.cell, inputs, state, squares, plan=plan).loss
            total = inputs.new_zeros(())
            for x in inputs.unbind(0):
                state, output = self.cell(state, x)
                total = total + squares(0, output)
            return total

    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = DistributedDataParallel(Model().cuda())
        inputs, state = torch.randn(STEPS, 3, 4).double().cuda(), torch.zeros(3, 6).double().cuda()
        found = []
        for plan in (plan_of(STEPS, "standard", states=30), None):
            model.zero_grad()
            model(inputs, state, plan).backward()
            found.append([one.grad.clone() for one in model.parameters() if one.grad is not None])
    finally:
        torch.distributed.destroy_process_group()
    assert_close(*found, relative=1e-9)


@pytest.mark.parametrize("share", [1.0, 1.5, 4.0])
def test_the_limit_holds_by_the_allocator(share: float) -> None:
    """Kernels take memory of their own, too."""
    torch.manual_seed(0)
    module = torch.nn.GRUCell(64, 256).cuda()
    cell, inputs = TorchCell(module), torch.randn(STEPS, 128, 64, device="cuda")
    state = torch.zeros(128, 256, device="cuda")
    bptt(cell, inputs, state, squares, memory="1 GB").loss.backward()
    with pytest.raises(InputError) as refused:
        bptt(cell, inputs, state, squares, memory=1000)
    found = re.search(r"\(([\d,]+) bytes", str(refused.value))
    assert found is not None
    limit = round(share * int(found[1].replace(",", "")))
    for _ in range(3):
        module.zero_grad()
        with make_meter(torch.device("cuda")) as allocated:
            bptt(cell, inputs, state, squares, memory=limit).loss.backward()
        assert allocated.peak <= 1.03 * limit


def test_a_number_of_threads_may_be_set() -> None:
    """It belongs to a thread, and the backward pass runs in one of the device."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        module = torch.nn.GRUCell(5, 7).cuda()
        inputs, state = torch.randn(STEPS, 3, 5, device="cuda"), torch.zeros(3, 7, device="cuda")
        bptt(TorchCell(module), inputs, state, squares, memory="1 GB").loss.backward()
    finally:
        torch.set_num_threads(before)
    assert module.weight_hh.grad is not None
