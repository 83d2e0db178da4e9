"""Results as CSV: flat rows with a header, in SI base units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptplan.report.formats.protocol import Format

if TYPE_CHECKING:
    from ckptplan.report.view import View


class Csv(Format):
    """The rows of a result."""

    name = "csv"
    rank = 2
    suffix = ".csv"

    def render(self, view: View) -> Iterator[str]:
        """Yield the header, then rows or blocks of rows."""
        from ckptplan.storage.tables import csv_pieces

        return csv_pieces(view.rows())


FORMAT = Csv()
