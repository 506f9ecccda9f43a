# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

PROGRAM = """
import sys
import nvdra_runtime.kube.client
assert "kubernetes.client" not in sys.modules, "the synchronous client was imported"
assert "kubernetes.aio.watch" not in sys.modules, "kubernetes.aio was imported whole"
import kubernetes.aio
from nvdra_runtime.kube import kubernetes_package
assert kubernetes.aio.client.Configuration is kubernetes_package.Configuration
assert kubernetes.client.CoreV1Api is not None
"""


def test_only_what_is_needed_of_the_kubernetes_package_is_imported_and_the_rest_still_can_be() -> (
    None
):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
