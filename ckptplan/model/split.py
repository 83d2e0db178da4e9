"""One decision of a schedule that parameters alone do not determine (docs/optimality.md)."""

import enum
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from ckptplan.model.checked import IF_ANY
from ckptplan.model.record import MappingRecord
from ckptplan.units import MAX_STEPS

_Steps = Annotated[int, Field(strict=True, ge=1, le=MAX_STEPS)]
_Count = Annotated[int, Field(strict=True, ge=0, le=MAX_STEPS)]


class Where(enum.StrEnum):
    """Where the first state of a part is stored, besides being the working state."""

    UNSTORED = "free"
    LOCAL = "owned"
    REMOTE = "far"

    # The hash of an Enum is a slow Python function, and parts of schedules are looked up millions of times.
    __hash__ = str.__hash__


class Choice(enum.StrEnum):
    """The first decision about a part of t steps."""

    #: Record all steps and reverse them.
    TAPE = "tape"
    #: Keep the first state in a local slot (and no longer in remote memory), then continue as LOCAL.
    CHECKPOINT = "hold"
    #: Write the first state to remote memory, then continue as REMOTE.
    OFFLOAD = "push"
    #: Of a REMOTE part whose first state is due to be read: move it to a local slot instead, load it there,
    #: and continue as LOCAL.
    FETCH = "pull"
    #: Record the first ``length`` steps (one if 0), reverse the rest (UNSTORED), then these steps. The first
    #: state is dropped.
    RECORD = "record"
    #: Of a LOCAL part: advance ``length`` steps, reverse the rest (UNSTORED), load the first state, reverse
    #: those steps.
    ADVANCE = "advance"
    #: Advance ``length`` steps, reverse the rest, load the first state, reverse those steps. The rest is
    #: LOCAL if this part is, else UNSTORED.
    SPLIT = "split"
    #: SPLIT, with the last ``count`` of the first steps (one if 0) recorded on the way, so that their tapes are
    #: held when needed; the rest is UNSTORED.
    SPLIT_RECORD = "split-record"
    #: ``count`` times: OFFLOAD the first state and SPLIT after ``length`` steps.
    SEGMENTS = "segments"
    #: Of a LOCAL or REMOTE part: keep the caches of all its steps, each until its step is reversed.
    KEEP = "keep"


@dataclass(frozen=True)
class Split(MappingRecord):
    """The first decision about every part of ``steps`` steps and ``units`` units of free local memory.

    The part comes first, then the decision. A part that keeps the caches of its steps is ``cached``; its units
    include these caches.
    """

    where: Annotated[Where, Field(description="where the first state is kept")]
    steps: Annotated[_Steps, Field(description="steps of the part, in chunks")]
    units: Annotated[_Count, Field(description="free local memory, in units")]
    choice: Choice
    length: Annotated[_Count, Field(description="steps until the split, 0 without one")] = 0
    count: Annotated[
        _Count, Field(description="number of segments, or of steps recorded on the way; 0 without any")
    ] = 0
    cached: Annotated[
        bool, Field(strict=True, description="whether the part keeps the caches of its steps"), IF_ANY
    ] = False
