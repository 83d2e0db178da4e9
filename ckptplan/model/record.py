"""Immutable records that read both as attributes and as mappings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ConfigDict

from ckptplan.errors import refuse
from ckptplan.units import MAX_STEPS


class Parameters(Mapping[str, int]):
    """The integers of a strategy: ``parameters["chunk_size"]`` or ``parameters.chunk_size``."""

    __slots__ = ("_values",)
    _values: dict[str, int]

    def __init__(self, values: Mapping[str, int] | None = None, /, **named_values: int) -> None:
        merged: dict[str, Any] = {**(values or {}), **named_values}
        for name, value in merged.items():
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_STEPS:
                raise refuse(value, "is not accepted", field=name, accepted="a whole number from 1")
        object.__setattr__(self, "_values", merged)

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def __getattr__(self, name: str) -> int:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"no parameter {name!r}; the parameters are {list(self._values)}") from None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("parameters are frozen")

    def __reduce__(self) -> tuple[type[Parameters], tuple[dict[str, int]]]:
        return (Parameters, (self._values,))

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return f"Parameters({', '.join(f'{name}={value}' for name, value in self._values.items())})"


class MappingRecord:
    """Base of records that also read as mappings; loading refuses unknown fields."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    def keys(self) -> Iterable[str]:
        """Return the names of the fields."""
        return self.__dict__.keys()

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)
