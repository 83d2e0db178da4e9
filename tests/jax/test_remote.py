"""States in remote memory: host memory or real files, with nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import ckptplan
import ckptplan.jax
from ckptplan.jax.remote import RemoteFiles, RemoteStates
from ckptplan.planning.playback import make_schedule
from tests.jax.support import STEPS, data, difference, noisy_loss, remote, under

HIERARCHICAL = make_schedule("hierarchical", steps=STEPS, chunk_size=2, nb_local=3)


@pytest.mark.parametrize("plan", [remote(), HIERARCHICAL], ids=["double", "hierarchical"])
@pytest.mark.parametrize("files", [False, True])
def test_states_come_back_as_they_went(plan: ckptplan.Schedule, files: bool, tmp_path: Path) -> None:
    """Two runs of one program, with batches of transfers and without."""
    folder = tmp_path / "states" if files else None
    ours = jax.jit(jax.grad(lambda *given: noisy_loss(under(plan, remote_dir=folder), *given), (0, 1, 2)))
    for seed in (0, 1):
        theirs = jax.jit(jax.grad(lambda *given: noisy_loss(jax.lax.scan, *given), (0, 1, 2)))(*data(seed))
        assert difference(ours(*data(seed)), theirs) <= 1e-13
    assert not files or list((tmp_path / "states").iterdir()) == []


def test_a_batch_is_part_of_the_states() -> None:
    weights, state, xs = data()
    some = jnp.stack([weights, 2 * weights])

    def of_all(scan: Any) -> Any:
        every: Any = jax.vmap(lambda one: noisy_loss(scan, one, state, xs))
        return jax.jit(jax.grad(lambda some: jnp.sum(every(some))))(some)

    assert difference(of_all(under(remote())), of_all(jax.lax.scan)) <= 1e-13


def test_files_exist_between_the_two_passes(tmp_path: Path) -> None:
    weights, state, xs = data()
    value, backward = jax.vjp(
        lambda one: noisy_loss(under(remote(), remote_dir=tmp_path), one, state, xs), weights
    )
    jax.effects_barrier()
    files = list(tmp_path.rglob("*.state"))
    # A state of 2 x 4 numbers, an integer, a boolean and a key.
    assert {file.stat().st_size for file in files} == {8 * 8 + 8 + 1 + 8}
    jax.block_until_ready(backward(jnp.ones_like(value)))
    jax.effects_barrier()
    assert list(tmp_path.iterdir()) == []


def test_a_forward_pass_alone_stores_nothing(tmp_path: Path) -> None:
    weights, state, xs = data()
    jax.block_until_ready(noisy_loss(under(remote(), remote_dir=tmp_path), weights, state, xs))
    assert list(tmp_path.iterdir()) == []


def test_types_of_jax_keep_their_bits(tmp_path: Path) -> None:
    """Also those that files of numpy do not know."""

    def loss(scan: Any, x: Any) -> Any:
        final, _ = scan(lambda h, x: ((h * x).astype(h.dtype), None), jnp.bfloat16(1.5), x)
        return final.astype(jnp.float32)

    xs = jnp.linspace(0.9, 1.1, STEPS)
    ours = jax.grad(lambda x: loss(under(remote(), remote_dir=tmp_path), x))(xs)
    assert difference(ours, jax.grad(lambda x: loss(jax.lax.scan, x))(xs)) == 0


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ckptplan.InputError, match=r"remote_dir: .*file is a file"):
        RemoteStates(file)


def test_a_folder_that_vanishes_ends_the_run_with_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    weights, state, xs = data()
    program = jax.jit(jax.grad(lambda one: noisy_loss(under(remote(), remote_dir=folder), one, state, xs)))
    compiled = program.lower(weights).compile()
    folder.rmdir()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"remote_dir: .*states cannot be written"):
        jax.block_until_ready(compiled(weights))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lead_nowhere(files: Any, place: int) -> Path:
        path: Path = files._folder.path / f"{place}.state"
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/full")
        return path

    monkeypatch.setattr(RemoteFiles, "_path", lead_nowhere)
    weights, state, xs = data()
    run = jax.grad(lambda one: noisy_loss(under(remote(), remote_dir=tmp_path), one, state, xs))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"cannot take a checkpoint of .*: the disk is full .*free"
    ):
        jax.block_until_ready(run(weights))
    assert not list(tmp_path.iterdir())
