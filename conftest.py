"""Makes the test harness importable: `import apiserver`, `import kubelet_client`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "e2e" / "harness"))

pytest_plugins = ["crash_report"]
