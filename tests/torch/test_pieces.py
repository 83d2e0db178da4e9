"""Law: layers and networks that take many time steps a call, wrapped, give what they give by themselves."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import ckptplan
from ckptplan import InputError
from ckptplan.torch import PlanMismatch, wrap
from ckptplan.torch.device.meters import LiveBytes
from ckptplan.torch.pieces.inputs import reverse_each
from tests.torch.support import assert_close, gradients, plan_of, read_least
from tests.torch.zoo import import_quietly

functional, layer, neuron = (
    import_quietly(f"spikingjelly.activation_based.{name}") for name in ("functional", "layer", "neuron")
)

#: Not a multiple of the piece, so that the last one is shorter.
STEPS, PIECE, BATCH = 61, 4, 3
PLAN = plan_of(16, "double", states=8)
KINDS: dict[str, Callable[..., torch.nn.RNNBase]] = {
    "LSTM": torch.nn.LSTM,
    "GRU": torch.nn.GRU,
    "tanh": torch.nn.RNN,
    "relu": lambda *given, **more: torch.nn.RNN(*given, nonlinearity="relu", **more),
}


def make(kind: str = "LSTM", *, dtype: torch.dtype = torch.float64, layers: int = 2, **more: Any) -> Any:
    torch.manual_seed(0)
    return KINDS[kind](5, 7, num_layers=layers, dtype=dtype, **more)


def make_inputs(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*(shape or (STEPS, BATCH, 5)), dtype=dtype, requires_grad=True)


def wrap_planned(net: Any, **options: Any) -> Any:
    return wrap(net, **{"plan": PLAN, **options})


def make_state(net: Any, *batch: int) -> tuple[Any, list[torch.Tensor]]:
    """A hidden state as the network takes it, and its tensors."""
    count = net.num_layers * (2 if net.bidirectional else 1)
    sizes = [net.proj_size or net.hidden_size, *([net.hidden_size] if net.mode == "LSTM" else [])]
    parts = [make_inputs(count, *batch, size) for size in sizes]
    return (tuple(parts) if net.mode == "LSTM" else parts[0]), parts


def list_results(result: Any) -> list[torch.Tensor]:
    outputs, hidden = result
    data = outputs.data if isinstance(outputs, PackedSequence) else outputs
    return [data, *(hidden if isinstance(hidden, tuple) else (hidden,))]


def check(
    net: Any, ours: Any, call: Callable[[Any], Any], wanted: Any = (), *, relative: float = 1e-10
) -> None:
    """Results, and gradients of a loss of all of them, are those of the network by itself."""
    wanted = [*wanted, *net.parameters()]
    found = []
    for one in (net, ours):
        results = list_results(call(one))
        weights = torch.Generator().manual_seed(1)
        terms = [(part * torch.randn(part.shape, generator=weights)).sum() for part in results]
        found.append(([part.detach() for part in results], gradients(torch.stack(terms).sum(), wanted)))
    (theirs, slopes), (mine, mine_slopes) = found
    assert [part.shape for part in mine] == [part.shape for part in theirs]
    assert_close(mine, theirs, relative=relative)
    assert_close(mine_slopes, slopes, relative=relative)


def give_packed(x: torch.Tensor, lengths: list[int], *, is_sorted: bool) -> Callable[[Any, Any], Any]:
    """Return a call with sequences of unequal length, whose order stays."""

    def call(net: Any, hx: Any) -> Any:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=is_sorted)
        found = net(packed, hx)
        for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
            assert getattr(found[0], name) is getattr(packed, name)
        return found

    return call


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("form", ["one layer", "two layers", "sorted lengths", "lengths"])
@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_are_those_of_the_layers(
    kind: str, form: str, bidirectional: bool, given: bool
) -> None:
    """Gradients of weights, inputs and, if one is given, of the initial state.

    Packed sequences end, or begin when time runs backwards, within pieces and at their ends.
    """
    net = make(kind, layers=1 if form == "one layer" else 2, bidirectional=bidirectional)
    batch = 4 if "lengths" in form else BATCH
    hx, parts = make_state(net, batch) if given else (None, [])
    x = make_inputs(STEPS, batch, 5)

    is_sorted = form == "sorted lengths"
    call: Callable[[Any, Any], Any] = lambda one, hx: one(x, hx)  # noqa: E731 - another one for packed sequences
    if "lengths" in form:
        call = give_packed(x, [STEPS, 40, 7, 1] if is_sorted else [7, STEPS, 1, 40], is_sorted=is_sorted)
    check(net, wrap_planned(net), lambda one: call(one, hx), [x, *parts])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_shapes_are_those_of_the_layers(batched: bool, batch_first: bool, bidirectional: bool) -> None:
    for more in ({}, {"proj_size": 3}, {"bias": False}):
        net = make("LSTM", batch_first=batch_first, bidirectional=bidirectional, **more)
        shape = (BATCH, STEPS) if batch_first else (STEPS, BATCH)
        x = make_inputs(*(shape if batched else (STEPS,)), 5)
        hx, parts = make_state(net, *((BATCH,) if batched else ()))
        check(net, wrap_planned(net), lambda one, x=x, hx=hx: one(x, hx), [x, *parts])  # type: ignore[misc]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_gradients_in_fp32_are_within_1e_minus_5(kind: str) -> None:
    net = make(kind, dtype=torch.float32)
    x = make_inputs(dtype=torch.float32)
    check(net, wrap_planned(net), lambda one: one(x), [x], relative=1e-5)


def test_packed_sequences_are_reversed_on_the_cpu() -> None:
    """Whatever torch.set_default_device says, which no layer on the CPU shows."""
    sizes = torch.tensor([4, 3, 3, 2, 1])
    with torch.device("meta"):
        order = reverse_each(sizes)
    data = pack_padded_sequence(torch.arange(20.0).view(5, 4), [5, 4, 3, 1]).data
    assert data[order][order].tolist() == data.tolist()
    assert data[order][:4].tolist() == [16.0, 13.0, 10.0, 3.0]  # the last step of each


# Memory


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("kind", "bidirectional", "share"), [("LSTM", False, 0.2), ("GRU", False, 0.35), ("LSTM", True, 0.45)]
)
def test_the_live_tensors_of_a_call_stay_within_the_limit(
    kind: str, bidirectional: bool, share: float, packed: bool
) -> None:
    torch.manual_seed(0)
    net = KINDS[kind](32, 32, num_layers=2, bidirectional=bidirectional)
    x = torch.randn(120, 8, 32)
    given = pack_padded_sequence(x, list(range(120, 80, -5))) if packed else x
    weights = torch.randn_like(list_results(net(given))[0])

    def train(one: Any) -> int:
        net.zero_grad()
        with LiveBytes() as live:
            (list_results(one(given))[0] * weights).sum().backward()
        return int(live.peak)

    limit = int(share * train(net))
    ours = wrap(net, memory=limit)
    for _ in range(3):
        assert train(ours) <= 1.03 * limit
    for chosen in ours.latest:
        assert isinstance(chosen.plan, ckptplan.Plan)
        assert chosen.plan.predicted.recomputed_steps > 0


def test_later_calls_join_pieces_in_the_order_of_time() -> None:
    """The third call is a plain loop over pieces, of which one direction runs the last piece first."""
    net, x = torch.nn.LSTM(5, 7, bidirectional=True).double(), torch.randn(200, 3, 5, dtype=torch.float64)
    ours = wrap(net, memory="1 GiB", piece=16)
    for _ in range(5):
        assert_close([ours(x)[0].detach()], [net(x)[0].detach()], relative=1e-12)


@pytest.mark.parametrize("share", [1.0, 2.5])
def test_packed_sequences_of_unequal_lengths_keep_the_limit(share: float) -> None:
    """Most sequences end early, and the first pieces take the most memory."""
    net, data = torch.nn.LSTM(16, 48), torch.randn(300, 16, 16)
    packed = pack_padded_sequence(data, torch.tensor([300] + [50] * 15))
    with pytest.raises(InputError) as caught:
        wrap(net, memory=1, outputs="last")(packed)
    limit = int(share * read_least(caught.value))
    ours = wrap(net, memory=limit, outputs="last")
    for _ in range(3):
        with LiveBytes() as live:
            ours(packed)[0].sum().backward()
        assert live.peak <= 1.03 * limit


def test_the_limit_decides_how_much_runs_again_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    net, x = make(), make_inputs(400, BATCH, 5)
    again = []
    with caplog.at_level(logging.INFO, logger="ckptplan.torch"):
        for memory in ("1 GiB", 500_000):
            ours = wrap(net, memory=memory, piece=8)
            check(net, ours, lambda one: one(x), [x])
            (chosen,) = ours.latest
            assert chosen.piece == 8
            assert chosen.plan.steps == 50
            assert isinstance(chosen.plan, ckptplan.Plan)
            again.append(chosen.plan.predicted.recomputed_steps)
        wrap(net, memory="10 MB", piece=1)(x[:2])
    assert again[0] == 0 < again[1]
    assert "pieces of 8 time steps" in caplog.text
    assert "pieces of 1 time step, base for 2 steps" in caplog.text


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        (STEPS, {"memory": "auto"}),
        (STEPS, {}),
        *((steps, {"memory": 200_000}) for steps in (1, 2, 3, 63, 64, 65, 130)),
    ],
)
def test_a_limit_holds_for_any_length(steps: int, options: dict[str, Any]) -> None:
    """Without a limit, it is what the device has free."""
    net, x = make("GRU"), make_inputs(steps, BATCH, 5)
    ours = wrap(net, **options)
    check(net, ours, lambda one: one(x), [x])
    (chosen,), plan = ours.latest, ours.plan
    assert isinstance(plan, ckptplan.Plan)
    assert chosen.plan is plan
    assert plan.steps == -(-steps // chosen.piece)
    assert chosen.piece > 1 or steps < 64
    pieces = f"{plan.steps} piece{'s' if plan.steps > 1 else ''} of {chosen.piece}"
    assert f": call within a limit of memory, T = {steps} in {pieces}\n" in str(plan)


@pytest.mark.parametrize(("layers", "bidirectional"), [(2, False), (1, True), (2, True), (3, True)])
def test_a_limit_that_is_too_small_is_refused_with_one_that_is_not(layers: int, bidirectional: bool) -> None:
    """The sequences of all layers and directions fit the limit that the first one names, within 3 %."""
    net, x = make(layers=layers, bidirectional=bidirectional), make_inputs(64, 8, 5)
    with pytest.raises(InputError, match=r"too little.*outputs and gradients.*torch.bptt of a cell") as refusal:
        wrap(net, memory=1_000)(x)
    assert refusal.value.field == "memory"
    assert refusal.value.accepted is not None
    check(net, wrap(net, memory=int(1.03 * read_least(refusal.value))), lambda one: one(x), [x])


def test_a_plan_has_a_step_for_each_piece() -> None:
    net, x = make(), make_inputs()
    for piece in (None, PIECE):
        ours = wrap_planned(net, piece=piece)
        check(net, ours, lambda one: one(x), [x])
        assert ours.latest[0].piece == PIECE
    schedule = ckptplan.Schedule(
        steps=STEPS, actions=tuple(ckptplan.actions(plan_of(STEPS, "standard", states=30)))
    )
    check(net, wrap(net, plan=schedule), lambda one: one(x), [x])
    wrong: list[tuple[int, dict[str, Any], str]] = [
        (STEPS, {"piece": 7}, "pieces of 7 time steps are 9"),
        (STEPS, {"plan": plan_of(60)}, "61 time steps"),
        (2, {"plan": plan_of(1), "piece": 1}, "has 1 step, and pieces of 1 time step are 2"),
    ]
    for steps, options, text in wrong:
        with pytest.raises(InputError, match=text) as refusal:
            wrap_planned(net, **options)(x[:steps])
        assert refusal.value.field == "plan"


def test_arguments_that_wrap_does_not_know_are_refused_with_those_that_it_takes() -> None:
    with pytest.raises(InputError, match=r"Did you mean 'piece'\?.*plan, remote_dir") as refusal:
        wrap_planned(make(), pieces=4)
    assert not {"schedule", "net", "unknown"} & {*str(refusal.value.accepted).split(", ")}


def test_a_plan_for_other_sizes_warns_and_is_refused_if_strict(tmp_path: Path) -> None:
    """As under ``unroll``, whose options are taken."""
    net, x = make(), make_inputs()
    other = plan_of(16, "double", states=8, state_bytes=10_000)
    with pytest.warns(PlanMismatch):
        wrap_planned(net, plan=other)(x)
    with pytest.raises(InputError, match="the plan is for states"):
        wrap_planned(net, plan=other, strict=True)(x)
    seen: list[Any] = []
    options = {"remote_dir": tmp_path, "observer": lambda action, _: seen.append(action)}
    check(net, wrap_planned(net, plan=plan_of(16, "remote", states=4), **options), lambda one: one(x), [x])
    assert any(isinstance(one, ckptplan.schedule.actions.Save) for one in seen)


def test_pieces_that_differ_when_they_run_again_are_refused() -> None:
    """As inputs that were changed behind PyTorch's back; ``verify=False`` looks away."""
    net = make()
    for verify in (True, False):
        x = make_inputs()
        outputs, _ = wrap_planned(net, verify=verify)(x)
        x.data.mul_(2)
        if verify:
            with pytest.raises(InputError, match="when its steps run again"):
                outputs.sum().backward()
        else:
            outputs.sum().backward()


