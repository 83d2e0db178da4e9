"""Arrays of states, outputs and tapes: their bytes, zeros of their types, and buffers for many of them.

The abstract value of a leaf has its shape, its type, its sharding on a mesh and, within ``shard_map``, the axes
of devices along which it varies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad

#: The bytes of an fp32 number. Buffers on a CPU store smaller floating-point numbers as integers.
_FLOAT_BYTES = 4
#: Several arrays, or their abstract values.
Arrays = tuple[Any, ...]


def has_gradient(leaf: Any) -> bool:
    """Return whether a leaf consists of real or complex numbers."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def differentiable(leaves: Sequence[Any]) -> tuple[int, ...]:
    """Return the indices of the leaves that may have a gradient."""
    return tuple(index for index, leaf in enumerate(leaves) if has_gradient(leaf))


def pick(leaves: Sequence[Any], indices: Sequence[int]) -> Arrays:
    """Return the leaves at some indices."""
    return tuple(leaves[index] for index in indices)


def fill(leaves: Sequence[Any], indices: Sequence[int], values: Sequence[Any]) -> Arrays:
    """Return the leaves with ``values`` in place of those at the indices."""
    filled = list(leaves)
    for index, value in zip(indices, values, strict=True):
        filled[index] = value
    return tuple(filled)


def widen(leaf: Any) -> Any:
    """Convert real numbers to fp32, unless they are already as wide."""
    return leaf.astype(jnp.float32) if leaf.dtype.itemsize < _FLOAT_BYTES else leaf


def set_weak(leaf: Any) -> Any:
    """Return an array of a weak type, which gives way to other types like that of a Python number."""
    return lax.convert_element_type_p.bind(leaf, new_dtype=leaf.dtype, weak_type=True, sharding=None)


def split(leaves: Sequence[Any], *counts: int) -> tuple[Arrays, ...]:
    """Split leaves into groups of the given sizes, and a last group with the remaining leaves."""
    parts: list[Arrays] = []
    remaining = tuple(leaves)
    for count in counts:
        parts.append(remaining[:count])
        remaining = remaining[count:]
    return (*parts, remaining)


def bytes_of(leaf: Any) -> int:
    """Return the bytes of an array or abstract value; the bytes per device if a mesh shards it explicitly."""
    shape, sharding = leaf.shape, getattr(leaf, "sharding", None)
    if isinstance(sharding, jax.sharding.NamedSharding) and any(sharding.spec.partitions):
        shape = sharding.shard_shape(shape)
    size = leaf.dtype.itemsize if hasattr(leaf, "dtype") else 0
    for length in shape:
        size *= length
    return int(size)


def byte_size(leaves: Sequence[Any]) -> int:
    """Return the bytes of arrays or of their abstract values (``bytes_of``)."""
    return sum(map(bytes_of, leaves))


def describe(leaves: Sequence[Any]) -> Arrays:
    """Return the abstract values of arrays, without weak types."""
    kinds = (leaf if isinstance(leaf, jax.core.ShapedArray) else jax.typeof(leaf) for leaf in leaves)
    return tuple(leaf.update(weak_type=False) for leaf in kinds)


def argument_of(leaf: Any, *lead: int) -> jax.ShapeDtypeStruct:
    """Return an argument to compile a program for: a leaf with additional leading axes."""
    mesh, sharding = leaf.sharding.mesh, None
    if mesh.explicit_axes:
        # Any devices will do, since only bytes are counted.
        devices = jax.make_mesh(mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types)
        spec = jax.sharding.PartitionSpec(*(None for _ in lead), *leaf.sharding.spec.partitions)
        sharding = jax.sharding.NamedSharding(devices, spec)
    return jax.ShapeDtypeStruct((*lead, *leaf.shape), leaf.dtype, sharding=sharding)


def varying_axes(leaf: Any) -> tuple[str, ...]:
    """Return the axes of devices along which a leaf varies within ``shard_map``."""
    kind = leaf.mat if hasattr(leaf, "mat") else jax.typeof(leaf).mat
    return () if kind is None else tuple(sorted(kind.varying))


