"""Bad input is refused by name, with what would be accepted."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import checkify

import ckptplan.jax
from ckptplan import InputError
from ckptplan.errors import PlanMismatch
from tests.jax.support import STEPS, data, limited, noisy_loss, remote, standard, under
from tests.torch.support import plan_of

XS = jnp.ones((STEPS, 3))


def keep(state: Any, x: Any) -> Any:
    return state, x


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"plan": standard(19)}, "plan: is for 19 steps, and the sequence has 20"),
        ({"plan": standard(), "xs": (XS, XS[1:])}, r"xs: have different lengths: xs\[0\] 20, xs\[1\] 19"),
        ({"plan": standard(), "length": 7}, "xs: have different lengths: length 7, xs 20"),
        ({"plan": standard(), "xs": None}, "length: is missing"),
        ({"plan": standard(), "xs": jnp.float32(1)}, "xs: has no axis of time"),
        ({}, "plan: is missing .*memory='64 MiB'"),
        ({"plan": standard(), "memory": "1 MB"}, "plan: is given together with memory"),
        ({"plan": "standard"}, "plan: 'standard' is not a plan"),
        (
            {"memory": "1 MB", "remote_dir": "here"},
            "remote_dir: is given together with memory.*nothing there .*offload",
        ),
        ({"memory": "1 MB", "length": 20.5}, "length: is 20.5 .*a whole number"),
        (
            {"memory": "1 MB", "xs": list(XS), "f": lambda h, x: (h, x.sum())},
            "xs: is a list of 20 arrays.*jnp.stack",
        ),
        ({"memory": "much"}, "memory: .*much"),
        ({"memory": 0}, "memory: 0 is not positive"),
        ({"memory": "1 MB", "xs": None, "length": -5}, r"length: -5 time steps are too few .*0 or more"),
        (
            {"plan": standard(), "tape": "all"},
            "tape: 'all' is not a kind of tape .*residuals, products, states",
        ),
        ({"plan": standard(), "unroll": "no"}, "unroll: 'no' is not accepted"),
        ({"plan": standard(), "f": 3}, "f: 3 cannot be called"),
        ({"plan": standard(), "f": lambda state, _: state}, "f: returns .* not a pair"),
        ({"plan": standard(), "f": lambda h, x: ((h, h), x)}, "f: changes the structure of its state"),
        ({"plan": standard(), "f": lambda h, x: (h + x, x)}, r"f: changes its state from float64\[\] to"),
    ],
)
def test_arguments_that_are_not_accepted(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ckptplan.jax.scan(**{"f": keep, "init": jnp.float64(0), "xs": XS, **given})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"xs": XS[:0]}, "xs: 0"),
        ({"xs": None, "length": 0}, "length: 0"),
        ({"xs": None, "length": -5}, "length: -5"),
    ],
)
def test_a_sequence_without_steps_has_no_plan(given: dict[str, Any], told: str) -> None:
    """What says so is named, with its value."""
    with pytest.raises(InputError, match=rf"{told} time steps are too few \(accepted: 1 or more\)"):
        ckptplan.jax.bptt(keep, jnp.float64(0), loss=lambda _, output: output.sum(), memory="1 MB", **given)


def test_a_mutable_array_from_outside() -> None:
    count = jax.new_ref(0.0)

    def cell(state: Any, x: Any) -> Any:
        count[...] += 1.0
        return state, x

    with pytest.raises(InputError, match=r"f: reads or writes a jax.Ref from outside"):
        ckptplan.jax.scan(cell, jnp.float64(0), XS, plan=standard())


def test_operations_that_a_plan_cannot_carry() -> None:
    def check(h: Any, x: Any) -> Any:
        checkify.check(jnp.all(h < 1), "large")
        return h, x

    def change(h: Any, x: Any) -> Any:
        mine = jax.new_ref(h)
        mine[...] += 1
        return mine[...], x

    for cell, told in ((check, "calls checkify.check"), (change, "makes a jax.Ref")):
        with pytest.raises(InputError, match=f"f: {told}, which is not supported under a plan"):
            ckptplan.jax.scan(cell, jnp.float64(0), XS, plan=standard())


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

    with pytest.raises(
        InputError, match=r"f: keeps arrays in host memory .*offloading policy of jax.checkpoint"
    ):
        jax.jit(jax.grad(lambda xs: under(standard())(cell, xs[0], xs)[0].sum()))(XS)


def test_a_symbolic_batch_has_a_forward_pass_only() -> None:
    def loss(xs: Any) -> Any:
        return under(standard())(keep, jnp.zeros(()), xs)[1].sum()

    xs = jax.ShapeDtypeStruct((STEPS, *jax.export.symbolic_shape("b")), jnp.float64)
    assert jax.export.export(jax.jit(loss))(xs).out_avals[0].shape == ()
    with pytest.raises(InputError, match=r"f: has an array of a symbolic shape \[b\]"):
        jax.export.export(jax.jit(jax.grad(loss)))(xs)


def test_a_first_state_that_does_not_vary_over_devices_as_later_ones_do() -> None:
    spec: Any = jax.sharding.PartitionSpec
    mesh = jax.make_mesh((1,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))

    def shard(xs: Any) -> Any:
        return under(standard())(lambda h, x: (h + x, x), jnp.zeros(3), xs)[1]

    run = jax.shard_map(shard, mesh=mesh, in_specs=spec(None, "devices"), out_specs=spec(None, "devices"))
    with pytest.raises(InputError, match=r"f: changes the devices that its state varies over .*pcast"):
        run(XS)


def test_a_loss_is_a_single_real_number() -> None:
    for loss in (lambda _, y: y, lambda t, _: t):
        with pytest.raises(InputError, match=r"loss: returns .*accepted: a single real number"):
            ckptplan.jax.bptt(keep, 0.0, XS, loss, plan=standard())
    with pytest.raises(InputError, match="loss: None cannot be called"):
        ckptplan.jax.bptt(keep, 0.0, XS, None, plan=standard())  # type: ignore[arg-type]


def test_forward_mode_and_second_derivatives_are_named() -> None:
    weights, state, xs = data()

    def loss(weights: Any) -> Any:
        return noisy_loss(under(standard()), weights, state, xs)

    with pytest.raises(InputError, match="derivatives in forward mode of a loop under a plan"):
        jax.jvp(loss, (weights,), (weights,))
    for second in (jax.hessian(loss), jax.grad(lambda one: jax.jit(jax.grad(loss))(one).sum())):
        with pytest.raises(InputError, match="second derivatives of a loop under a plan"):
            second(weights)
    with pytest.raises(InputError, match="transposes of a loop under a plan"):
        jax.linear_transpose(lambda xs: under(standard())(keep, 0.0, xs)[1], xs)(xs)


def test_collectives_over_a_batch_are_named() -> None:
    def one(xs: Any) -> Any:
        return ckptplan.jax.scan(lambda h, x: (h + jax.lax.psum(x, "i"), None), 0.0, xs, plan=standard())

    with pytest.raises(InputError, match=r"f: calls psum.* over the axis 'i' of jax.vmap"):
        jax.vmap(one, axis_name="i")(jnp.ones((2, STEPS)))


def test_remote_states_of_gradients_cannot_be_batched() -> None:
    weights, state, xs = data()
    gradient = jax.grad(lambda one: noisy_loss(under(remote()), one, state, xs))
    with pytest.raises(InputError, match=r"plan: keeps states in remote memory, which jax.vmap cannot batch"):
        jax.vmap(gradient)(jnp.stack([weights, weights]))


@pytest.mark.parametrize("wrap", [lambda one: one, jax.jit])
def test_a_limit_that_is_of_one_example_of_a_batch_is_warned_of(wrap: Any) -> None:
    """The plan of a gradient is made before ``jax.vmap`` makes a batch of it."""
    weights, state, xs = data()
    gradient = wrap(jax.grad(lambda one: noisy_loss(limited("1 MB"), one, state, xs)))
    with pytest.warns(
        PlanMismatch, match="memory is of one example, and jax.vmap of a gradient runs 2 at a time"
    ):
        jax.vmap(gradient)(jnp.stack([weights, weights]))


def test_a_plan_for_a_smaller_cell_is_warned_of() -> None:
    plan = plan_of(STEPS, "standard")
    with pytest.warns(PlanMismatch, match="the plan is for a state of 1 B and tapes of 2 B; this step has"):
        jax.grad(lambda state: ckptplan.jax.scan(keep, state, XS, plan=plan)[0].sum())(jnp.zeros(100))


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