# Modules


@pytest.mark.parametrize("bidirectional", [False, True])
def test_dropout_between_layers_is_drawn_again_when_pieces_run_again(bidirectional: bool) -> None:
    net, x = make(dropout=0.5, bidirectional=bidirectional), make_inputs()
    found = []
    for plan in (plan_of(16, "base", states=99), PLAN):
        ours = wrap_planned(net, plan=plan)
        torch.manual_seed(1)
        outputs, _ = ours(x)
        drawn = torch.get_rng_state()
        found.append([outputs.detach(), *gradients(outputs.square().sum(), [x, *net.parameters()])])
        assert torch.equal(torch.get_rng_state(), drawn)
    assert_close(found[1], found[0], relative=1e-12)
    torch.manual_seed(2)
    assert not torch.allclose(wrap_planned(net)(x)[0], found[0][0])
    net.eval()
    check(net, wrap_planned(net), lambda one: one(x), [x])


def test_a_quarter_of_what_goes_up_is_dropped() -> None:
    """A second layer that only passes on what it gets shows the masks, scaled as in PyTorch."""
    net: Any = torch.nn.RNN(1, 200, num_layers=2, nonlinearity="relu", dropout=0.25, bias=False)
    with torch.no_grad():
        for weight in net.parameters():
            weight.zero_()
        net.weight_ih_l0.fill_(1.0)
        net.weight_ih_l1.copy_(torch.eye(200))
    outputs = wrap_planned(net)(torch.ones(STEPS, BATCH, 1))[0]
    assert sorted(outputs.unique().tolist()) == pytest.approx([0.0, 1 / 0.75])
    assert float(outputs.eq(0).double().mean()) == pytest.approx(0.25, abs=0.02)


