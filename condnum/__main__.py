"""`python -m condnum` is the console script."""

import sys

from condnum.cli import main

if __name__ == "__main__":
    sys.exit(main())
