"""``ckptplan`` and ``python -m ckptplan``: Ctrl-C is heeded before anything is imported."""

import os
import sys


def _end_at_once(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        import _signal  # type: ignore[import-not-found]  # what `signal` is made of: it is there at once

        if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            _signal.signal(_signal.SIGINT, _end_at_once)
        from ckptplan.cli.main import main as run

        if _signal.getsignal(_signal.SIGINT) is _end_at_once:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        sys.exit(130)
    finally:
        import signal

        # The result is complete. What Python still does is not worth a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ended = sys.exc_info()[1]
        if "jaxlib" in sys.modules and isinstance(ended, SystemExit):
            _end_whole(ended.code)


def _end_whole(code: object) -> None:
    """End the process without taking it apart.

    Threads of JAX may still be at work, and crash. Its libraries report what garbage keeps as leaks.
    """
    import atexit

    atexit._run_exitfuncs()
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
