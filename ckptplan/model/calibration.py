"""Defines the record of a calibration: its machine, its repeats, and the accuracy of its times."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from ckptplan.model.checked import IF_ANY, Name, Text
from ckptplan.units import format_threads

#: The largest number of threads that can be asked for.
MOST_THREADS = 4096


class Measured(BaseModel):
    """How a number of a workload was measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    repeats: Annotated[int, Field(ge=1, description="rounds that it is the median of")]
    spread: Annotated[float, Field(ge=0, description="half the range between quartiles, as a share")]
    fit: Annotated[
        float | None, Field(le=1, description="R^2 of the straight line over several chunk sizes; none: no fit")
    ] = None


class Calibration(BaseModel):
    """The conditions of a ``ckptplan calibrate`` run, and how accurate its times are."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    machine: Annotated[Text, Field(min_length=1, description="processor, or accelerator, that was measured")]
    device: Literal["cpu", "cuda"]
    threads: Annotated[
        int, Field(ge=1, le=MOST_THREADS, description="threads that ran the cell on the processor")
    ]
    torch: Annotated[Text | None, IF_ANY, Field(description="version of PyTorch, if it ran the cell")] = None
    jax: Annotated[Text | None, IF_ANY, Field(description="version of JAX, if it ran the cell")] = None
    tape: Annotated[Text | None, IF_ANY, Field(description="kind of tapes, if JAX ran the cell")] = None
    date: Annotated[Text, Field(description="UTC, ISO 8601")]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    clock: Annotated[
        Literal["wall time", "processor time"],
        Field(description="how runs were timed; processor time where one thread of a processor runs them"),
    ] = "wall time"
    uncertainty: Annotated[
        float, Field(ge=0, description="times of plans are known to within this share: spread and misfit")
    ]
    transfer_uncertainty: Annotated[
        float, Field(ge=0, description="times of messages are known to within this share: spread and misfit")
    ]
    shortest_chunk: Annotated[
        int | None,
        Field(ge=1, description="steps; only before the costs of actions were measured: times hold from here"),
    ] = None
    chunk_overhead_seconds: Annotated[
        float | None,
        Field(ge=0, description="only before the costs of actions were measured: what a chunk adds"),
    ] = None
    tape_bytes_once: Annotated[
        int,
        Field(
            ge=0, description="bytes that a recorded chunk holds once, however many steps it has (workspace)"
        ),
    ] = 0
    measured: Annotated[
        dict[Name, Measured],
        Field(description="field, or recorded_seconds (a recorded step) -> repeats, spread and fit"),
    ] = Field(default_factory=dict)

    @property
    def framework(self) -> str:
        """What ran the cell, with its version."""
        return f"PyTorch {self.torch}" if self.jax is None else f"JAX {self.jax}"

    @property
    def times_actions(self) -> bool:
        """Whether the costs of actions were measured; earlier calibrations have none, and they count as 0."""
        return self.chunk_overhead_seconds is None

    @property
    def threads_text(self) -> str:
        """The number of threads as text."""
        return format_threads(self.threads)
