"""Records which version of the program made a plan, with which command, and when."""

from __future__ import annotations

import datetime
import os
import time

from ckptplan.model.checked import MOST_JOINED
from ckptplan.model.plan import Provenance
from ckptplan.version import __version__
from ckptplan.wording import escape_controls


def make_provenance(command: str) -> Provenance:
    """Return the provenance of a plan that ``command`` makes now.

    The date is in UTC; SOURCE_DATE_EPOCH fixes it, so that builds of documents are reproducible.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    seconds = int(epoch) if epoch.isascii() and epoch.isdecimal() and len(epoch) < 11 else time.time()
    date = datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
    # A name of a file on the command line may hold any character.
    return Provenance(version=__version__, command=escape_controls(command)[:MOST_JOINED], date=date)
