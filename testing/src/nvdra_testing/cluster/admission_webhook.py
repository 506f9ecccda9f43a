# SPDX-License-Identifier: Apache-2.0
"""The webhook of an installation: its pods, whose certificate it serves, whether it is asked."""

import json
from typing import Final

from nvdra_testing.cluster import api_versions, workloads
from nvdra_testing.cluster.installation import CHART, NAMESPACE, RELEASE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl

NAME: Final = f"{RELEASE}-webhook"
SERVICE: Final = f"{NAME}.{NAMESPACE}.svc"
"""The name that its certificate is for."""
TRUSTED_S: Final = 120
"""The kubelet looks for changes of a mounted Secret every minute or so."""

_SELECTOR: Final = f"app.kubernetes.io/name=webhook,app.kubernetes.io/instance={RELEASE}"


def replicas(cluster: Cluster) -> set[str]:
    """The names of its pods."""
    found = cluster.driver_namespace.get("pods", "", "-l", _SELECTOR)
    return {pod["metadata"]["name"] for pod in found}


def not_serving(cluster: Cluster, serial: int) -> str | None:
    """The replicas whose log does not say that they use the certificate with this serial number.

    Returns:
        Their names; None if there are none.
    """
    # A replica that has been replaced since has no log any more.
    without = [
        pod
        for pod in replicas(cluster)
        if f"{serial:x}" not in cluster.driver_namespace.run_unchecked("logs", pod).stdout
    ]
    return ", ".join(sorted(without)) or None


def use_certificate(cluster: Cluster, mode: str, *flags: str) -> None:
    """Change `webhook.tls.mode` of the release, and wait for the new pods."""
    where = ("--namespace", NAMESPACE, "--wait", "--reuse-values")
    cluster.helm("upgrade", RELEASE, str(CHART), *where, f"--set=webhook.tls.mode={mode}", *flags)


def wait_trusted(pods: Kubectl) -> None:
    """Wait until the API server asks the webhook, whatever certificate it had before."""
    pods.wait(lambda: not_refused(pods), "the API server to trust the webhook", TRUSTED_S)


def not_refused(pods: Kubectl) -> str | None:
    """What is said of a wrong claim, if it is not what the webhook says."""
    wrong = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharng": {}}
    claim = workloads.claim("c", workloads.gpus())
    claim["spec"]["devices"]["config"] = [
        {"opaque": {"driver": "gpu.nvidia.com", "parameters": wrong}}
    ]
    text = json.dumps(api_versions.convert_manifest(claim, pods.resource_api_version))
    done = pods.run_unchecked("apply", "--dry-run=server", "-f", "-", text=text)
    return None if 'did you mean "sharing"?' in done.stderr else done.stderr or "it is taken"
