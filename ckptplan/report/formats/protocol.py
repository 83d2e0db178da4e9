"""What an output format is: a name, the file names that ask for it, and a result as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from ckptplan.storage.files import replace_file

if TYPE_CHECKING:
    from ckptplan.report.view import View


class Format(ABC):
    """One way to write any result. Modules of this package end in ``FORMAT = ...``, an instance of it."""

    #: As ``--format`` takes it.
    name: ClassVar[str]
    #: Place among the formats; the first is the default.
    rank: ClassVar[int]
    #: How a file's name ends that asks for this format, as '.json'; None if no name does.
    suffix: ClassVar[str | None] = None

    @abstractmethod
    def render(self, view: View) -> Iterator[str]:
        """Yield a result as text, piece by piece: some results are larger than memory."""

    def write(self, view: View, path: str) -> None:
        """Write a result to a file, '-' for standard output. Raises InputError if it cannot be written."""
        with replace_file(path) as file:
            file.writelines(self.render(view))
