"""Makes workloads to start from: sizes and work of a network, and step times that are given or estimated."""

from __future__ import annotations

from collections.abc import Mapping

from ckptplan.cost.roofline import estimate_times, find_missing
from ckptplan.errors import InputError
from ckptplan.model.network import Network
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Basis, Workload
from ckptplan.units import format_seconds
from ckptplan.wording import Argument, Phrase

#: A time that is not given -> how many times a given ``forward_seconds`` it is.
_RATIOS = {"backward_seconds": 2.0, "recompute_seconds": 1.0, "record_overhead_seconds": 0.0}
#: What stands in place of the machine until the times are estimated.
_NOBODY = "no machine"


def make_workload(
    network: Network,
    *,
    name: str,
    steps: int,
    profile: HardwareProfile,
    times: Mapping[str, float] | None = None,
) -> Workload:
    """Return a workload of a network, with sizes per unit of a profile.

    Arguments:
        network: the network, with a kind.
        name: the name of the workload.
        steps: T of the workload.
        profile: the machine whose units the network is spread over, and for which times are estimated.
        times: step times in seconds by field, at least ``forward_seconds``; without them, all are estimated.

    Raises InputError, also if the profile lacks a number for the estimate.
    """
    sizes = network.sizes(units=profile.units)
    bare = Workload(
        name=name,
        description=describe_network(network),
        steps=steps,
        units=profile.units,
        network=network,
        state_bytes=sizes["state_bytes"],
        tape_bytes=sizes["tape_bytes"],
        forward_seconds=1.0,
        backward_seconds=2.0,
        recompute_seconds=1.0,
        timed_on=_NOBODY,
    )
    return _with_given(bare, times, profile) if times else _with_estimates(bare, profile)


def describe_network(network: Network) -> str:
    """Return 'LSTM, 3 layers, 1,536 neurons, batch 64, float32'."""
    kind = {None: "the paper's network", "convlstm": "ConvLSTM"}.get(network.kind, str(network.kind).upper())
    what = "channels" if network.kind == "convlstm" else "neurons"
    image = f" of {network.height} x {network.width}" if network.height else ""
    layers = "1 layer" if network.layers == 1 else f"{network.layers} layers"
    return f"{kind}, {layers}, {network.neurons:,} {what}{image}, batch {network.batch}, {network.dtype}"


def _with_given(bare: Workload, times: Mapping[str, float], profile: HardwareProfile) -> Workload:
    if "forward_seconds" not in times:
        raise InputError(
            "is missing, and the other times are for the same machine",
            field="forward_seconds",
            accepted="a time above 0 s, from which those that are not given follow",
        )
    forward = times["forward_seconds"]
    seconds = {"forward_seconds": forward} | {
        field: times.get(field, ratio * forward) for field, ratio in _RATIOS.items()
    }
    basis = {
        field: Basis(kind="assumed", why="given" if field in times else f"{_RATIOS[field]:g} x forward_seconds")
        for field in seconds
    }
    return bare.retimed(seconds, basis=basis, timed_on=profile.name)


def _with_estimates(bare: Workload, profile: HardwareProfile) -> Workload:
    missing = find_missing(bare, profile)
    if missing:
        names = ", ".join(name.removeprefix("profile.") for name in missing)
        raise InputError(
            f"{profile.name} has no {names}, which a profile may leave out, but which step times are estimated "
            "from",
            field="profile",
            value=profile.name,
            accepted=Phrase("a profile with these fields, or times of your own: ", Argument("forward_seconds")),
        )
    timed = estimate_times(bare, profile)
    fields = ("forward_seconds", "backward_seconds", "recompute_seconds")
    # More digits would pretend that an estimate is known well.
    seconds = {field: _round(getattr(timed, field)) for field in fields}
    basis = {
        field: Basis(
            kind="estimated",
            why=f"between {format_seconds(_round(seconds[field] / 3))} and "
            f"{format_seconds(_round(seconds[field] * 3))}, by the roofline of {profile.name}, a third of "
            "which is assumed to be reached; calibrate to replace it",
            low=_round(seconds[field] / 3),
            high=_round(seconds[field] * 3),
        )
        for field in fields
    }
    return bare.retimed(seconds, basis=basis, timed_on=profile.name)


def _round(seconds: float) -> float:
    return float(f"{seconds:.3g}")
