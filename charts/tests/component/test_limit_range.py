# SPDX-License-Identifier: Apache-2.0
"""A LimitRange in the driver's namespace changes nothing in what containers may use."""

import json
from collections.abc import Callable
from typing import Any

import pytest

Json = dict[str, Any]
Cluster = Any  # conftest.Cluster; a conftest cannot be imported

NAMESPACE = "nvdra-system"
DAEMON_ACCOUNT = "compute-domain-daemon-service-account"
LIMITS = {"type": "Container", "default": {"cpu": "500m", "memory": "100Mi"}}
"""A default limit of memory that is below what a component requests."""
FLAGS = (
    "--set=global.featureGates.MPSSupport=true",
    "--set=webhook.enabled=true,webhook.tls.mode=self-managed",
)


@pytest.fixture(scope="module")
def cluster(serving: Callable[..., Cluster]) -> Cluster:
    made = serving()
    assert made.install("nvdra", *FLAGS).returncode == 0
    limits = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "of-a-policy", "namespace": NAMESPACE},
        "spec": {"limits": [LIMITS]},
    }
    assert made.kubectl("create", "-f", "-", stdin=limits).returncode == 0
    return made


def templates(cluster: Cluster) -> dict[str, Json]:
    """The pods of what is installed, and of an IMEX and an MPS daemon, by name."""
    done = cluster.kubectl("get", "daemonsets,deployments", "-n", NAMESPACE, "-o", "json")
    owners = json.loads(done.stdout)["items"]
    found = {each["metadata"]["name"]: each["spec"]["template"] for each in owners}
    (controller,) = found["nvdra-nvdra-cd-controller"]["spec"]["containers"]
    imex = json.loads(environment(controller)["CD_DAEMON_RESOURCES"])
    plugin = found["nvdra-nvdra-gpu-plugin"]["spec"]
    given = environment(*plugin["containers"])
    mps = {
        "requests": amounts(given["MPS_DAEMON_REQUESTS"]),
        "limits": amounts(given["MPS_DAEMON_LIMITS"]),
    }
    return found | {
        "imex-daemon": daemon(DAEMON_ACCOUNT, imex),
        "mps-daemon": daemon(plugin["serviceAccountName"], mps),
    }


def environment(container: Json) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


def amounts(text: str) -> dict[str, str]:
    return dict(each.split("=") for each in text.split(","))


def daemon(account: str, resources: Json) -> Json:
    """The pod of a daemon that a component makes."""
    container = {"name": "daemon", "image": "x", "resources": resources}
    return {"metadata": {}, "spec": {"serviceAccountName": account, "containers": [container]}}


def test_a_default_limit_neither_refuses_a_pod_nor_takes_the_place_of_its_own(
    cluster: Cluster,
) -> None:
    for name, template in templates(cluster).items():
        metadata = {**template["metadata"], "name": name, "namespace": NAMESPACE}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        how = ("create", "--dry-run=server", "-o", "json", "-f", "-")
        done = cluster.kubectl(*how, stdin=pod)
        assert done.returncode == 0, done.stderr
        (asked,) = template["spec"]["containers"]
        (admitted,) = json.loads(done.stdout)["spec"]["containers"]
        own, given = asked["resources"], admitted["resources"]
        assert given["requests"] == own["requests"], name
        assert {**given["limits"], **own["limits"]} == given["limits"], name
