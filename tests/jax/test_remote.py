"""States in remote memory: host memory or real files, with nothing left behind."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ckptplan
import ckptplan.jax
from ckptplan.jax.primitive import _remember
from ckptplan.jax.remote import FileStates, HostStates, _time_states, rehearse_host
from ckptplan.planning.playback import make_schedule
from ckptplan.storage import place
from ckptplan.storage.remote_folder import StateFiles
from tests.jax.support import STEPS, data, difference, limited, noisy_loss, remote, under

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
    jax.effects_barrier()
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
        under(remote(), remote_dir=file)(lambda h, x: (h + x, None), 0.0, jnp.ones(STEPS))


def test_a_folder_that_becomes_a_file_ends_the_run_with_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    weights, state, xs = data()
    program = jax.jit(jax.grad(lambda one: noisy_loss(under(remote(), remote_dir=folder), one, state, xs)))
    compiled = program.lower(weights).compile()
    folder.rmdir()
    folder.write_text("")
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"remote_dir: .*states (is a file|cannot be written)"):
        jax.block_until_ready(compiled(weights))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_a_full_disk_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lead_nowhere(files: Any, place: int) -> Path:
        path: Path = files._folder.path / f"{place}.state"
        path.unlink(missing_ok=True)
        path.symlink_to("/dev/full")
        return path

    monkeypatch.setattr(StateFiles, "_path", lead_nowhere)
    weights, state, xs = data()
    run = jax.grad(lambda one: noisy_loss(under(remote(), remote_dir=tmp_path), one, state, xs))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"cannot take a checkpoint of .*: the disk is full .*free"
    ):
        jax.block_until_ready(run(weights))
    assert not list(tmp_path.iterdir())


def test_states_in_host_memory_are_arrays_like_any() -> None:
    """A second backward pass, a scan and ``jax.checkpoint`` around a call give what scan gives."""
    weights, state, xs = data()

    def find_all(scan: Any) -> Any:
        def loss(one: Any) -> Any:
            return noisy_loss(scan, one, state, xs)

        value, backward = jax.vjp(loss, weights)
        return (
            [backward(jnp.ones_like(value)) for _ in range(2)],
            jax.grad(twice(loss))(weights),
            jax.grad(jax.checkpoint(loss))(weights),
        )

    assert difference(find_all(under(remote())), find_all(jax.lax.scan)) <= 1e-12


def test_a_loop_with_states_in_host_memory_within_a_step_is_refused_by_name() -> None:
    """A tape is in device memory; ``jax.checkpoint`` around the loop keeps no states of it."""
    weights, state, xs = data()

    def loss(outer: Any, one: Any, wrap: Any = lambda function: function) -> Any:
        def cell(h: Any, _: Any) -> Any:
            return wrap(lambda one: noisy_loss(under(remote()), one, state, xs))(one * (1 + h / 9)), None

        return outer(cell, 0.0, jnp.arange(4.0))[0]

    plan = under(make_schedule("standard", steps=4, chunk_size=2))
    with pytest.raises(
        ckptplan.InputError, match=r"^f: keeps arrays in host memory .*jax.checkpoint around it"
    ):
        jax.grad(lambda one: loss(plan, one))(weights)
    ours = jax.grad(lambda one: loss(plan, one, jax.checkpoint))(weights)
    assert difference(ours, jax.grad(lambda one: loss(jax.lax.scan, one))(weights)) <= 1e-10


def test_a_device_that_changes_numbers_on_their_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything runs, with the alternative; also one that has no such memory."""

    def halve(leaf: Any, _: Any) -> Any:
        return leaf / 2

    def fail(*_: Any) -> Any:
        raise ValueError("no memory space of this name")

    weights, state, xs = data()
    for move, why in ((halve, "numbers came back changed"), (fail, "no memory space of this name")):
        monkeypatch.setattr("ckptplan.jax.remote._move", move)
        rehearse_host.cache_clear()
        with pytest.raises(
            ckptplan.InputError, match=rf"^remote_dir: host memory .* {why} \(accepted: a folder"
        ):
            jax.grad(lambda one: noisy_loss(under(remote()), one, state, xs))(weights)
    rehearse_host.cache_clear()


