"""Ends the program on Ctrl-C and ``kill``: at once while it starts, and with its files in order later."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

INTERRUPTED, TERMINATED = 130, 143


class Terminated(BaseException):
    """The system requested the program's end."""


class Interrupts:
    """Handles SIGINT. While libraries are imported, an exception could be lost in them or become another."""

    def __init__(self) -> None:
        #: Whether there is nothing to put in order yet.
        self.starting = True
        #: Whether there was one.
        self.seen = False
        #: Whether one is being passed on, which must not raise.
        self._passing = False

    def listen(self) -> None:
        """Handle SIGINT, unless the process ignores it, as one in the background does, SIGTERM and SIGHUP."""
        signal.signal(signal.SIGTERM, self._terminate)
        # A closed terminal ends the program; under nohup it is ignored.
        hangup = getattr(signal, "SIGHUP", None)
        if hangup is not None and signal.getsignal(hangup) is signal.SIG_DFL:
            signal.signal(hangup, self._terminate)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
            sys.unraisablehook = self._pass_on

    def _pass_on(self, lost: sys.UnraisableHookArgs) -> None:
        """Interrupt again where Ctrl-C came in a callback that cannot raise, as a finaliser."""
        if issubclass(lost.exc_type, KeyboardInterrupt):
            self._passing = True
            try:
                _interrupt_again()
            finally:
                self._passing = False
        else:
            sys.__unraisablehook__(lost)

    def _interrupt(self, *_: object) -> None:
        if self.starting:
            os.write(2, b"interrupted\n")
            os._exit(INTERRUPTED)
        self.seen = True
        if self._passing:
            # A busy machine: the next one is here before the last one was passed on.
            _interrupt_again()
        else:
            raise KeyboardInterrupt

    def _terminate(self, *_: object) -> NoReturn:
        if self.starting:
            os._exit(TERMINATED)
        raise Terminated


def _interrupt_again() -> None:
    """Send this process Ctrl-C. Not at once: the handler would raise where this was called from."""
    import threading

    again = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    again.daemon = True
    again.start()