def test_shared_frozen_and_computed_weights() -> None:
    x = make_inputs()
    shared = make()
    shared.weight_hh_l1 = shared.weight_hh_l0
    check(shared, wrap_planned(shared), lambda one: one(x), [x])
    computed = weight_norm(make(), "weight_hh_l0")
    check(computed, wrap_planned(computed), lambda one: one(x), [x])
    frozen = make()
    frozen.weight_hh_l0.requires_grad_(False)
    wrap_planned(frozen)(x)[0].sum().backward()
    assert frozen.weight_hh_l0.grad is None
    assert frozen.weight_hh_l1.grad is not None
    frozen.requires_grad_(False)
    found = [gradients(one(x)[0].square().sum(), [x]) for one in (frozen, wrap_planned(frozen))]
    assert_close(found[1], found[0], relative=1e-12)


def test_weights_of_functional_call_are_used() -> None:
    net, x = make(), make_inputs()
    ours = wrap_planned(net)
    halves = {name: (0.5 * one).detach().requires_grad_() for name, one in net.named_parameters()}
    theirs = torch.func.functional_call(net, halves, (x,))[0]
    mine = torch.func.functional_call(ours, halves, (x,))[0]
    assert torch.allclose(mine, theirs)
    wanted = list(halves.values())
    assert_close(gradients(mine.sum(), wanted), gradients(theirs.sum(), wanted), relative=1e-10)