@pytest.fixture
def fast_place(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """States move in no time; their sizes are noted."""
    timed: list[int] = []

    def clock(_: Any, state_bytes: int, **__: Any) -> place.Rates:
        timed.append(state_bytes)
        return place.Rates(1e-9, 1e-9)

    monkeypatch.setattr(place, "_known", {})
    monkeypatch.setattr(place, "recall", lambda *_: None)
    monkeypatch.setattr(place, "keep", lambda *_, **__: None)
    monkeypatch.setattr("ckptplan.jax.remote._time_states", clock)
    # A call of another test that is equal has its plan already.
    _remember.cache_clear()
    return timed


def wide_loss(scan: Any, weights: Any, xs: Any) -> Any:
    """Of a state that is large beside its outputs."""

    def cell(h: Any, x: Any) -> Any:
        h = jnp.tanh(h * weights + x)
        return h, h[0]

    final, outputs = scan(cell, jnp.zeros(20_000), xs)
    return jnp.sum(outputs**2) + jnp.sum(final)


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_checkpoints_go_off_the_chip_in_one_line(
    files: bool, batch: bool, tmp_path: Path, fast_place: list[int]
) -> None:
    """A plan with remote states competes with local ones, and has the gradients of scan."""
    weights, xs = jnp.linspace(0.5, 0.9, 20_000), jnp.linspace(-1, 1, 100)
    offload = tmp_path / "states" if files else "host"

    def gradient(scan: Any) -> Any:
        one: Any = lambda xs: wide_loss(scan, weights, xs)  # noqa: E731
        of_all: Any = jax.vmap(one) if batch else one
        given = jnp.stack([xs, 2 * xs]) if batch else xs
        return jax.jit(jax.grad(lambda given: jnp.sum(of_all(given))))(given)

    count = 2 if batch else 1
    limit = count * 20 * 20_000 * 8
    assert difference(gradient(limited(limit, offload=offload)), gradient(jax.lax.scan)) <= 1e-12
    assert fast_place == [count * 20_000 * 8]
    jax.effects_barrier()
    assert not files or list((tmp_path / "states").iterdir()) == []


def test_a_plan_says_what_is_remote_and_the_program_is_within_the_limit(fast_place: list[int]) -> None:
    weights, xs = jnp.linspace(0.5, 0.9, 20_000), jnp.linspace(-1, 1, 100)
    limit = 20 * 20_000 * 8
    plans = [
        ckptplan.jax.plan_for(
            lambda h, x: (jnp.tanh(h * weights + x), None), jnp.zeros(20_000), xs, memory=limit, offload=offload
        )
        for offload in (None, "host")
    ]
    assert [one.predicted.remote_writes > 0 for one in plans] == [False, True]
    assert plans[1].predicted.seconds < plans[0].predicted.seconds
    run = jax.jit(jax.grad(lambda xs: wide_loss(limited(limit, offload="host"), weights, xs)))
    assert memory_of(run.lower(xs)) - plans[1].predicted.remote_peak_bytes <= 1.03 * limit
    assert fast_place


def memory_of(lowered: Any) -> int:
    """The bytes of temporary arrays and results; on a CPU, states in host memory are among them."""
    found = lowered.compile().memory_analysis()
    return int(found.temp_size_in_bytes + found.output_size_in_bytes)


def wide_plan(limit: int, **more: Any) -> ckptplan.Plan:
    """A plan for a state that is large beside its outputs."""
    weights, xs = jnp.linspace(0.5, 0.9, 20_000), jnp.linspace(-1, 1, 100)
    return ckptplan.jax.plan_for(
        lambda h, x: (jnp.tanh(h * weights + x), None), jnp.zeros(20_000), xs, memory=limit, **more
    )


@pytest.mark.usefixtures("fast_place")
def test_the_plan_and_its_line_say_what_a_place_bought(caplog: pytest.LogCaptureFixture) -> None:
    """Also near the least limit, where plans are found by the bytes of their programs."""
    local = wide_plan(20 * 20_000 * 8)
    with caplog.at_level(logging.INFO, "ckptplan.jax"):
        plan = wide_plan(20 * 20_000 * 8, offload="host")
    (note,) = (one.text for one in plan.estimate_basis if one.field == "offload")
    bought, without = plan.predicted.overhead, local.predicted.overhead
    assert note == f"remote in host memory: {bought:+.0%}; local only: {without:+.0%}"
    assert f"({note})" in caplog.text
    with pytest.raises(ckptplan.InputError) as error:
        wide_plan(1000, offload="host")
    least = re.search(r"\(([\d,]+) bytes\)", str(error.value))
    assert least
    small = wide_plan(int(least[1].replace(",", "")), offload="host")
    notes = [one.text for one in small.estimate_basis if one.field == "offload"]
    assert [one.split("; local only: ")[0] for one in notes] == [
        f"remote in host memory: {small.predicted.overhead:+.0%}"
    ]


def test_a_slow_place_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan says what it would have cost."""
    monkeypatch.setattr(place, "_known", {})
    monkeypatch.setattr(place, "recall", lambda *_: None)
    monkeypatch.setattr(place, "keep", lambda *_, **__: None)
    monkeypatch.setattr("ckptplan.jax.remote._time_states", lambda *_, **__: place.Rates(10.0, 10.0))
    plan = wide_plan(20 * 20_000 * 8, offload="host")
    (note,) = (one.text for one in plan.estimate_basis if one.field == "offload")
    assert plan.predicted.remote_writes == 0
    assert note.startswith(f"local only: {plan.predicted.overhead:+.0%}; remote in host memory: +")


def test_a_dear_plan_names_what_would_help(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line, at an assumed rate; other plans are silent."""
    monkeypatch.setattr("ckptplan.storage.place.ASSUMED_RATE", 1e12)
    for limit, told in ((9 * 20_000 * 8, 1), (10**9, 0)):
        caplog.clear()
        plan = wide_plan(limit)
        hints = [one.message for one in caplog.records if "With offload=" in one.message]
        assert len(hints) == told
        assert not hints or hints[0].startswith(f"this plan takes {plan.predicted.overhead:+.0%} time over")


def test_the_least_limit_that_is_named_counts_checkpoints_off_the_chip(
    fast_place: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is accepted."""
    rooms, begin = [], HostStates.open

    def note(states: HostStates, state: Any, room: int) -> Any:
        rooms.append(room)
        return begin(states, state, room)

    monkeypatch.setattr(HostStates, "open", note)
    weights, xs = jnp.linspace(0.5, 0.9, 20_000), jnp.linspace(-1, 1, 100)
    leasts: dict[Any, list[int]] = {None: [], "host": []}
    for offload, named in leasts.items():

        def loss(xs: Any, limit: int, offload: Any = offload) -> Any:
            return wide_loss(limited(limit, offload=offload), weights, xs)

        with pytest.raises(ckptplan.InputError, match="accepted: at least") as error:
            jax.jit(jax.grad(loss), static_argnums=1).lower(xs, 1000)
        found = re.search(r"\(([\d,]+) bytes\)", str(error.value))
        assert found
        named.append(int(found[1].replace(",", "")))
        taken = memory_of(jax.jit(jax.grad(loss), static_argnums=1).lower(xs, named[-1]))
        on_host = rooms[-1] * 20_000 * 8 if rooms else 0
        assert taken - on_host <= 1.03 * named[-1]
    assert all(np.less(leasts["host"], leasts[None])), leasts
    assert fast_place


@pytest.mark.parametrize("through", [False, True])
def test_a_place_is_timed_by_the_callbacks_of_a_program(through: bool, tmp_path: Path) -> None:
    """Also while a program is traced."""
    found: list[Any] = []

    def trace(x: Any) -> Any:
        where = place.OffloadPlace(folder=tmp_path if through else None)
        found.append(_time_states(where, 2**16, through=through, most=4))
        return x

    jax.jit(trace)(1.0)
    assert all(1e-6 < one < 10 for one in found[0][:2])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails", ["write", "read"])
def test_a_place_that_fails_while_it_is_timed_is_named(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the error of the folder; nothing stays there, and other places are timed afterwards."""
    where = place.OffloadPlace(folder=tmp_path)

    def path(files: Any, number: int) -> Path:
        found: Path = files._folder.path / f"{number}.state"
        if fails == "write":
            found.mkdir(exist_ok=True)
        elif found.exists():
            found.unlink()
        return found

    with monkeypatch.context() as changed:
        changed.setattr(StateFiles, "_path", path)
        with pytest.raises(ckptplan.InputError, match=rf"^offload: {tmp_path} (cannot take|has lost)"):
            _time_states(where, 2**16, through=False, most=4)
    assert list(tmp_path.iterdir()) == []
    assert min(_time_states(where, 2**16, through=False, most=4)[:2]) > 0


def test_a_state_is_no_constant_of_the_programs_that_are_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A compiler copies constants more than once."""
    write = FileStates.write
    constants: list[bool] = []

    def watch(states: Any, run: Any, number: Any, state: Any) -> Any:
        constants.extend(not isinstance(leaf, jax.core.Tracer) for leaf in state)
        return write(states, run, number, state)

    monkeypatch.setattr(FileStates, "write", watch)
    _time_states(place.OffloadPlace(folder=tmp_path), 2**16, through=False, most=2)
    assert constants == [False]


def twice(loss: Any) -> Any:
    """A loss that is computed in a scan of two rounds."""
    return lambda one: jax.lax.scan(lambda total, _: (total + loss(one * (1 + total / 9)), None), 0.0, None, 2)[
        0
    ]


def test_a_second_backward_pass_and_a_scan_around_a_call_are_named(tmp_path: Path) -> None:
    """In one sentence: what a forward pass wrote into files goes with its first backward pass."""
    weights, state, xs = data()

    def loss(one: Any) -> Any:
        return noisy_loss(under(remote(), remote_dir=tmp_path), one, state, xs)

    value, backward = jax.vjp(loss, weights)
    jax.block_until_ready(backward(jnp.ones_like(value)))
    calls: list[Any] = [lambda: backward(jnp.ones_like(value)), lambda: jax.grad(twice(loss))(weights)]
    message = r"the states of run \d+ .* are gone .*one backward pass for each forward pass, outside of jax.lax"
    for again in calls:
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(again())
