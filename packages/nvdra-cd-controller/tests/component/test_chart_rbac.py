# SPDX-License-Identifier: Apache-2.0
"""The chart on a real API server: both service accounts can do their work and nothing else."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nvdra_lab import environment
from nvdra_testing import charts
from nvdra_testing.control_plane import apiserver, domain_objects
from nvdra_testing.control_plane.apiserver import ApiServer
from nvdra_testing.control_plane.controller import run_controller
from nvdra_testing.control_plane.domain_installation import LABEL, DriverInstallation
from nvdra_testing.polling import wait_until

CHART = charts.folder("nvdra-cd-controller")
DRIVER, NAME = "nvdra-system", "nvdra-nvdra-cd-controller"
DAEMON = "compute-domain-daemon-service-account"
UID = "11111111-2222-3333-4444-555555555555"
POLICIES = "--set=daemon.networkPolicy.enabled=true"
OTHER_UID = "99999999-2222-3333-4444-555555555555"


def helm(server: ApiServer, *argv: str) -> None:
    program = next(environment.read().cache.binaries.glob("helm-*/helm"))
    command = [str(program), "--kubeconfig", str(server.kubeconfig), *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    where = ("--namespace", DRIVER, "--create-namespace")
    with apiserver.run_apiserver(tmp_path_factory.mktemp("installed")) as server:
        helm(server, "install", "nvdra", str(CHART), *where, charts.FROM_REGISTRY, POLICIES)
        kubeconfig = server.write_token_kubeconfig(token(server, NAME), "definitions")
        directory = tmp_path_factory.mktemp("definitions")
        with run_controller(server, directory, DRIVER, kubeconfig=kubeconfig):
            for plural in ("computedomains", "computedomaincliques"):
                domain_objects.wait_served(server, plural)
        yield server


@pytest.fixture
def world(installed: ApiServer, tmp_path: Path) -> DriverInstallation:
    return DriverInstallation(
        installed, tmp_path, DRIVER, domain_objects.create_namespace(installed)
    )


def token(server: ApiServer, account: str, pod: dict[str, Any] | None = None) -> str:
    """A token like the one that the kubelet gives to a pod of the service account."""
    spec: dict[str, Any] = {}
    if pod is not None:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"]}
        spec["boundObjectRef"] = bound
    path = f"/api/v1/namespaces/{DRIVER}/serviceaccounts/{account}/token"
    return str(server.create(path, {"spec": spec})["status"]["token"])


def chart_variables(server: ApiServer) -> dict[str, str]:
    """The variables of the controller, as the chart sets them."""
    deployment = server.request("GET", f"/apis/apps/v1/namespaces/{DRIVER}/deployments/{NAME}")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def asked(server: ApiServer, token_: str, verb: str, path: str, body: Any = None) -> int:
    """The HTTP status of a request with the token."""
    request = urllib.request.Request(
        server.url + path,
        method=verb,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {token_}",
            "Content-Type": "application/merge-patch+json"
            if verb == "PATCH"
            else "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, context=server.ssl_context(), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def test_the_controller_works_with_the_charts_permissions(
    world: DriverInstallation,
) -> None:
    server = world.server
    kubeconfig = server.write_token_kubeconfig(token(server, NAME), "controller")
    given = chart_variables(server)
    flags = (
        "--leader-election-enabled",
        f"--leader-election-lease-lock-namespace={DRIVER}",
        f"--leader-election-lease-lock-name={NAME}",
        # The admission policy knows the daemons that these describe.
        f"--image-name={given['IMAGE_NAME']}",
        f"--log-verbosity-cd-daemon={given['LOG_VERBOSITY_CD_DAEMON']}",
    )
    theirs = {"metadata": {"name": "taken"}, "spec": {"spec": {"devices": {}}}}
    server.create(world.templates_path(world.user_namespace), theirs)
    with world.run_controller(*flags, kubeconfig=kubeconfig, variables=given) as controller:
        world.create_domain()
        world.create_domain("second", template="taken")
        uid = await world.wait_children_ready()
        await wait_until(lambda: world.events("second"))

        stored = world.get(world.daemonset_path(uid))
        assert stored is not None
        stored["metadata"]["labels"] = {}
        stored["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs"
        server.request("PUT", world.daemonset_path(uid), stored)
        await wait_until(lambda: len(world.children(uid)) == 3)
        policy = world.get(world.network_policy_path(uid))
        assert policy is not None
        spec, opened = policy["spec"], {**policy["spec"], "ingress": [{}]}
        changed = {**policy, "metadata": {**policy["metadata"], "labels": {}}, "spec": opened}
        server.request("PUT", world.network_policy_path(uid), changed)
        await wait_until(lambda: (world.get(world.network_policy_path(uid)) or {})["spec"] == spec)
        server.request("DELETE", world.workload_template_path())
        await wait_until(lambda: len(world.children(uid)) == 3)

        node = world.create_labelled_node("a", uid)
        world.write_clique_entries(
            uid, domain_objects.clique_entry(node, 0), domain_objects.clique_entry("gone", 1)
        )
        await wait_until(lambda: world.clique_indexes(uid) == {node: 0})
        world.delete_domain()
        world.delete_domain("second")
        await wait_until(lambda: world.domain() is None and world.domain("second") is None)
        assert LABEL not in world.node_labels(node)
        assert world.get(world.network_policy_path(uid)) is None
        assert await controller.stop() == 0
        assert ": 403" not in controller.log.read_text()


async def test_where_policies_are_off_again_the_controller_may_still_remove_them(
    world: DriverInstallation,
) -> None:
    server = world.server
    kubeconfig = server.write_token_kubeconfig(token(server, NAME), "controller")
    given = chart_variables(server)
    flags = (f"--image-name={given['IMAGE_NAME']}",)
    with world.run_controller(*flags, kubeconfig=kubeconfig, variables=given):
        world.create_domain()
        uid = await world.wait_children_ready()
        assert world.get(world.network_policy_path(uid)) is not None
    off = POLICIES.replace("true", "false")
    helm(server, "upgrade", "nvdra", str(CHART), "--namespace", DRIVER, charts.FROM_REGISTRY, off)
    given = chart_variables(server)
    assert "CD_DAEMON_NETWORK_POLICY" not in given
    with world.run_controller(*flags, kubeconfig=kubeconfig, variables=given) as controller:
        await wait_until(lambda: world.get(world.network_policy_path(uid)) is None)
        world.delete_domain()
        await wait_until(lambda: world.domain() is None)
        assert ": 403" not in controller.log.read_text()
    back = (charts.FROM_REGISTRY, POLICIES)
    helm(server, "upgrade", "nvdra", str(CHART), "--namespace", DRIVER, *back)


async def test_a_daemon_can_join_label_its_pod_and_report_and_nothing_else(
    world: DriverInstallation,
) -> None:
    server = world.server
    mine, other = (
        world.create_running_daemon_pod("node-a", UID),
        world.create_running_daemon_pod("node-b", UID),
    )
    secret = token(server, DAEMON, mine)
    pods = f"/api/v1/namespaces/{DRIVER}/pods"
    change = {"metadata": {"labels": {"resource.nvidia.com/computeDomain.cliqueID": "x.1"}}}

    # A new policy takes effect within a second or two.
    await wait_until(
        lambda: asked(server, secret, "PATCH", f"{pods}/{other['metadata']['name']}", change) == 422
    )
    assert asked(server, secret, "PATCH", f"{pods}/{mine['metadata']['name']}", change) == 200
    unbound = token(server, DAEMON)
    assert asked(server, unbound, "PATCH", f"{pods}/{mine['metadata']['name']}", change) == 422

    body = domain_objects.clique(UID, domain_objects.clique_entry("node-a", 0))
    cliques = domain_objects.cliques_path(DRIVER)
    theirs = domain_objects.clique(OTHER_UID, domain_objects.clique_entry("node-a", 0))
    peers = domain_objects.clique(
        UID, domain_objects.clique_entry("node-a", 0), domain_objects.clique_entry("node-b", 1)
    )
    for wrong in (theirs, peers):
        assert asked(server, secret, "POST", cliques, wrong) == 422
        assert asked(server, unbound, "POST", cliques, wrong) == 422
    assert asked(server, secret, "POST", cliques, body) == 201
    assert asked(server, unbound, "PATCH", f"{cliques}/{body['metadata']['name']}", body) == 422
    assert asked(server, secret, "GET", cliques) == 200
    event = {
        "metadata": {"generateName": "ring."},
        "involvedObject": {
            "kind": "ComputeDomain",
            "namespace": world.user_namespace,
            "name": "ring",
        },
        "reason": "DaemonNotReady",
        "type": "Warning",
    }
    for namespace in (DRIVER, world.user_namespace):  # its pod's, and its domain's
        event["involvedObject"]["namespace"] = namespace  # type: ignore[index]
        assert asked(server, secret, "POST", f"/api/v1/namespaces/{namespace}/events", event) == 201
    elsewhere = domain_objects.cliques_path(world.user_namespace)
    for verb, path, what in (
        ("POST", elsewhere, body),
        ("GET", elsewhere, None),
        ("DELETE", f"{cliques}/{body['metadata']['name']}", None),
        ("GET", domain_objects.domains_path(world.user_namespace), None),
        ("POST", domain_objects.domains_path(world.user_namespace), domain_objects.domain()),
        ("GET", pods, None),
        ("GET", "/api/v1/nodes", None),
        ("GET", f"/api/v1/namespaces/{DRIVER}/secrets", None),
        ("GET", world.templates_path(DRIVER), None),
    ):
        assert asked(server, secret, verb, path, what) == 403, (verb, path)
