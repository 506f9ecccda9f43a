"""Measurements of the GPU plugin as its users run it: `python -m bench`, or `make bench`.

Figures go to `results.json` and `RESULTS.md` beside this file; what they mean and where the time
goes is in `PROFILE.md`. Nothing here is a test: a slow machine fails nothing.
"""

import sys
from pathlib import Path

# The API server, the simulated node and the client in the kubelet's place are those of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e" / "harness"))
