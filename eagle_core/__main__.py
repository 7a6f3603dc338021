"""``python -m eagle_core``: the same as the ``eagle-chat`` command."""

from __future__ import annotations

import sys

from eagle_core.cli import main

if __name__ == "__main__":
    sys.exit(main())
