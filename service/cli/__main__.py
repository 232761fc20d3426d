"""`python -m service.cli` is the command `finery`."""

import sys

from service.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
