"""``ckptplan`` and ``python -m ckptplan``."""

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from ckptplan.cli.main import main as run

        run()
    except KeyboardInterrupt:
        # While the program starts or ends: there is nothing to put in order.
        os.write(2, b"interrupted\n")
        sys.exit(130)
    finally:
        import signal

        # The result is complete. What Python still does is not worth a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Where Ctrl-C came while exec() ran text, as dataclasses have it do, `python -m` ends by the signal,
        # though it was caught, unless other text has run since.
        exec("")  # noqa: S102
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
