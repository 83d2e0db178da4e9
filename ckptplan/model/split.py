"""One decision of a schedule that parameters alone do not determine (docs/optimality.md)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from ckptplan.units import MAX_STEPS

_Steps = Annotated[int, Field(strict=True, ge=1, le=MAX_STEPS)]
_Count = Annotated[int, Field(strict=True, ge=0, le=MAX_STEPS)]


@dataclass(frozen=True, kw_only=True)
class Split:
    """What is done first with every part of ``steps`` steps and ``units`` units of free local memory."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    where: Annotated[Literal["free", "owned", "far"], Field(description="where the first state is kept")]
    steps: Annotated[_Steps, Field(description="steps of the part, in chunks")]
    units: Annotated[_Count, Field(description="free local memory, in units")]
    choice: Literal["tape", "hold", "push", "record", "split", "split-record", "segments"]
    length: Annotated[_Count, Field(description="steps until the split, 0 where there is none")] = 0
    count: Annotated[_Count, Field(description="how many segments, 0 where there are none")] = 0

    def keys(self) -> Iterable[str]:
        """Return the names of the fields."""
        return self.__dict__.keys()

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)
