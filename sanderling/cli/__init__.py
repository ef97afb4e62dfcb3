"""`sanderling VERB ...`: one module per verb, its docstring is its help.

Results go to stdout, progress and warnings to stderr. Exit status: 0 done, 1 a check that was asked
for did not hold, 2 bad usage, bad input or output that cannot be written, 130 interrupted, 141 the
reader of the output went away (`sanderling ... | head`).
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """The command `sanderling`. Nothing is imported before this: Ctrl-C is heard from the start."""
    try:
        from .app import start

        start()
    except KeyboardInterrupt:
        print("sanderling: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
