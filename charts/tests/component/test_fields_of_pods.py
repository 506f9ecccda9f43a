"""The admission policies of pods decide on every field that an API server knows.

A field of a new release of Kubernetes fails this test, until somebody has decided what a stolen
token may write there.
"""

import re
from typing import Any

import pytest
from nvdra_testing.control_plane.installation import CONTROLLER, GPU_PLUGIN, Installation
from nvdra_testing.control_plane.pod_changes import CONTAINERS_FIELDS, PODS_FIELDS

CHECKED_OF_PODS = {
    *("affinity", "automountServiceAccountToken", "containers", "hostPID", "imagePullSecrets"),
    *("nodeSelector", "priorityClassName", "resourceClaims", "securityContext"),
    *("serviceAccount", "serviceAccountName", "volumes"),
}
"""A policy says what they must be."""
FREE_OF_PODS = {
    *("dnsPolicy", "restartPolicy", "schedulerName", "terminationGracePeriodSeconds"),
    "tolerations",
}
"""They open nothing; the pods of Deployments and DaemonSets have one restart policy."""
CHECKED_OF_CONTAINERS = {
    *("args", "command", "env", "image", "livenessProbe", "ports", "readinessProbe", "resources"),
    *("securityContext", "startupProbe", "terminationMessagePath", "volumeMounts"),
}
FREE_OF_CONTAINERS = {"imagePullPolicy", "name", "terminationMessagePolicy"}


def unset(policy: str, obj: str) -> set[str]:
    """The fields of `pod` or `container` that a policy lets nobody set."""
    return set(re.findall(rf"\b{obj}\.\?(\w+)\.orValue\(null\) == ", policy))


@pytest.mark.parametrize("name", [f"{GPU_PLUGIN}-mps", f"{CONTROLLER}-daemonsets"])
def test_a_policy_decides_on_every_field_of_a_pod(installed: Installation, name: str) -> None:
    schemas: dict[str, Any] = installed.server.request("GET", "/openapi/v3/apis/apps/v1")
    known = {
        kind: set(schemas["components"]["schemas"][f"io.k8s.api.core.v1.{kind}"]["properties"])
        for kind in ("PodSpec", "Container")
    }
    policy = installed.policy(name)
    assert known["PodSpec"] - unset(policy, "pod") <= CHECKED_OF_PODS | FREE_OF_PODS
    assert known["Container"] - unset(policy, "container") <= (
        CHECKED_OF_CONTAINERS | FREE_OF_CONTAINERS
    )
    assert set(PODS_FIELDS) == unset(policy, "pod") - CHECKED_OF_PODS
    assert set(CONTAINERS_FIELDS) >= unset(policy, "container") - CHECKED_OF_CONTAINERS
