"""``ckptplan`` and ``python -m ckptplan``: Ctrl-C is heeded before anything is imported."""

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from ckptplan.cli.main import main as run

        run()
    except KeyboardInterrupt:
        os.write(2, b"interrupted\n")
        sys.exit(130)
    finally:
        import signal

        # The result is complete. What Python still does is not worth a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    main()
