"""`python -m sanderling.web.job_process VERB ...`: the command `sanderling`, which tells how far it
is every second, because somebody looks."""

from __future__ import annotations

import runpy
import sys

from ..progress import tell_often

if __name__ == "__main__":
    tell_often()
    sys.argv[0] = "sanderling"
    runpy.run_module("sanderling", run_name="__main__", alter_sys=False)
