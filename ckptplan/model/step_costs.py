"""Defines the costs of a job's elementary actions on a machine. Strategies see no more of either."""

from typing import Any, ClassVar, Self, TypeAlias

from pydantic import Field, model_validator

from ckptplan.errors import InputError
from ckptplan.model.checked import Bytes, CheckedModel, PositiveBytes, Seconds, Steps
from ckptplan.units import MAX_BYTES

#: The counts of ``Totals`` as attributes: whole numbers, or arrays of shape (n,), which give arrays.
Counted: TypeAlias = Any


class StepCosts(CheckedModel):
    """Bytes and seconds of the elementary actions (docs/schedule-format.md).

    Bytes are per unit, except ``remote_state_bytes`` and ``remote_cache_bytes``, which count all units, as
    remote memory does.
    ``resident_bytes`` is never freed: the fixed part, the part per step times T, and workspace.
    Schedules that record several steps at once also need ``chunk_bytes``. The cache of a step takes
    ``cache_bytes`` of local memory. With its cache a step runs again in ``recompute_seconds``, without it in
    ``forward_seconds``.
    Raises InputError.
    """

    noun: ClassVar[str] = "step costs"

    steps: Steps = Field(description="T")
    state_bytes: PositiveBytes = Field(description="M_s on one unit")
    tape_bytes: PositiveBytes = Field(description="M_a on one unit")
    cache_bytes: Bytes = Field(default=0, description="M_r, the cache of a step on one unit")
    resident_bytes: Bytes = Field(default=0, description="M_others on one unit, for all steps")
    chunk_bytes: Bytes = Field(default=0, description="workspace of chunks of several steps on one unit")
    remote_state_bytes: PositiveBytes = Field(description="one state, all units together")
    remote_cache_bytes: Bytes = Field(default=0, description="the cache of a step, all units together")
    forward_seconds: Seconds = Field(description="f")
    backward_seconds: Seconds = Field(description="b")
    recompute_seconds: Seconds = Field(description="r")
    record_overhead_seconds: Seconds = Field(default=0.0, description="o")
    write_seconds: Seconds = Field(default=0.0, description="T_c, one state to remote memory")
    read_seconds: Seconds = Field(default=0.0, description="T_c, one state from remote memory")
    cache_write_seconds: Seconds = Field(default=0.0, description="T_r, the cache of a step to remote memory")
    cache_read_seconds: Seconds = Field(default=0.0, description="T_r, the cache of a step from remote memory")
    message_seconds: Seconds = Field(default=0.0, description="T_s + latency, once per message either way")
    advance_seconds: Seconds = Field(default=0.0, description="each Advance, in addition to its steps")
    chunk_seconds: Seconds = Field(default=0.0, description="each Record with its Backward, besides its steps")
    save_seconds: Seconds = Field(default=0.0, description="each Save in local memory")
    load_seconds: Seconds = Field(default=0.0, description="each Load from local memory")
    overlaps_compute: bool = Field(default=False, description="whether transfers overlap compute")

    @model_validator(mode="after")
    def _countable(self) -> Self:
        largest = max(
            self.state_bytes + self.tape_bytes + self.cache_bytes,
            self.remote_state_bytes + self.remote_cache_bytes,
        )
        if self.steps * largest + self.resident_bytes + self.chunk_bytes > MAX_BYTES:
            raise InputError(
                f"{self.steps:,} steps of {largest:,} bytes are more than 2**62 bytes in all, "
                "the most that is counted exactly",
                field="steps",
                value=self.steps,
                accepted="fewer steps, or smaller states and tapes",
            )
        return self

    @property
    def with_resident_caches(self) -> Self:
        """The costs if the caches of all steps stay in local memory until the end, as in the paper."""
        if not self.cache_bytes:
            return self
        resident = self.resident_bytes + self.steps * self.cache_bytes
        return self.model_copy(update={"resident_bytes": resident, "cache_bytes": 0})

    @property
    def with_chunk_workspace(self) -> Self:
        """The costs with the workspace of chunks counted as resident, unless there is only one step."""
        if not self.chunk_bytes or self.steps == 1:
            return self
        resident = self.resident_bytes + self.chunk_bytes
        return self.model_copy(update={"resident_bytes": resident, "chunk_bytes": 0})

    @property
    def recorded_bytes(self) -> int:
        """The bytes of a recorded step: its tape and its cache, M_a + M_r."""
        return self.tape_bytes + self.cache_bytes

    def action_seconds(self, counts: Counted) -> Any:
        """Return the seconds of actions beyond their steps: advances a + chunks k + saves s + loads l."""
        return (
            counts.advances * self.advance_seconds
            + counts.chunks * self.chunk_seconds
            + counts.local_saves * self.save_seconds
            + counts.local_loads * self.load_seconds
        )

    def compute_seconds(self, counts: Counted) -> Any:
        """Return the time of a schedule without its transfers: T (f + o + b) + again + actions."""
        return self.sweep_seconds + self.again_seconds(counts) + self.action_seconds(counts)

    def again_seconds(self, counts: Counted) -> Any:
        """Return the time of steps that run again: recomputed r + (f - r) for each without its cache."""
        without_cache = counts.recomputed_without_cache * (self.forward_seconds - self.recompute_seconds)
        return counts.recomputed_steps * self.recompute_seconds + without_cache

    def serial_seconds(self, counts: Counted) -> Any:
        """Return the time of one batch with transfers and compute in sequence (docs/equations.md).

        seconds = T (f + o + b) + again + writes T_c + reads T_c + offloaded (T_r + T_r)
                  + messages (T_s + latency) + actions,
        where T_c and T_r of a write and of a read may differ.
        """
        return (
            self.sweep_seconds
            + self.again_seconds(counts)
            + counts.remote_writes * self.write_seconds
            + counts.remote_reads * self.read_seconds
            + counts.offloaded_caches * (self.cache_write_seconds + self.cache_read_seconds)
            + counts.messages * self.message_seconds
            + self.action_seconds(counts)
        )

    @property
    def sweep_seconds(self) -> float:
        """The seconds that every schedule takes for its steps alone, T (f + o + b)."""
        return self.steps * (self.forward_seconds + self.record_overhead_seconds + self.backward_seconds)

    @property
    def base_seconds(self) -> float:
        """The seconds of plain backpropagation through time, which is a single chunk: T (f + o + b) + k."""
        return self.sweep_seconds + self.chunk_seconds
