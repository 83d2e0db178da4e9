"""``ckptplan`` and ``python -m ckptplan``."""

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from ckptplan.cli.main import main as run

        run()
    except KeyboardInterrupt:
        # Ctrl-C came while the program starts or ends. There is nothing to clean up.
        os.write(2, b"interrupted\n")
        sys.exit(130)
    finally:
        import signal

        # The result is complete. Ctrl-C while Python exits would only print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # If Ctrl-C came while exec() ran text, as dataclasses run it, Python remembers that until exec() runs
        # again, and `python -m ckptplan` would end by the signal in place of exit code 130.
        exec("")  # noqa: S102
        exception = sys.exc_info()[1]
        if "jaxlib" in sys.modules and isinstance(exception, SystemExit):
            _exit_without_finalizing(exception.code)


def _exit_without_finalizing(code: object) -> None:
    """Run the exit handlers, and end the process without finalizing the interpreter.

    JAX threads that still run crash while Python finalizes, and the libraries of JAX report objects that are
    still alive as leaks.
    """
    import atexit

    atexit._run_exitfuncs()
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
