"""`python -m us3l` is the command `us3l`."""

import sys

from us3l.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
