"""diffrax: an adjoint whose solver steps run under ``ckptplan.jax.while_loop``. Install: pip install diffrax.

    python examples/libraries/diffrax_adjoint.py

diffrax's default adjoint takes a number of checkpoints. This adjoint takes bytes. It suits solves that save the
final state alone (``SaveAt(t1=True)``): every checkpoint holds all that the solver saves.
"""

import functools

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from compare_jax import compare

from ckptplan.jax import while_loop

MEMORY = "600 kB"
BATCH, WIDTH, MAX_STEPS = 64, 16, 4096


class PlannedAdjoint(diffrax.RecursiveCheckpointAdjoint):
    """Backpropagate through the steps of the solver, with as many checkpoints as fit ``memory``."""

    memory: str = eqx.field(static=True, kw_only=True)

    def loop(self, **options):
        for name in ("throw", "passed_solver_state", "passed_controller_state"):
            del options[name]
        inner = functools.partial(eqx.internal.while_loop, kind="lax")
        return self._loop(inner_while_loop=inner, outer_while_loop=self._run, **options)

    def _run(self, cond, body, state, *, max_steps, **_):
        """Run the loop over the arrays and numbers of diffrax's state; its other values do not change."""
        arrays, constants = eqx.partition(state, eqx.is_array_like)

        def runs_on(arrays):
            state = eqx.combine(arrays, constants)
            return cond(state) & (state.num_steps < max_steps)

        def step(arrays):
            return eqx.filter(body(eqx.combine(arrays, constants)), eqx.is_array_like)

        final = while_loop(runs_on, step, arrays, memory=self.memory, max_steps=max_steps)
        return eqx.combine(final, constants)


network = eqx.nn.MLP(WIDTH, WIDTH, 64, 2, key=jax.random.key(0))
start = jax.random.normal(jax.random.key(1), (BATCH, WIDTH))
weights, structure = eqx.partition(network, eqx.is_array)


def loss(weights, adjoint):
    field = jax.vmap(eqx.combine(weights, structure))
    final = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: 4 * jnp.tanh(field(y) + jnp.sin(9 * t))),
        diffrax.Tsit5(),
        *(0.0, 20.0, 0.05),  # t0, t1, dt0
        y0=start,
        adjoint=adjoint,
        max_steps=MAX_STEPS,
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5),
    )
    return jnp.mean(final.ys**2)


def build(adjoint):
    compiled = jax.jit(jax.grad(functools.partial(loss, adjoint=adjoint))).lower(weights).compile()
    return compiled, functools.partial(compiled, weights)


if __name__ == "__main__":
    adjoints = {
        "plain": diffrax.RecursiveCheckpointAdjoint(checkpoints=MAX_STEPS),
        "diffrax's checkpoints": diffrax.RecursiveCheckpointAdjoint(),
        f"memory={MEMORY!r}": PlannedAdjoint(memory=MEMORY),
    }
    compare({name: build(adjoint) for name, adjoint in adjoints.items()}, memory=MEMORY)