def zeros_of(leaf: Any, *room: int) -> Any:
    """Return zeros of the type of a leaf, with leading axes ``room``."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        zeros = lax.full(leaf.shape, 0, leaf.dtype)
        if varying_axes(leaf):
            zeros = lax.pcast(zeros, varying_axes(leaf), to="varying")
    else:
        zeros = ad.instantiate_zeros(ad.Zero(leaf.update(weak_type=False)))
    return lax.broadcast(zeros, room) if room else zeros


def fill_zeros(gradients: Sequence[Any], leaves: Sequence[Any], *room: int) -> Arrays:
    """Return the gradients of the differentiable leaves, with zeros in place of None."""
    pairs = zip(gradients, pick(leaves, differentiable(leaves)), strict=True)
    return tuple(
        zeros_of(leaf.to_ct_aval(), *room) if gradient is None else gradient for gradient, leaf in pairs
    )


def make_zeros(leaves: Sequence[Any]) -> Arrays:
    """Return zeros of the types of leaves."""
    return tuple(map(zeros_of, leaves))


def make_room(leaves: Sequence[Any], room: int, *, as_words: bool = True) -> Arrays:
    """Return buffers with room for ``room`` copies of each leaf, for ``put`` and ``release``.

    To write a small floating-point number into an array, compilers for CPUs copy the whole array to fp32. With
    ``as_words``, a buffer stores the bits of such numbers as integers, which have no derivative.
    """
    return tuple(
        to_words(zeros) if as_words and is_small(zeros) else zeros
        for zeros in (zeros_of(leaf, room) for leaf in leaves)
    )


def is_small(leaf: Any) -> bool:
    """Return whether a leaf has floating-point numbers with less than 32 bits."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating)) and leaf.dtype.itemsize < _FLOAT_BYTES


def to_words(leaf: Any) -> Any:
    """Return the bits of small floating-point numbers as integers."""
    bits = jnp.finfo(leaf.dtype).bits  # type: ignore[no-untyped-call]
    return lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{bits}"))


def release(held: Sequence[Any], leaves: Sequence[Any]) -> Arrays:
    """Convert arrays from buffers back to the types of their leaves."""
    pairs = zip(held, leaves, strict=True)
    return tuple(
        array if array.dtype == leaf.dtype else lax.bitcast_convert_type(array, leaf.dtype)
        for array, leaf in pairs
    )


def take(arrays: Sequence[Any], index: Any) -> Arrays:
    """Return the entry of each array at an index of its first axis."""
    return tuple(at(array, index) for array in arrays)


def take_given(arrays: Sequence[Any], index: Any) -> Arrays:
    """Return the entry of each array at an index, for arrays that a loop reads and does not change.

    Compilers for CPUs would convert whole arrays of bf16 to fp32 before the loop. The barrier hides from them
    that the arrays are the same in each round.
    """
    return tuple(at(*lax.optimization_barrier((array, index))) for array in arrays)


def at(array: Any, index: Any) -> Any:
    """Return the entry of an array at an index of its first axis."""
    return lax.dynamic_index_in_dim(array, index, keepdims=False, allow_negative_indices=False)


def put(arrays: Sequence[Any], leaves: Sequence[Any], index: Any) -> Arrays:
    """Return buffers with the leaves written at an index."""
    return tuple(put_at(array, leaf, index) for array, leaf in zip(arrays, leaves, strict=True))


def put_at(array: Any, leaf: Any, index: Any) -> Any:
    """Return a buffer with a leaf written at an index."""
    held = leaf if array.dtype == leaf.dtype else to_words(leaf)
    return lax.dynamic_update_index_in_dim(array, held, index, 0, allow_negative_indices=False)


def run_if(condition: Any, body: Callable[[Any], Any], carry: Any) -> Any:
    """Return ``body(carry)`` if a condition holds, else the carry.

    It is a loop with one round or none, since ``lax.cond`` would copy the arrays that pass through it.
    """
    _, after = lax.while_loop(
        lambda state: state[0],
        lambda state: (jnp.zeros_like(state[0]), body(state[1])),
        (condition, carry),
    )
    return after
