"""`python -m darknetpy ...`"""

import sys

from darknetpy.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
