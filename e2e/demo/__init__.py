"""`make demo`: from a bare machine to pods that hold simulated GPUs, and what one sees of it.

It acts on a cluster through the test harness (`e2e/harness`), which is made importable here.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "harness"))
