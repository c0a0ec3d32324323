"""`python -m bucketshuffle` is the command `bucketshuffle`."""

import sys

from bucketshuffle.cli import main

if __name__ == "__main__":
    sys.exit(main())
