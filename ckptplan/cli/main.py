"""Start and end of the program: each way to end has its message and its exit code.

Ctrl-C and ``kill`` end it at once while it starts, and with its files in order later.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from ckptplan.cli.environment import discard, settle, write_error

if TYPE_CHECKING:
    from ckptplan.errors import CkptplanError

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


#: Modules that a command imports, imported before typer calls it. Deep within typer's calls the same imports
#: take a fifth longer, because CPython's frame stack then crosses the end of a chunk again and again.
_EARLY = {
    **dict.fromkeys(
        ("optimize", "compare"),
        ("numpy", "ckptplan.model.plan", "ckptplan.planning.optimize", "ckptplan.report.plan"),
    ),
    "pareto": ("numpy", "ckptplan.model.plan", "ckptplan.studies.pareto"),
    "largest": ("numpy", "ckptplan.model.plan", "ckptplan.studies.largest"),
    "paper": ("numpy", "ckptplan.model.plan", "ckptplan.paper.claims"),
    "sensitivity": ("numpy", "ckptplan.model.plan", "ckptplan.studies.sensitivity"),
    "sweep": ("numpy", "ckptplan.model.plan", "ckptplan.studies.sweep"),
    **dict.fromkeys(("simulate", "schedule"), ("numpy", "ckptplan.model.plan", "ckptplan.planning.playback")),
}
_NO_MEMORY = "there is not enough memory for this command; allow it more (ulimit -v), or close other programs"
#: What the loader of shared libraries says where memory is limited (ulimit -v).
_OUT_OF_MEMORY = re.compile(r"[Cc]annot allocate memory|failed to map segment")
#: The exit code that a shell reports for a program ended by a closed pipe.
PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of the codes listed in docs/plan-format.md."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    interrupts = Interrupts()
    interrupts.listen()
    settle()
    try:
        code = run(arguments, interrupts)
        sys.stdout.flush()
    except Terminated:
        code = TERMINATED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader is gone.
        discard(sys.stdout)
        code = PIPE_CLOSED
    except OSError as error:
        discard(sys.stdout)
        code = _fail(2, "input", f"standard output cannot be written: {error.strerror}", {}, [])
    if code == INTERRUPTED:
        write_error("interrupted")
    # At exit Python collects all garbage, modules and classes included: a fifth of a short command's time.
    gc.freeze()
    sys.exit(code)


def run(arguments: list[str], interrupts: Interrupts) -> int:
    """Run one command within this process, report its error if it has one, and return its exit code.

    Raises Terminated, KeyboardInterrupt, and BrokenPipeError or OSError of standard output.
    """
    # The imports below stay in use. Collecting garbage during them, and searching every installed package for
    # pydantic plugins, takes a tenth of a command's time.
    gc.set_threshold(100_000)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # JAX adds notes on its tracebacks to errors that pass it, and they are not shown.
    os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
    import typer

    from ckptplan.errors import CkptplanError

    try:
        return _command(arguments, interrupts)
    except CkptplanError as error:
        if interrupts.seen and isinstance(error, ImportError):
            raise KeyboardInterrupt from None
        from ckptplan.cli.wording import details_of

        return _fail(error.exit_code, error.kind, _text(error), details_of(error), arguments)
    except typer.TyperException as error:
        from ckptplan.cli.help import explain_usage

        return _fail(error.exit_code, "usage", explain_usage(error), {}, arguments)
    except SystemExit as ended:
        # Despite standalone_mode=False, typer exits in two cases: when it has answered a shell that completes
        # or installs completion, and when standard output is closed.
        if ended.code in (None, 0):
            return 0
        raise BrokenPipeError from None
    except OSError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):
            return _fail(2, "memory", _NO_MEMORY, {}, arguments)
        if interrupts.seen:
            # A library that was being imported took Ctrl-C for an error of its own.
            raise KeyboardInterrupt from None
        if os.environ.get("CKPTPLAN_DEBUG"):
            import traceback

            traceback.print_exc()
        text = f"{type(error).__name__}: {error} (a fault in ckptplan; CKPTPLAN_DEBUG=1 shows where)"
        return _fail(1, "internal", text, {}, arguments)


def _command(arguments: list[str], interrupts: Interrupts) -> int:
    from ckptplan.cli.app import COMMANDS, make_app
    from ckptplan.cli.wording import as_option
    from ckptplan.wording import arguments_as

    app = make_app(arguments[0] if arguments and arguments[0] in COMMANDS else None)
    for module in _EARLY.get(arguments[0], ()) if arguments else ():
        import_module(module)
    interrupts.starting = False
    with arguments_as(as_option):
        result = app(args=arguments, prog_name="ckptplan", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _text(error: CkptplanError) -> str:
    from ckptplan.cli.wording import as_option, message_of
    from ckptplan.errors import Infeasible
    from ckptplan.wording import arguments_as

    if not isinstance(error, Infeasible):
        return message_of(error)
    from ckptplan.report.infeasible import format_infeasible

    with arguments_as(as_option):
        return format_infeasible(error)


def _fail(code: int, kind: str, message: str, details: dict[str, Any], arguments: list[str]) -> int:
    """Report an error on stderr and return the exit code; with --format json also as JSON on stdout."""
    if _wants_json(arguments):
        import json

        first = message.partition("\n")[0]
        from ckptplan.cli.output import enveloped

        found = {"error": kind, "exit_code": code, "message": first, **details}
        sys.stdout.write(json.dumps(enveloped("error", found), indent=2) + "\n")
    if message:
        from ckptplan.wording import escape_controls

        write_error(f"ckptplan: {escape_controls(message)}")
    return code


def _wants_json(arguments: list[str]) -> bool:
    return "--format=json" in arguments or ("--format", "json") in pairwise(arguments)