def test_hooks_run_once_for_the_whole_sequence() -> None:
    net, x = make(), make_inputs()
    calls: list[str] = []
    net.register_forward_pre_hook(lambda *_: calls.append("before"))

    def double(_: object, __: object, result: Any) -> Any:
        calls.append("after")
        return 2 * result[0], result[1]

    def triple(gradient: torch.Tensor) -> torch.Tensor:
        calls.append("weight")
        return 3 * gradient

    net.register_forward_hook(double)
    net.register_full_backward_hook(lambda *_: calls.append("backward"))
    net.weight_hh_l0.register_hook(triple)
    check(net, wrap_planned(net), lambda one: one(x), [x])
    assert sorted(calls) == sorted(2 * ["before", "after", "backward", "weight"])
    assert "forward" not in vars(net)


def test_without_gradients_the_layers_run_as_they_are() -> None:
    net, x = make(dropout=0.5), make_inputs()
    ours = wrap_planned(net)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.manual_seed(1)
            theirs = net(x)[0]
            torch.manual_seed(1)
            assert torch.equal(ours(x)[0], theirs)
    assert ours.latest == ()


def test_copies_and_the_attributes_of_the_layers() -> None:
    net, x = make(), make_inputs()
    ours = wrap_planned(net)
    expected = ours(x)[0]
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):  # noqa: S301 - our own
        assert torch.equal(copied(x)[0], expected)
    assert list(ours.state_dict()) == list(net.state_dict())
    ours.flatten_parameters()
    assert (ours.hidden_size, ours.bidirectional) == (7, False)
    assert ours.weight_ih_l0 is net.weight_ih_l0
    with pytest.raises(AttributeError, match="nothing"):
        _ = ours.nothing
    assert ours.float()(x.detach().float())[0].dtype == torch.float32


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_autocast_is_that_of_the_call(kind: str) -> None:
    net, x = make(kind, dtype=torch.float32), make_inputs(dtype=torch.float32)

    def call(one: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return one(x)

    try:
        call(net)
    except RuntimeError as error:
        # PyTorch has no such layer in bfloat16 for every processor (without AVX-512, say): wrapped or not.
        with pytest.raises(RuntimeError, match=str(error)[:60]):
            call(wrap_planned(net))
        return
    dtypes = [[part.dtype for part in list_results(call(one))] for one in (net, wrap_planned(net))]
    assert dtypes[0] == dtypes[1]
    exact = gradients(net(x)[0].square().sum(), net.parameters())
    distances = []
    for one in (net, wrap_planned(net), wrap(net, memory="300 kB", piece=PIECE)):
        found = gradients(call(one)[0].float().square().sum(), net.parameters())
        pairs = zip(found, exact, strict=True)
        distances.append(max(float((mine - real).norm() / real.norm()) for mine, real in pairs))
    assert 0 < max(distances) < 1.5 * distances[0] < 0.1


# Bad inputs


class Doubled(torch.nn.LSTM):
    def forward(self, input: Any, hx: Any = None) -> Any:  # noqa: A002
        outputs, hidden = super().forward(input, hx)
        return 2 * outputs, hidden


@pytest.mark.parametrize(
    ("net", "more", "field"),
    [
        (lambda x: x, {"memory": "1 GiB"}, "net"),
        (Doubled(5, 7), {"memory": "1 GiB"}, "net"),
        (torch.nn.LSTM(5, 7), {"memory": "much"}, "memory"),
        (torch.nn.LSTM(5, 7), {"memory": 0}, "memory"),
        (torch.nn.LSTM(5, 7), {"memory": "1 GiB", "plan": PLAN}, "memory"),
        (torch.nn.LSTM(5, 7), {"plan": 3}, "plan"),
        (torch.nn.LSTM(5, 7), {"memory": "1 GiB", "piece": 0}, "piece"),
        (torch.nn.LSTM(5, 7), {"memory": "1 GiB", "piece": True}, "piece"),
        (torch.nn.LSTM(5, 7), {"memory": "1 GiB", "piece": 2.0}, "piece"),
        (torch.nn.LSTM(5, 7), {"memory": "1 GiB", "chunk": 2}, "chunk"),
        (torch.nn.LSTM(5, 7), {"memory": "1 GiB", "schedule": []}, "schedule"),
        (torch.nn.LSTM(5, 7), {"reset": print}, "reset"),
        (torch.nn.Tanh(), {"piece": 3}, "piece"),
        (torch.nn.Tanh(), {"multi_step": True, "time_dim": 2}, "time_dim"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_by_name(net: Any, more: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refusal:
        wrap(net, **more)
    assert refusal.value.field == field
    assert refusal.value.accepted


@pytest.mark.filterwarnings("ignore")
def test_neurons_of_rockpool_are_refused_which_lose_their_state_between_calls() -> None:
    """They keep the state of the first sequence of a batch alone, without its graph."""
    from rockpool.nn.combinators import Sequential  # type: ignore[import-untyped]
    from rockpool.nn.modules import LIFTorch, LinearTorch  # type: ignore[import-untyped]

    net = Sequential(LinearTorch((5, 7)), LIFTorch(7, dt=1e-3)).to_torch()
    with pytest.raises(InputError, match=r"has LIFTorch \(1_LIFTorch\) of Rockpool.*accepted: .*snnTorch"):
        wrap(net, memory="1 MB", multi_step=True, time_dim=1)


def test_wrong_arguments_of_a_call() -> None:
    """What has a shape is refused as the layers refuse it."""
    ours = wrap_planned(make())
    with pytest.raises(InputError) as refusal:
        ours([1, 2])
    assert refusal.value.field == "input"
    for given, hx in (
        (make_inputs(STEPS, 1, BATCH, 5), None),
        (make_inputs(), make_state(ours.net)[0]),
        (make_inputs(STEPS, BATCH, 6), None),
        (make_inputs(), make_state(ours.net, BATCH + 1)[0]),
    ):
        with pytest.raises((ValueError, RuntimeError)) as theirs:
            ours.net(given, hx)
        with pytest.raises(type(theirs.value)) as mine:
            ours(given, hx)
        assert str(mine.value) == str(theirs.value)


def test_a_norm_that_moves_when_weights_are_read_is_refused_and_left_alone() -> None:
    """PyTorch's layer moves it several times in each call; in eval() it stays, and if it is cached."""
    net = spectral_norm(make(), "weight_hh_l0")
    before = [buffer.clone() for buffer in net.buffers()]
    ours = wrap_planned(net)
    with pytest.raises(InputError, match=r"net: has weights that change whenever they are read"):
        ours(make_inputs())
    assert all(map(torch.equal, before, net.buffers()))
    ours.eval()
    inputs = make_inputs()
    torch.testing.assert_close(ours(inputs)[0], net(inputs)[0])


@pytest.mark.parametrize("norm", [weight_norm, spectral_norm])
def test_weights_that_are_computed_are_computed_once_a_call(norm: Any) -> None:
    nets = [norm(make("GRU"), "weight_hh_l0") for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    x, found = make_inputs(), []
    for module, net in ((nets[0], nets[0]), (wrap_planned(nets[1]), nets[1])):
        with torch.nn.utils.parametrize.cached():
            outputs, _ = module(x)
        found.append([outputs.detach(), *gradients(outputs.square().sum(), net.parameters()), *net.buffers()])
    assert_close(found[1], found[0], relative=1e-10)


# Networks that take many time steps a call


class MultiStep(torch.nn.Module):
    """Takes many time steps a call, batch first or time first, and keeps its state."""

    def __init__(self, time_dim: int) -> None:
        super().__init__()
        self.linear, self.time_dim = torch.nn.Linear(5, 6).double(), time_dim
        self.reset()

    def reset(self) -> None:
        self.v: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = []
        for current in self.linear(x).unbind(self.time_dim):
            self.v = torch.tanh(current + (0 if self.v is None else 0.9 * self.v))
            outputs.append(self.v)
        return torch.stack(outputs, self.time_dim)


def make_spiking() -> Any:
    net = torch.nn.Sequential(
        *(layer.Linear(5, 16), neuron.LIFNode(tau=2.0), layer.Linear(16, 6), neuron.LIFNode(tau=2.0))
    ).double()
    for parameter in net.parameters():
        parameter.data *= 4
    functional.set_step_mode(net, "m")
    return net


def make_container() -> Any:
    """A container that takes a sequence, though all of its layers take steps."""
    layers = torch.nn.Linear(5, 16), neuron.LIFNode(), torch.nn.Linear(16, 6)
    return layer.MultiStepContainer(*layers).double()


MULTI_STEP: dict[str, tuple[Callable[[], Any], Any, dict[str, Any]]] = {
    "time first": (lambda: MultiStep(0), MultiStep.reset, {"multi_step": True}),
    "batch first": (lambda: MultiStep(1), MultiStep.reset, {"multi_step": True, "time_dim": 1}),
    "SpikingJelly": (make_spiking, functional.reset_net, {}),
    "container": (make_container, functional.reset_net, {}),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "how",
    [{"plan": PLAN}, {"plan": plan_of(16, "base", states=99)}, {"memory": "60 kB"}, {"memory": "9 MB"}],
    ids=["revolve", "base", "60 kB", "9 MB"],
)
@pytest.mark.parametrize("name", MULTI_STEP)
def test_networks_that_take_many_time_steps_run_in_pieces(name: str, how: dict[str, Any]) -> None:
    make_net, reset, options = MULTI_STEP[name]
    torch.manual_seed(0)
    net, time_dim = make_net(), options.get("time_dim", 0)
    data = 2 * torch.rand(*((BATCH, STEPS) if time_dim else (STEPS, BATCH)), 5).double()
    data.requires_grad_()
    wanted = [data, *net.parameters()]
    reset(net)
    outputs = net(data)
    theirs = [outputs.detach(), *gradients(outputs.square().sum(), wanted)]
    assert any(bool(gradient.any()) for gradient in theirs[1:])
    wrapped = wrap(net, reset=reset, **options, **how)
    for _ in range(2):
        outputs = wrapped(data)
        assert_close([outputs.detach(), *gradients(outputs.square().sum(), wanted)], theirs, relative=1e-10)
    loss = wrapped.bptt(data, loss=lambda _, output: output.square().sum())
    assert_close(gradients(loss, wanted), theirs[1:], relative=1e-10)
    weights = torch.arange(1, STEPS + 1).double()

    def chunk_loss(start: int, outputs: torch.Tensor) -> torch.Tensor:
        return (weights[start : start + len(outputs)] * outputs.sum((1, 2))).sum()

    loss = wrapped.bptt(data, chunk_loss=chunk_loss)
    expected = (weights * theirs[0].movedim(time_dim, 0).sum((1, 2))).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
    assert isinstance(wrapped.plan, ckptplan.Plan)
