"""Leaves of trees as arrays that buffers can hold, also within ``shard_map``, and parts with a gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

#: What numbers of fp32 take; smaller ones are held as integers.
_FLOAT_BYTES = 4
#: The arrays of a tree, side by side.
Arrays = tuple[jax.Array, ...]


def is_key(leaf: Any) -> bool:
    """Return whether a leaf is an array of random keys."""
    return bool(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))


def has_gradient(leaf: Any) -> bool:
    """Return whether a leaf is of real or complex numbers."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def widen(leaf: jax.Array) -> jax.Array:
    """Return real numbers in fp32 at least."""
    return leaf.astype(jnp.float32) if leaf.dtype.itemsize < _FLOAT_BYTES else leaf


def set_weak(leaf: jax.Array, *, weak: bool) -> jax.Array:
    """Return an array whose type gives way to others, as that of a Python number, or does not."""
    if jax.typeof(leaf).weak_type == weak:
        return leaf
    found: jax.Array = lax.convert_element_type_p.bind(
        leaf, new_dtype=leaf.dtype, weak_type=weak, sharding=None
    )
    return found


def split(leaves: Sequence[Any], *counts: int) -> tuple[tuple[Any, ...], ...]:
    """Return parts of so many leaves, and the rest."""
    parts: list[tuple[Any, ...]] = []
    rest = tuple(leaves)
    for count in counts:
        parts.append(rest[:count])
        rest = rest[count:]
    return (*parts, rest)


def byte_size(leaves: Sequence[Any]) -> int:
    """Return the bytes of arrays or of their shapes."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def shape_of(leaf: Any, *, skip: int = 0) -> jax.ShapeDtypeStruct:
    """Return the shape and type of an array, and within ``shard_map`` the axes of devices it varies over.

    ``skip`` axes are left out.
    """
    axes = _axes_of(leaf)
    if axes is None:
        return jax.ShapeDtypeStruct(leaf.shape[skip:], leaf.dtype)
    everywhere = jax.sharding.NamedSharding(jax.sharding.get_abstract_mesh(), jax.sharding.PartitionSpec())
    return jax.ShapeDtypeStruct(leaf.shape[skip:], leaf.dtype, sharding=everywhere, manual_axis_type=axes)


def shapes_of(leaves: Sequence[Any]) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return the shapes and types of arrays."""
    return tuple(map(shape_of, leaves))


def _axes_of(leaf: Any) -> Any:
    """Return what ``shard_map`` knows of an array, of its abstract value or of its shape; None for no axes."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        axes = leaf.manual_axis_type
    else:
        axes = leaf.mat if hasattr(leaf, "mat") else jax.typeof(leaf).mat
    return axes if axes is not None and axes.varying else None


def axes_of(leaf: Any) -> tuple[str, ...]:
    """Return the axes of devices that an array varies over within ``shard_map``."""
    axes = _axes_of(leaf)
    return () if axes is None else tuple(sorted(axes.varying))


def zeros_of(leaf: Any, *room: int) -> jax.Array:
    """Return an array of zeros with room for a number of leaves, varying over devices as the leaf does."""
    axes = _axes_of(leaf)
    zeros = lax.full((*room, *leaf.shape), 0, leaf.dtype)
    return zeros if axes is None else lax.pcast(zeros, tuple(axes.varying), to="varying")


def make_zeros(leaves: Sequence[Any]) -> Arrays:
    """Return arrays of zeros."""
    return tuple(map(zeros_of, leaves))


def make_room(leaves: Sequence[Any], room: int) -> Arrays:
    """Return arrays with room for a number of leaves, as ``put`` writes and ``release`` reads them.

    Compilers for CPUs write small floating-point numbers into an array by way of a copy of it in fp32: they
    are held as the integers of their bits.
    """
    return tuple(hold(zeros_of(leaf, room)) for leaf in leaves)


def hold(leaf: jax.Array) -> jax.Array:
    """Return an array as ``make_room`` holds it."""
    small = jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize < _FLOAT_BYTES
    return to_words(leaf) if small else leaf


def release(held: Sequence[jax.Array], leaves: Sequence[Any]) -> Arrays:
    """Return arrays that were held, with the types of some leaves."""
    pairs = zip(held, leaves, strict=True)
    return tuple(one if one.dtype == leaf.dtype else from_words(one, leaf) for one, leaf in pairs)


def take(arrays: Sequence[jax.Array], place: Any) -> Arrays:
    """Return what is at a place of each array."""
    return tuple(at(array, place) for array in arrays)


def take_given(arrays: Sequence[jax.Array], place: Any) -> Arrays:
    """Return what is at a place of each array that a loop is given, and does not change.

    A compiler for CPUs would convert whole arrays of bf16 to fp32 before the loop: here it cannot tell that
    they are the same in each round.
    """
    return take(*lax.optimization_barrier((tuple(arrays), place)))


def at(array: jax.Array, place: Any) -> jax.Array:
    """Return what is at a place of an array."""
    found: jax.Array = lax.dynamic_index_in_dim(array, place, keepdims=False, allow_negative_indices=False)
    return found


def put(arrays: Sequence[jax.Array], leaves: Sequence[jax.Array], place: Any) -> Arrays:
    """Return the arrays with other leaves at a place."""
    return tuple(put_at(array, leaf, place) for array, leaf in zip(arrays, leaves, strict=True))


def put_at(array: jax.Array, leaf: jax.Array, place: Any) -> jax.Array:
    """Return an array of ``make_room`` with another leaf at a place."""
    found: jax.Array = lax.dynamic_update_index_in_dim(
        array, hold(leaf), place, 0, allow_negative_indices=False
    )
    return found


def choose(condition: Any, yes: Sequence[jax.Array], no: Sequence[jax.Array]) -> Arrays:
    """Return one or the other arrays."""
    return tuple(jnp.where(condition, one, other) for one, other in zip(yes, no, strict=True))


def run_if(condition: Any, body: Callable[[Any], Any], carry: Any) -> Any:
    """Return what a body makes of a carry if a condition holds, else the carry.

    As a loop of no or one round: a condition of JAX would copy what passes through it.
    """
    _, found = lax.while_loop(
        lambda some: some[0], lambda some: (jnp.zeros_like(some[0]), body(some[1])), (condition, carry)
    )
    return found


def to_words(leaf: jax.Array) -> jax.Array:
    """Return the bits of an array as integers of up to 32 bits, which no setting of JAX rounds on their way."""
    if is_key(leaf):
        leaf = jax.random.key_data(leaf)
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint8)
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        leaf = jnp.stack([jnp.real(leaf), jnp.imag(leaf)])
    return lax.bitcast_convert_type(leaf, _word(leaf))


def from_words(words: jax.Array, like: Any) -> jax.Array:
    """Return the array that ``to_words`` made these integers of."""
    if is_key(like):
        found: jax.Array = jax.random.wrap_key_data(words, impl=jax.random.key_impl(like))
        return found
    if like.dtype == jnp.bool_:
        return words.astype(jnp.bool_)
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        parts = lax.bitcast_convert_type(words, np.real(np.zeros((), like.dtype)).dtype)
        return lax.complex(parts[0], parts[1])
    return lax.bitcast_convert_type(words, like.dtype)


def _word(leaf: jax.Array) -> Any:
    if leaf.dtype == jnp.float4_e2m1fn:
        return jnp.uint4
    return {1: jnp.uint8, 2: jnp.uint16}.get(leaf.dtype.itemsize, jnp.uint32)
