"""``python -m ckptplan``."""

from ckptplan.cli.main import main

if __name__ == "__main__":
    main()
