"""``python -m normkit`` is the command ``normkit``."""

from normkit.cli import main

if __name__ == "__main__":
    main()
