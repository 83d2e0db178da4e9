"""Starts and ends the program: each way to end has its message and its exit status."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn

from ckptplan.cli.environment import discard, settle, write_error

#: Exit statuses that a shell reports for a program that Ctrl-C, a closed pipe or ``kill`` ended.
INTERRUPTED, PIPE_CLOSED, TERMINATED = 130, 141, 143
_NO_MEMORY = "there is not enough memory for this command; allow it more (ulimit -v), or close other programs"
#: Messages of the loader of shared libraries where memory is limited (ulimit -v).
_OUT_OF_MEMORY = re.compile(r"[Cc]annot allocate memory|failed to map segment")


class Terminated(BaseException):
    """The system asked the program to end (SIGTERM, SIGHUP)."""


def listen() -> None:
    """Raise Terminated on SIGTERM and SIGHUP, and make Ctrl-C work even if it arrives in a finaliser.

    Signals that the process ignores stay ignored, as in the background or under nohup.
    """

    def terminate(*_: object) -> NoReturn:
        raise Terminated

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, terminate)
    sys.unraisablehook = _interrupt_again


def _interrupt_again(lost: sys.UnraisableHookArgs) -> None:
    """Interrupt again a moment later if Ctrl-C came in a callback that cannot raise, such as a finaliser."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()
    else:
        sys.__unraisablehook__(lost)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of the statuses listed in docs/plan-format.md."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    listen()
    settle()
    try:
        status = run(arguments)
        sys.stdout.flush()
    except Terminated:
        status = TERMINATED
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout)
        status = PIPE_CLOSED
    except OSError as error:
        discard(sys.stdout)
        status = _fail([], 2, "input", f"standard output cannot be written: {error.strerror}", {})
    if status == INTERRUPTED:
        write_error("interrupted")
    # Do not collect garbage at exit. It would take a fifth of the time of a short command.
    gc.freeze()
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Run one command in this process, report its error if it has one, and return its exit status.

    Raises Terminated, KeyboardInterrupt, and BrokenPipeError or OSError of standard output.
    """
    # Collecting garbage while modules are imported, and searching every installed package for pydantic
    # plugins, would take a tenth of the time of a command.
    gc.set_threshold(100_000)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # Otherwise JAX adds notes about its tracebacks to errors. The program shows no tracebacks.
    os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
    from ckptplan.cli.command import as_option
    from ckptplan.wording import arguments_as

    with arguments_as(as_option):
        try:
            return _run_command(arguments)
        except SystemExit as ended:
            # Despite standalone_mode=False, typer exits in two cases: after it has answered a shell that
            # completes or installs completion, and when standard output is closed.
            if ended.code in (None, 0):
                return 0
            raise BrokenPipeError from None
        except OSError:
            raise
        except Exception as error:
            if _was_interrupted(error):
                raise KeyboardInterrupt from None
            return _fail(arguments, *_describe_error(error))


def _run_command(arguments: list[str]) -> int:
    from ckptplan.cli.app import COMMANDS, make_app

    words = arguments[:2] if " ".join(arguments[:2]) in COMMANDS else arguments[:1]
    app = make_app(*(words if " ".join(words) in COMMANDS else ()))
    result = app(args=arguments, prog_name="ckptplan", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether an error is due to Ctrl-C, which some libraries turn into another error during import."""
    if "KeyboardInterrupt" in str(error):
        # pydantic's compiled code keeps only the text of the error.
        return True
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _describe_error(error: Exception) -> tuple[int, str, str, dict[str, Any]]:
    """Return the exit status of an error, its kind, its message and its data."""
    import typer

    from ckptplan.errors import CkptplanError, Infeasible

    if isinstance(error, Infeasible):
        from ckptplan.report.infeasible import format_infeasible

        return error.exit_code, error.kind, format_infeasible(error), error.details()
    if isinstance(error, CkptplanError):
        text = "\n".join([*error.args[:1], *getattr(error, "__notes__", ())])
        return error.exit_code, error.kind, text, error.details()
    if isinstance(error, typer.TyperException):
        return error.exit_code, "usage", error.format_message(), {}
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):
        return 2, "memory", _NO_MEMORY, {}
    if os.environ.get("CKPTPLAN_DEBUG"):
        import traceback

        traceback.print_exception(error)
    text = f"{type(error).__name__}: {error} (a fault in ckptplan; CKPTPLAN_DEBUG=1 shows where)"
    return 1, "internal", text, {}


def _fail(arguments: list[str], status: int, kind: str, message: str, details: dict[str, Any]) -> int:
    """Report an error on standard error, with --format json also on standard output. Return the exit status."""
    if "--format=json" in arguments or ("--format", "json") in pairwise(arguments):
        import json

        from ckptplan.cli.output import add_envelope

        content = {"error": kind, "exit_code": status, "message": message.partition("\n")[0], **details}
        sys.stdout.write(json.dumps(add_envelope("error", content), indent=2) + "\n")
    if message:
        from ckptplan.wording import escape_controls

        write_error(f"ckptplan: {escape_controls(message)}")
    return status
