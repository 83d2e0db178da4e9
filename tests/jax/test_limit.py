"""The compiled program is within ``memory=``, or the call is refused with a limit that is then accepted."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ckptplan.jax
import ckptplan.jax.limit
from ckptplan import InputError
from tests.jax import programs
from tests.jax.support import bytes_of, limited, read_least
from tests.support import calibration

STEPS = 100
#: More than the least by these shares of what is between the least and the plain program.
ROOM = (0.0, 0.3)
#: What a caller's own part of a program may take.
TOLERANCE = 1.03
#: Cases whose gradients are compared, too: what other tests do not have.
COMPARED = (
    "GRU in bf16",
    "LSTM, products in bf16",
    "a batch of vmap",
    "a batch of vmap, LIF",
    "models of vmap",
)


@pytest.fixture(autouse=True)
def single_precision() -> Any:
    with jax.enable_x64(False):
        yield


def compiled(case: programs.Case, scan: Any) -> Any:
    return jax.jit(jax.value_and_grad(lambda weights, xs: case.loss(scan, weights, xs))).lower(
        case.weights, jax.ShapeDtypeStruct(case.xs.shape, case.xs.dtype)
    )


def find_least(case: programs.Case) -> int:
    """Return the limit that the refusal of a smaller one names."""
    with pytest.raises(InputError, match="accepted: at least") as error:
        compiled(case, limited(1))
    return read_least(error)


@pytest.mark.parametrize("name", programs.NAMES)
def test_a_program_is_within_its_limit_and_the_least_that_is_named_is_accepted(name: str) -> None:
    case = programs.make(name, STEPS)
    least, plain = find_least(case), compiled(case, jax.lax.scan)
    for room in ROOM:
        limit = int(least + room * max(0, bytes_of(plain) - least))
        ours = compiled(case, limited(limit))
        assert bytes_of(ours) <= TOLERANCE * limit, room
        if name in COMPARED:
            check_gradients(
                *(one.compile()(case.weights, case.xs) for one in (ours, plain)), half="bf16" in name
            )


def check_gradients(ours: Any, theirs: Any, *, half: bool) -> None:
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        difference = np.abs(np.asarray(one, np.float32) - np.asarray(other, np.float32)).max()
        # Numbers of bf16 have eight bits.
        assert difference <= (0.05 if half else 1e-4) * np.abs(np.asarray(other, np.float32)).max()


def test_inputs_that_a_program_has_as_constants_take_no_more_than_as_arguments() -> None:
    """A compiler that folded them would keep what it made of them."""
    keys = jax.random.split(jax.random.key(0), 3)
    weights = tuple(jax.random.normal(key, (n, 64)) / 8 for key, n in zip(keys, (32, 64), strict=False))
    xs = jax.random.normal(keys[2], (200, 16, 32))

    def delayed(weights: Any, state: Any, x: Any) -> Any:
        line, step = state
        late = jax.lax.dynamic_index_in_dim(line, (step + 1) % 40, 1, keepdims=False)
        h = jnp.tanh(x @ weights[0] + late @ weights[1])
        return (jax.lax.dynamic_update_index_in_dim(line, h, step % 40, 1), step + 1), h

    def total(weights: Any, xs: Any) -> Any:
        start = jnp.zeros((16, 40, 64)), jnp.zeros((), jnp.int32)
        cell = partial(delayed, weights)
        return ckptplan.jax.bptt(cell, start, xs, lambda _, h: (h**2).sum(), memory="1 MB")[0]

    with_arguments = jax.jit(jax.grad(total)).lower(weights, xs)
    with_constants = jax.jit(jax.grad(lambda weights: total(weights, xs))).lower(weights)
    assert bytes_of(with_constants) <= min(1_000_000, 1.01 * bytes_of(with_arguments))


@pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.float16])
def test_inputs_in_half_precision_are_read_where_they_are(kind: Any) -> None:
    """No copy of all of them sets a floor, or is left out of what a program takes."""

    def loss(scan: Any, weights: Any, xs: Any) -> Any:
        def cell(h: Any, x: Any) -> Any:
            return jnp.tanh(0.5 * h + (x @ weights).astype(jnp.float32)), None

        return jnp.square(scan(cell, jnp.zeros((16, 32)), xs)[0]).mean()

    weights, xs = jnp.ones((256, 32), kind), jnp.ones((400, 16, 256), kind)
    case = programs.Case(loss=loss, weights=weights, xs=xs)
    least = find_least(case)
    assert least < xs.nbytes / 10
    for share in (1, 1.25, 40):
        assert bytes_of(compiled(case, limited(int(share * least)))) <= TOLERANCE * share * least


#: Strategies that keep nothing in remote memory, for plans of a GRU.
LOCAL = ("standard", "nested", "growing", "revolve", "optimal")
LONG, SHAPE = 600, (programs.BATCH, programs.NEURONS)


def mean_square(_: Any, output: Any) -> Any:
    return jnp.mean(output**2)


@pytest.mark.parametrize("share", [0.03, 0.2])
@pytest.mark.parametrize("strategy", LOCAL)
def test_a_plan_of_any_strategy_takes_what_was_predicted(strategy: str, share: float) -> None:
    """Also where it has its most checkpoints when it has few tapes: within 5 %, with little memory, too."""
    case, start = programs.make("GRU", LONG), jnp.zeros(SHAPE)
    cell = partial(programs.gru, case.weights)
    workload = ckptplan.jax.plan_for(cell, start, case.xs, mean_square, memory="1 GB").workload
    budget = workload.workspace_bytes + int(share * LONG * workload.tape_bytes)
    machine = ckptplan.HardwareProfile(name="host", local_bytes=2**30, remote_bytes=0)
    plan = ckptplan.optimize(workload, machine, strategies=[strategy], local_bytes=budget)

    def loss(weights: Any, xs: Any) -> Any:
        return ckptplan.jax.bptt(partial(programs.gru, weights), start, xs, mean_square, plan=plan)[0]

    predicted = plan.predicted.local_peak_bytes
    lowered = jax.jit(jax.grad(loss)).lower(case.weights, case.xs)
    assert abs(bytes_of(lowered) - predicted) <= 0.05 * predicted


def find_units(text: str) -> set[str]:
    """Return the units of all sizes of 1,000 bytes and more."""
    return set(re.findall(r"\d ([kKM]i?B)\b", text))


def test_plans_have_the_units_of_the_limit() -> None:
    """The plan of the least limit, too, whose program was compiled to count its bytes."""
    state, xs = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((8, 64), (200, 8, 64)))

    def plan_for(memory: str) -> ckptplan.Plan:
        return ckptplan.jax.plan_for(lambda h, x: (jnp.tanh(h * x), None), state, xs, memory=memory)

    with pytest.raises(InputError, match="7 kB are too little") as error:
        plan_for("7 kB")
    assert find_units(str(error.value)) == {"kB"}
    least = re.search(r'memory="([^"]+)"', str(error.value))
    assert least
    for memory in ("333 kB", least[1]):
        assert find_units(str(plan_for(memory))) == {"kB"}


def test_the_refusal_of_a_batch_has_the_units_of_the_limit() -> None:
    """A third of it is no whole number of kB."""

    def loss(weights: Any, xs: Any) -> Any:
        def run(xs: Any) -> Any:
            step = lambda h, x: (jnp.tanh(h @ weights + x), None)  # noqa: E731
            return ckptplan.jax.scan(step, xs[0], xs, memory="10 kB")[0]

        return jax.vmap(run)(xs).sum()

    with pytest.raises(InputError, match="10 kB are too little") as error:
        jax.grad(loss)(jnp.eye(64), jnp.ones((3, 50, 8, 64)))
    assert find_units(str(error.value)) == {"kB"}


def test_a_forward_pass_alone_converts_no_array_of_half_precision_in_each_step() -> None:
    """In ``jax.lax.scan``, each step converts all stacked arrays on a CPU, so that times grow with T^2."""

    def count_converted(scan: Any) -> int:
        def run(weights: Any, xs: Any) -> Any:
            def cell(h: Any, x: Any) -> Any:
                h = jnp.tanh(h @ weights + x)
                return h, h

            return scan(cell, xs[0], xs)

        weights, xs = jnp.eye(64, dtype=jnp.bfloat16), jnp.ones((600, 32, 64), jnp.bfloat16)
        return str(jax.jit(run).lower(weights, xs).compile().as_text()).count("f32[600,")

    # At most the stacked results are converted, once.
    assert count_converted(limited("200 MB")) <= 1 < count_converted(jax.lax.scan)


def test_a_forward_pass_alone_traces_no_backward_pass() -> None:
    """And plans nothing, whatever the limit, with ``jit`` or without."""
    count = 0

    @jax.custom_vjp
    def square(x: Any) -> Any:
        return x * x

    def backward(x: Any, gradient: Any) -> Any:
        nonlocal count
        count += 1
        return (2 * x * gradient,)

    square.defvjp(lambda x: (square(x), x), backward)

    def run(xs: Any, memory: int | str = 1) -> Any:
        return ckptplan.jax.scan(lambda h, x: (square(h) + x, h), xs[0], xs, memory=memory)[1]

    xs = np.ones((20, 8), np.float32) / 10
    text = str(jax.make_jaxpr(run)(xs))
    assert run(xs).shape == jax.jit(run)(xs).shape == xs.shape
    assert count == 0
    assert "planned_loop" in text
    with pytest.raises(InputError, match="memory: 1 B are too little"):
        jax.grad(lambda xs: run(xs).sum())(xs)
    jax.grad(lambda xs: run(xs, "1 MB").sum())(xs)
    assert count > 0


def timed_with_residuals(cell: Any, state: Any, xs: Any) -> ckptplan.Workload:
    """A workload as a calibration of the cell with residuals makes it."""
    workload = ckptplan.jax.plan_for(cell, state, xs, memory="1 GB").workload
    assert workload.name.startswith("jax-residuals")
    measured = calibration(0.01).model_copy(update={"jax": "0.10", "tape": "residuals"})
    return workload.model_copy(update={"calibration": measured, "name": "mine"})


@pytest.mark.parametrize("tape", ["states", None])
def test_calibrated_times_are_taken_for_each_kind_of_tape_and_near_the_least_limit(tape: Any) -> None:
    """Of a cell whose tapes differ in size: the calibration is of one of them."""

    def cell(state: Any, x: Any) -> Any:
        state = jnp.tanh(jnp.sin(state) * jnp.cos(x) + jnp.exp(-(state**2)))
        return state, None

    state, xs = jnp.zeros((16, 48)), jnp.ones((STEPS, 16, 48))
    timed = timed_with_residuals(cell, state, xs)

    def loss(state: Any, xs: Any, memory: int) -> Any:
        final, _ = ckptplan.jax.scan(cell, state, xs, memory=memory, workload=timed, tape=tape)
        return (final**2).sum()

    compile_within = jax.jit(jax.grad(loss), static_argnums=2).lower
    with pytest.raises(InputError, match=r"memory: .*accepted: at least") as error:
        compile_within(state, xs, 5_000)
    least = read_least(error)
    for limit in (least, 2 * least):
        assert bytes_of(compile_within(state, xs, limit)) <= TOLERANCE * limit


def test_a_limit_that_is_surely_large_enough_compiles_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it choose another plan than the quickest one; closer ones are looked at."""
    counted: list[int] = []

    def count(passes: Any, **_: Any) -> int:
        counted.append(1)
        return int(passes.table.layout.byte_size)

    monkeypatch.setattr(ckptplan.jax.limit, "count_bytes", count)
    xs, memory = jnp.ones((STEPS, 8)), 10**9
    for programs_compiled in (0, 1):
        plan = ckptplan.jax.plan_for(lambda h, x: (jnp.tanh(h * x), None), xs[0], xs, memory=memory)
        assert plan.strategy == "base"
        assert len(counted) == programs_compiled
        memory = STEPS * plan.workload.tape_bytes + 20_000


@pytest.mark.parametrize(("share", "told"), [(1.0, True), (3.0, False)])
def test_a_loss_that_may_pass_the_limit_is_told_of(share: float, told: bool, caplog: Any) -> None:
    """Where outputs are much of the limit, and it has no room for one more array of all of them."""
    case = programs.make("GRU", STEPS)
    limit = int(share * find_least(case))
    compiled(case, limited(limit))
    found = [one.message for one in caplog.records if one.name == "ckptplan.jax"]
    assert len(found) == told
    assert all("ckptplan.jax.bptt adds up the loss step by step" in one for one in found)
