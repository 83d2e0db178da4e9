"""Bad input is refused: in JAX's words if ``jax.lax.scan`` refuses it, else by name, with an accepted value."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import checkify, io_callback

import ckptplan.jax
from ckptplan import InputError
from ckptplan.errors import PlanMismatch
from tests.jax.support import STEPS, data, limited, noisy_loss, remote, standard, under
from tests.torch.support import plan_of

XS = np.ones((STEPS, 3))
SPEC: Any = jax.sharding.PartitionSpec


def keep(state: Any, x: Any) -> Any:
    return state, x


def vary_later(scan: Any) -> Any:
    """A loop within ``shard_map`` whose later states vary over devices, but not the first one."""
    mesh = jax.make_mesh((1,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    run: Any = lambda xs: scan(lambda h, x: (h + x, x), jnp.zeros(3), xs)[1]  # noqa: E731
    return jax.shard_map(run, mesh=mesh, in_specs=SPEC(None, "devices"), out_specs=SPEC(None, "devices"))(XS)


REFUSED_BY_JAX: dict[str, Callable[[Any], Any]] = {
    "lengths": lambda scan: scan(keep, 0.0, (XS, XS[1:])),
    "length of inputs": lambda scan: scan(keep, 0.0, XS, length=7),
    "no length": lambda scan: scan(keep, 0.0, None),
    "no time": lambda scan: scan(keep, 0.0, jnp.float32(1)),
    "unroll": lambda scan: scan(keep, 0.0, XS, unroll=-1),
    "no function": lambda scan: scan(3, 0.0, XS),
    "no pair": lambda scan: scan(lambda state, _: state, 0.0, XS),
    "structure": lambda scan: scan(lambda h, x: ((h, h), x), 0.0, XS),
    "structure within": lambda scan: scan(lambda h, x: ({**h, "b": None}, x), {"a": 1.0, "b": 2.0}, XS),
    "type": lambda scan: scan(lambda h, x: (h + x, x), 0.0, XS),
    "a list of steps": lambda scan: scan(lambda h, x: (h, x.sum()), 0.0, list(XS)),
    "devices": vary_later,
}


@pytest.mark.parametrize("use", REFUSED_BY_JAX)
def test_jax_refuses_what_scan_refuses(use: str) -> None:
    """The type and the words of the error are those of ``jax.lax.scan``."""
    errors = []
    for scan in (jax.lax.scan, under(standard()), limited("1 MB")):
        with pytest.raises((TypeError, ValueError, AttributeError, IndexError)) as error:
            REFUSED_BY_JAX[use](scan)
        errors.append((error.type, str(error.value).partition("\n---")[0]))
    assert errors[0] == errors[1] == errors[2]


def call_back(h: Any, x: Any) -> Any:
    return h + io_callback(lambda: np.ones(()), jax.ShapeDtypeStruct((), h.dtype)), x


def check_state(h: Any, x: Any) -> Any:
    checkify.check(jnp.all(h < 1), "large")
    return h, x


def change_in_place(h: Any, x: Any) -> Any:
    mine = jax.new_ref(h)
    mine[...] += 1
    return mine[...], x


def count_outside(count: Any, h: Any, x: Any) -> Any:
    count[...] += 1.0
    return h, x


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"plan": standard(19)}, "plan: is for 19 steps, and the sequence has 20"),
        ({}, r"memory: is missing.*memory='64 MiB', or plan=\.\.\."),
        ({"plan": standard(), "memory": "1 MB"}, "plan: is given together with memory"),
        ({"plan": "standard"}, "plan: 'standard' is not a plan"),
        ({"memory": "1 MB", "remote_dir": "here"}, "remote_dir: is not an argument"),
        ({"memory": "1 MB", "offload": "host"}, "offload: is not an argument"),
        ({"mem": "1 MB"}, "mem: is not an argument of scan. Did you mean 'memory'"),
        ({"memory": "auto"}, "memory: 'auto' is not a number"),
        ({"memory": "much"}, "memory: .*much"),
        ({"memory": 0}, "memory: 0 is not positive"),
        ({"plan": standard(), "workload": plan_of(STEPS, "standard").workload}, "workload: is given without"),
        ({"plan": standard(), "tape": "all"}, "tape: 'all' is not .* residuals, products, states"),
        ({"plan": standard(), "f": call_back}, "f: uses what io_callback returns"),
        ({"plan": standard(), "f": jax.jit(call_back)}, "f: uses what io_callback returns"),
        ({"plan": standard(), "f": check_state}, "f: calls checkify.check, which is not supported"),
        ({"plan": standard(), "f": change_in_place}, "f: makes a jax.Ref, which is not supported"),
    ],
)
def test_arguments_that_are_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ckptplan.jax.scan(**{"f": keep, "init": jnp.float64(0), "xs": XS, **given})


def test_a_mutable_array_from_outside() -> None:
    with pytest.raises(InputError, match=r"f: reads or writes a jax.Ref from outside"):
        ckptplan.jax.scan(partial(count_outside, jax.new_ref(0.0)), jnp.float64(0), XS, plan=standard())


@pytest.mark.parametrize("memory", [np.int64(10**6), 10**6, "1 MB"])
def test_a_limit_is_any_integer_or_text(memory: Any) -> None:
    assert jax.grad(lambda h: limited(memory)(lambda h, x: (h * 2, x), h, XS)[0])(1.0) == 2.0**STEPS


def test_a_policy_that_offloads_within_a_step() -> None:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["h"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    @partial(jax.checkpoint, policy=policy)
    def cell(h: Any, x: Any) -> Any:
        return jnp.sin(checkpoint_name(jnp.tanh(h + x), "h")), None

    with pytest.raises(InputError, match=r"f: keeps arrays in host memory .*policy of jax.checkpoint"):
        jax.jit(jax.grad(lambda xs: under(standard())(cell, xs[0], xs)[0].sum()))(jnp.asarray(XS))


def test_a_symbolic_batch_has_a_forward_pass_only() -> None:
    def loss(xs: Any) -> Any:
        return under(standard())(lambda h, x: (h + x, x), xs[0], xs)[1].sum()

    xs = jax.ShapeDtypeStruct((STEPS, *jax.export.symbolic_shape("b")), jnp.float64)
    assert jax.export.export(jax.jit(loss))(xs).out_avals[0].shape == ()
    with pytest.raises(jax.errors.InconclusiveDimensionOperation, match="Symbolic dimension"):
        jax.export.export(jax.jit(jax.grad(loss)))(xs)


def test_a_loss_is_a_single_real_number() -> None:
    for loss in (lambda _, y: y, lambda t, _: t):
        with pytest.raises(InputError, match=r"loss: returns .*accepted: a single real number"):
            ckptplan.jax.bptt(keep, 0.0, jnp.asarray(XS), loss, plan=standard())
    with pytest.raises(InputError, match="loss: None cannot be called"):
        ckptplan.jax.bptt(keep, 0.0, XS, None, plan=standard())  # type: ignore[arg-type]


@pytest.mark.parametrize("jitted", [False, True])
def test_a_second_reverse_pass_is_refused_by_name(jitted: bool) -> None:
    def loss(weights: Any) -> Any:
        return noisy_loss(under(standard()), weights, *data()[1:])

    gradient = jax.jit(jax.grad(loss)) if jitted else jax.grad(loss)
    with pytest.raises(InputError, match="second derivatives of a loop under a plan"):
        jax.grad(lambda one: gradient(one).sum())(data()[0])


def test_remote_states_of_gradients_cannot_be_batched() -> None:
    weights, state, xs = data()
    gradient = jax.grad(lambda one: noisy_loss(under(remote()), one, state, xs))
    with pytest.raises(InputError, match=r"plan: keeps states in remote memory, which jax.vmap cannot batch"):
        jax.vmap(gradient)(jnp.stack([weights, weights]))


def test_a_limit_of_one_example_is_warned_of_where_jit_hides_the_batch() -> None:
    weights, state, xs = data()
    gradient = jax.jit(jax.grad(lambda one: noisy_loss(limited("1 MB"), one, state, xs)))
    with pytest.warns(PlanMismatch, match="memory is of one example.* under jit runs 2 at a time"):
        jax.vmap(gradient)(jnp.stack([weights, weights]))


def test_a_plan_for_a_smaller_cell_is_warned_of() -> None:
    plan = plan_of(STEPS, "standard")
    with pytest.warns(PlanMismatch, match="the plan is for a state of 1 B and tapes of 2 B; this step has"):
        jax.grad(lambda h: ckptplan.jax.scan(lambda h, x: (h * 2, x), h, XS, plan=plan)[0].sum())(jnp.ones(9))


def test_a_slow_plan_is_warned_of_with_the_limit_of_quick_ones() -> None:
    """The warning names the limit from which plans are quick, and that limit is not warned of."""

    def cell(h: Any, x: Any) -> Any:
        return jnp.tanh(h + x), None

    def plan(memory: Any) -> Any:
        return ckptplan.jax.plan_for(cell, jnp.zeros((16, 48)), jnp.ones((400, 16, 48)), memory=memory)

    with pytest.warns(PlanMismatch, match="is enough for a slow plan") as warned:
        plan(43_000)
    quick = str(warned[0].message).partition("From about ")[2].partition(" on, plans take")[0]
    assert plan(quick).predicted.overhead <= 1


def test_jax_that_is_not_installed_is_named() -> None:
    program = """
    import sys
    sys.modules["jax"] = None
    import ckptplan
    try:
        import ckptplan.jax
    except ckptplan.MissingExtra as error:
        print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], check=True, capture_output=True, text=True
    )
    assert done.stdout == "jax is not installed; in ckptplan's folder, run: pip install '.[jax]'\n"
