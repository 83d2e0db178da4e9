"""Defines a workload: the sizes of a state and a tape, the time of each step, and how it was measured."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from ckptplan.errors import InputError, quote_value, refuse
from ckptplan.model.checked import (
    IF_ANY,
    IF_GIVEN,
    Bytes,
    Count,
    Described,
    High,
    Low,
    ModelPart,
    Name,
    PositiveBytes,
    PositiveSeconds,
    Seconds,
    Steps,
    Text,
)
from ckptplan.model.network import Network, Operations
from ckptplan.units import MAX_BYTES, format_threads
from ckptplan.wording import Argument

#: The fields that a network description derives.
DERIVED = ("state_bytes", "tape_bytes", "cache_bytes", "resident_bytes_per_step", "resident_bytes")
#: Scratch memory of every schedule, and the additional scratch memory of chunks of several steps.
WORKSPACES = ("workspace_bytes", "chunk_workspace_bytes")
#: The fields that are measured or assumed for one machine, batch and network.
TIMES = ("forward_seconds", "backward_seconds", "recompute_seconds", "record_overhead_seconds")
#: The seconds that actions take in addition to their steps; zero by default, as in the paper.
ACTION_TIMES = ("advance_seconds", "chunk_seconds", "save_seconds", "load_seconds")
#: The beginning of ``Basis.why`` for times that were measured at another batch or network.
_RESIZED = "carried over from "


#: The largest number of threads that can be asked for.
MOST_THREADS = 4096


class Measured(ModelPart):
    """How a number of a workload was measured."""

    repeats: int = Field(ge=1, description="rounds that it was estimated from")
    spread: float = Field(
        ge=0, description="half of its interval, or earlier of the range of rounds, as a share"
    )
    low: Annotated[Low | None, IF_GIVEN] = Field(
        default=None, description="the number is at least this times itself; none: no interval"
    )
    high: Annotated[High | None, IF_GIVEN] = Field(
        default=None, description="the number is at most this times itself; none: no interval"
    )
    fit: Annotated[float | None, IF_GIVEN] = Field(
        default=None, le=1, description="only of earlier calibrations: R^2 over several chunk sizes"
    )


class Calibration(ModelPart):
    """The conditions of a ``ckptplan calibrate`` run, and how accurate its times are."""

    machine: Text = Field(min_length=1, description="processor, or accelerator, that was measured")
    device: Literal["cpu", "cuda"]
    threads: int = Field(ge=1, le=MOST_THREADS, description="threads that ran the cell on the processor")
    torch: Annotated[Text | None, IF_ANY] = Field(
        default=None, description="version of PyTorch, if it ran the cell"
    )
    jax: Annotated[Text | None, IF_ANY] = Field(default=None, description="version of JAX, if it ran the cell")
    tape: Annotated[Text | None, IF_ANY] = Field(default=None, description="kind of tapes, if JAX ran the cell")
    date: Text = Field(description="UTC, ISO 8601")
    seed: int = Field(ge=-(2**63), lt=2**63)
    clock: Literal["wall time", "processor time"] = Field(
        default="wall time",
        description="how runs were timed; processor time where one thread of a processor runs them",
    )
    uncertainty: float = Field(
        ge=0, description="times of steps are known to within this share: the farthest end of their intervals"
    )
    transfer_uncertainty: float = Field(
        ge=0,
        description="times of messages are known to within this share: the farthest end of their intervals",
    )
    shortest_chunk: int | None = Field(
        default=None,
        ge=1,
        description="steps; only before the costs of actions were measured: times hold from here",
    )
    chunk_overhead_seconds: float | None = Field(
        default=None, ge=0, description="only before the costs of actions were measured: what a chunk adds"
    )
    tape_bytes_once: int = Field(
        default=0,
        ge=0,
        description="bytes that a recorded chunk holds once, however many steps it has (workspace)",
    )
    measured: dict[Name, Measured] = Field(
        default_factory=dict,
        description="field, or recorded_seconds (a recorded step) -> repeats, spread and fit",
    )

    @property
    def framework(self) -> str:
        """The framework that ran the cell, with its version."""
        return f"PyTorch {self.torch}" if self.jax is None else f"JAX {self.jax}"

    @property
    def times_actions(self) -> bool:
        """Whether the costs of actions were measured; earlier calibrations have none, and they count as 0."""
        return self.chunk_overhead_seconds is None

    @property
    def threads_text(self) -> str:
        """The number of threads as text."""
        return format_threads(self.threads)


class Basis(ModelPart):
    """How a number of a workload was obtained, and why."""

    kind: Literal["assumed", "derived", "estimated", "measured"]
    why: Text = Field(min_length=1)
    low: Annotated[Seconds | None, IF_GIVEN] = Field(
        default=None, description="an estimated time is at least this, seconds"
    )
    high: Annotated[Seconds | None, IF_GIVEN] = Field(
        default=None, description="an estimated time is at most this, seconds"
    )


class Workload(Described):
    """One training job: T time steps of a recurrent network.

    Bytes are per unit of the machine. Times are in seconds, per time step and for the whole batch.
    Give the byte sizes, or a ``network`` that derives them (Bencheikh et al. 2024, eq. 3).
    Raises InputError.
    """

    noun: ClassVar[str] = "workload"
    _origins: ClassVar[str] = "basis"

    steps: Steps = Field(description="T, the number of time steps")
    batch: Count | None = Field(default=None, description="samples trained at once")
    units: Count | None = Field(default=None, description="units the bytes are per; none: those of the profile")
    network: Network | None = Field(default=None, description="derives the byte sizes; needs units")
    operations: Annotated[Operations | None, IF_ANY] = Field(
        default=None, description="the work of a step, to estimate times by; none: the network's"
    )
    state_bytes: PositiveBytes = Field(description="M_s, one state on one unit, bytes")
    tape_bytes: PositiveBytes = Field(description="M_a, the tape of one step on one unit, bytes")
    cache_bytes: Annotated[Bytes, IF_ANY] = Field(
        default=0, description="M_r, what a quick second run of a step needs of its first on one unit, bytes"
    )
    resident_bytes_per_step: Bytes = Field(
        default=0, description="kept for each step of the sequence on one unit, bytes"
    )
    resident_bytes: Bytes = Field(default=0, description="weights, code, optimiser on one unit, bytes")
    workspace_bytes: Bytes = Field(default=0, description="scratch memory on one unit, bytes")
    chunk_workspace_bytes: Annotated[Bytes, IF_ANY] = Field(
        default=0, description="what recording several steps at once needs of it besides, bytes"
    )
    forward_seconds: PositiveSeconds = Field(description="f, first forward of a step")
    backward_seconds: PositiveSeconds = Field(description="b, backward of a step")
    recompute_seconds: PositiveSeconds = Field(description="r, recomputing a step with its cache")
    record_overhead_seconds: Seconds = Field(
        default=0.0, description="o, what recording the tape adds to a step"
    )
    advance_seconds: Annotated[Seconds, IF_ANY] = Field(
        default=0.0, description="a, what a run of steps without tape takes besides its steps"
    )
    chunk_seconds: Annotated[Seconds, IF_ANY] = Field(
        default=0.0, description="k, what recording and reversing a run of steps takes besides its steps"
    )
    save_seconds: Annotated[Seconds, IF_ANY] = Field(
        default=0.0, description="s, storing a state in local memory"
    )
    load_seconds: Annotated[Seconds, IF_ANY] = Field(
        default=0.0, description="l, loading a state from local memory"
    )
    timed_on: Text | None = Field(default=None, description="the profile that the times belong to")
    cell: Text | None = Field(default=None, description="the cell that `validate` runs")
    limited: Annotated[bool, IF_ANY] = Field(
        default=False, description="whether it was counted in a call that was given a limit of memory"
    )
    calibration: Calibration | None = Field(
        default=None, description="how `calibrate` measured it; none: it did not"
    )
    basis: dict[str, Basis] = Field(
        default_factory=dict, description="field -> assumed, derived or measured, and why"
    )

    @model_validator(mode="before")
    @classmethod
    def _derive_sizes(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("network") is None:
            return data
        network = _to_network(data["network"])
        units = data.get("units")
        if not isinstance(units, int) or isinstance(units, bool) or units < 1:
            raise InputError(
                "is missing: give the number of units that the network is spread over",
                field="units",
                value=units,
                accepted="a whole number from 1",
            )
        sizes = network.sizes(units=units)
        _check_sizes(sizes, network, units=units)
        for field in (*DERIVED, "batch"):
            derived = network.batch if field == "batch" else sizes[field]
            if data.get(field) not in (None, derived):
                raise InputError(
                    f"is given as {quote_value(data[field])}, but the network gives {derived}; leave one out",
                    field=field,
                    value=data[field],
                )
        return {**data, **sizes, "batch": network.batch, "network": network}

    def with_steps(self, steps: int) -> Self:
        """Return the same job over ``steps`` time steps."""
        return self.replace(steps=steps)

    def with_batch(self, batch: int) -> Self:
        """Return the same job with another batch size. Needs a ``network``; times do not change."""
        return self._with_network("batch", batch)

    def with_neurons(self, neurons: int) -> Self:
        """Return the same job with another number of neurons. Needs a ``network``; times do not change."""
        return self._with_network("neurons", neurons)

    def with_activity(self, activity: float) -> Self:
        """Return the same job with another share of neurons that spike. Needs a ``network``."""
        return self._with_network("activity", activity)

    def with_neurons_from(self, neurons: int) -> Self:
        """Return the same job with ``neurons`` neurons, or with the network's least number if that is more.

        Searches may ask for fewer neurons than the network can have.
        """
        least = 1 if self.network is None else self.network.least_neurons
        return self.with_neurons(max(neurons, least))

    def spread_over(self, units: int) -> Self:
        """Return the job with its bytes per unit of a machine that has ``units`` of them.

        Sizes are derived again from a network; sizes given as numbers are scaled and rounded up.
        """
        if self.units is None or self.units == units:
            return self.replace(units=units)
        scaled = {field: -(-getattr(self, field) * self.units // units) for field in (*DERIVED, *WORKSPACES)}
        if self.network is None:
            return self.replace(units=units, **scaled)
        other = -(-self.network.other_resident_bytes * self.units // units)
        network = self.network.replace(other_resident_bytes=other)
        return self.replace(
            units=units,
            network=network,
            **{field: scaled[field] for field in WORKSPACES},
            basis={**self.basis, **_basis_of_derived(f"{units:,} units")},
        )

    @property
    def step_operations(self) -> Operations | None:
        """The work of a step: ``operations`` if given, else the network's; None if there is neither."""
        if self.operations is not None or self.network is None:
            return self.operations
        return self.network.operations()

    def retimed(self, seconds: dict[str, float], *, basis: dict[str, Basis], timed_on: str) -> Self:
        """Return the same job with other times, their basis, and the machine that they belong to."""
        return self.replace(**seconds, basis={**self.basis, **basis}, timed_on=timed_on, calibration=None)

    def numbers(self) -> dict[str, Any]:
        """Return the numbers that plans depend on, without texts.

        Operations are left out: they determine the times, which are included.
        """
        texts = (
            *("name", "description", "timed_on", "cell", "limited"),
            *("calibration", "basis", "network", "operations"),
        )
        numbers = {field: getattr(self, field) for field in type(self).model_fields if field not in texts}
        for field in (*ACTION_TIMES, "chunk_workspace_bytes", "cache_bytes"):
            # Leave out costs of 0, so that jobs from before there were such costs keep their hash.
            if not numbers[field]:
                del numbers[field]
        if self.calibration is not None:
            # The choice between plans and the tolerance of a validation depend on them.
            numbers["uncertainty"] = self.calibration.uncertainty
            numbers["transfer_uncertainty"] = self.calibration.transfer_uncertainty
        return numbers

    def _with_network(self, field: str, value: float) -> Self:
        if self.network is None:
            hint = "" if self.cell is None else f"; calibrate it again with {Argument(field, value)}"
            raise InputError(
                f"workload {self.name!r} has no network description, so its sizes cannot follow {field}{hint}",
                field=field,
                value=value,
            )
        old_value = getattr(self.network, field)
        if old_value == value:
            return self
        carried = Basis(kind="assumed", why=f"{_RESIZED}{field} = {old_value}, not rescaled")
        # A time of 0 s is the same for any size.
        times = [name for name in (*TIMES, *ACTION_TIMES) if getattr(self, name)]
        estimated = self.timed_on is not None and self.is_estimated
        changed = self.network.replace(**{field: value})
        operations = self.operations
        if operations is not None:
            # Counted operations belong to the old network: only their efficiency remains valid.
            efficiency = {name: getattr(operations, name) for name in ("efficiency", "measured_on")}
            operations = changed.operations().replace(**efficiency)
        return self.replace(
            network=changed,
            operations=operations,
            # This is no profile's name, so times are estimated again wherever the profile has the numbers.
            timed_on=f"{self.timed_on} with {field} = {old_value}" if estimated else self.timed_on,
            basis={**self.basis, **_basis_of_derived(f"{field} = {value}"), **dict.fromkeys(times, carried)},
        )

    @property
    def is_estimated(self) -> bool:
        """Whether the times are an estimate."""
        return "forward_seconds" in self.basis and self.basis["forward_seconds"].kind == "estimated"

    def _unchanged_fields(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        derived = () if changes.get("network", self.network) is None else (*DERIVED, "batch")
        return {field: value for field, value in dict(self).items() if field not in derived}


def was_resized(workload: Workload) -> bool:
    """Return whether a time was measured at another batch or network; a time of 0 s holds for all of them."""
    return any(
        entry.kind == "assumed" and entry.why.startswith(_RESIZED) and getattr(workload, name) > 0
        for name, entry in workload.basis.items()
    )


def _basis_of_derived(change: str) -> dict[str, Basis]:
    """Return the basis of sizes that a changed network derives."""
    return dict.fromkeys(DERIVED, Basis(kind="derived", why=f"from the network, with {change}"))


def _check_sizes(sizes: dict[str, int], network: Network, *, units: int) -> None:
    """Raise InputError that names neurons, batch and units if a size exceeds 2**62 bytes."""
    for name, size in sizes.items():
        if size > MAX_BYTES:
            raise InputError(
                f"{network.neurons:,} neurons and batch {network.batch:,} on {units:,} "
                f"unit{'s' if units > 1 else ''} have {name} = {size:.4g}, more than 2**62 bytes",
                field="network",
                accepted="a smaller network or batch",
            )


def _to_network(value: object) -> Network:
    if isinstance(value, Network):
        return value
    if not isinstance(value, dict):
        raise refuse(value, "is not a table", field="network")
    try:
        return Network(**value)
    except InputError as error:
        raise error.inside(prefix="network") from None
