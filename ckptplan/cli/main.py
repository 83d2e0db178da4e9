"""Start and end of the program: each way to end has its message and its exit code."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from ckptplan.cli.environment import discard, settle, write_error

if TYPE_CHECKING:
    from ckptplan.errors import CkptplanError

#: Exit codes that a shell reports for a program ended by Ctrl-C, a closed pipe, or ``kill``.
INTERRUPTED, PIPE_CLOSED, TERMINATED = 130, 141, 143
_NO_MEMORY = "there is not enough memory for this command; allow it more (ulimit -v), or close other programs"
#: What the loader of shared libraries says where memory is limited (ulimit -v).
_OUT_OF_MEMORY = re.compile(r"[Cc]annot allocate memory|failed to map segment")


class Terminated(BaseException):
    """The system requested the program's end."""


def listen() -> None:
    """End with files in order after ``kill`` or a closed terminal, and after Ctrl-C wherever it comes.

    Signals that the process ignores, as one in the background or under nohup does, stay ignored.
    """

    def terminate(*_: object) -> NoReturn:
        raise Terminated

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, terminate)
    sys.unraisablehook = _interrupt_again


def _interrupt_again(lost: sys.UnraisableHookArgs) -> None:
    """Interrupt again, a moment later, where Ctrl-C came in a callback that cannot raise, as a finaliser."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        again = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(lost)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with one of the codes listed in docs/plan-format.md."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    listen()
    settle()
    try:
        code = run(arguments)
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


def run(arguments: list[str]) -> int:
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

    from ckptplan.cli.command import as_option
    from ckptplan.errors import CkptplanError
    from ckptplan.wording import arguments_as

    with arguments_as(as_option):
        try:
            return _command(arguments)
        except CkptplanError as error:
            if _was_interrupted(error):
                raise KeyboardInterrupt from None
            return _fail(error.exit_code, error.kind, _text(error), error.details(), arguments)
        except typer.TyperException as error:
            return _fail(error.exit_code, "usage", error.format_message(), {}, arguments)
        except SystemExit as ended:
            # Despite standalone_mode=False, typer exits in two cases: when it has answered a shell that
            # completes or installs completion, and when standard output is closed.
            if ended.code in (None, 0):
                return 0
            raise BrokenPipeError from None
        except OSError:
            raise
        except Exception as error:
            if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):
                return _fail(2, "memory", _NO_MEMORY, {}, arguments)
            if _was_interrupted(error):
                raise KeyboardInterrupt from None
            if os.environ.get("CKPTPLAN_DEBUG"):
                import traceback

                traceback.print_exc()
            text = f"{type(error).__name__}: {error} (a fault in ckptplan; CKPTPLAN_DEBUG=1 shows where)"
            return _fail(1, "internal", text, {}, arguments)


def _command(arguments: list[str]) -> int:
    from ckptplan.cli.app import COMMANDS, make_app

    words = arguments[:2] if " ".join(arguments[:2]) in COMMANDS else arguments[:1]
    app = make_app(*(words if " ".join(words) in COMMANDS else ()))
    result = app(args=arguments, prog_name="ckptplan", standalone_mode=False)
    return result if isinstance(result, int) else 0


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether a library, which was being imported, made Ctrl-C an error of its own."""
    if "KeyboardInterrupt" in str(error):
        # As text alone, where compiled code of pydantic builds validators.
        return True
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _text(error: CkptplanError) -> str:
    from ckptplan.errors import Infeasible

    if isinstance(error, Infeasible):
        from ckptplan.report.infeasible import format_infeasible

        return format_infeasible(error)
    return "\n".join([*error.args[:1], *getattr(error, "__notes__", ())])


def _fail(code: int, kind: str, message: str, details: dict[str, Any], arguments: list[str]) -> int:
    """Report an error on stderr and return the exit code; with --format json also as JSON on stdout."""
    if "--format=json" in arguments or ("--format", "json") in pairwise(arguments):
        import json

        from ckptplan.cli.output import enveloped

        found = {"error": kind, "exit_code": code, "message": message.partition("\n")[0], **details}
        sys.stdout.write(json.dumps(enveloped("error", found), indent=2) + "\n")
    if message:
        from ckptplan.wording import escape_controls

        write_error(f"ckptplan: {escape_controls(message)}")
    return code
