"""Installed by helm on a real API server: both accounts can do their work, and not more."""

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apiserver
import domains
import pytest
from apiserver import ApiServer
from cd_world import LABEL, World
from nvdra_lab import environment
from waiting import until

CHART = Path(__file__).parents[4] / "charts" / "nvdra-cd-controller"
DRIVER, NAME = "nvdra-system", "nvdra-nvdra-cd-controller"
DAEMON = "compute-domain-daemon-service-account"


def helm(server: ApiServer, *argv: str) -> None:
    program = next(environment.read().cache.binaries.glob("helm-*/helm"))
    command = [str(program), "--kubeconfig", str(server.kubeconfig), *argv]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    where = ("--namespace", DRIVER, "--create-namespace")
    with apiserver.started(tmp_path_factory.mktemp("installed")) as server:
        helm(server, "install", "nvdra", str(CHART), *where)
        for plural in ("computedomains", "computedomaincliques"):
            domains.wait_served(server, plural)
        yield server


@pytest.fixture
def world(installed: ApiServer, tmp_path: Path) -> World:
    return World(installed, tmp_path, DRIVER, domains.namespace(installed))


def token(server: ApiServer, account: str, pod: dict[str, Any] | None = None) -> str:
    """A token as the kubelet gives it to a pod of that account."""
    spec: dict[str, Any] = {}
    if pod is not None:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"]}
        spec["boundObjectRef"] = bound
    path = f"/api/v1/namespaces/{DRIVER}/serviceaccounts/{account}/token"
    return str(server.create(path, {"spec": spec})["status"]["token"])


def asked(server: ApiServer, token_: str, verb: str, path: str, body: Any = None) -> int:
    """The status of somebody's request."""
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
        with urllib.request.urlopen(request, context=server.trust(), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def test_the_controller_can_do_all_its_work_with_the_charts_rights(world: World) -> None:
    server = world.server
    kubeconfig = server.token_kubeconfig(token(server, NAME), "controller")
    election = (
        "--leader-election-enabled",
        f"--leader-election-lease-lock-namespace={DRIVER}",
        f"--leader-election-lease-lock-name={NAME}",
    )
    theirs = {"metadata": {"name": "taken"}, "spec": {"spec": {"devices": {}}}}
    server.create(world.templates(world.team), theirs)
    with world.controlled(*election, kubeconfig=kubeconfig) as controller:
        world.create()
        world.create("second", template="taken")
        uid = await world.formed()
        await until(lambda: world.events("second"))

        stored = world.get(world.daemonset_path(uid))
        assert stored is not None
        stored["metadata"]["labels"] = {}
        stored["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs"
        server.call("PUT", world.daemonset_path(uid), stored)
        await until(lambda: len(world.children(uid)) == 3)
        server.call("DELETE", world.workload_template_path())
        await until(lambda: len(world.children(uid)) == 3)

        node = world.node("a", uid)
        world.join(uid, domains.entry(node, 0), domains.entry("gone", 1))
        await until(lambda: world.places(uid) == {node: 0})
        world.delete()
        world.delete("second")
        await until(lambda: world.domain() is None and world.domain("second") is None)
        assert LABEL not in world.labels(node)
        assert await controller.stop() == 0
        assert ": 403" not in controller.log.read_text()


async def test_a_daemon_can_join_label_its_own_pod_and_say_what_it_lacks_and_nothing_else(
    world: World,
) -> None:
    server = world.server
    mine, other = world.pod("node-a", "some-uid"), world.pod("node-b", "some-uid")
    secret = token(server, DAEMON, mine)
    pods = f"/api/v1/namespaces/{DRIVER}/pods"
    change = {"metadata": {"labels": {"resource.nvidia.com/computeDomain.cliqueID": "x.1"}}}

    # A new policy acts within a second or two.
    await until(
        lambda: asked(server, secret, "PATCH", f"{pods}/{other['metadata']['name']}", change) == 422
    )
    assert asked(server, secret, "PATCH", f"{pods}/{mine['metadata']['name']}", change) == 200
    unbound = token(server, DAEMON)
    assert asked(server, unbound, "PATCH", f"{pods}/{mine['metadata']['name']}", change) == 422

    body = domains.clique("some-uid", domains.entry("node-a", 0))
    cliques = domains.cliques_path(DRIVER)
    assert asked(server, secret, "POST", cliques, body) == 201
    assert asked(server, secret, "GET", cliques) == 200
    event = {
        "metadata": {"generateName": "ring."},
        "involvedObject": {"kind": "ComputeDomain", "namespace": world.team, "name": "ring"},
        "reason": "DaemonNotReady",
        "type": "Warning",
    }
    for namespace in (DRIVER, world.team):  # its pod's, and its domain's
        event["involvedObject"]["namespace"] = namespace  # type: ignore[index]
        assert asked(server, secret, "POST", f"/api/v1/namespaces/{namespace}/events", event) == 201
    elsewhere = domains.cliques_path(world.team)
    for verb, path, what in (
        ("POST", elsewhere, body),
        ("GET", elsewhere, None),
        ("DELETE", f"{cliques}/{body['metadata']['name']}", None),
        ("GET", domains.domains_path(world.team), None),
        ("POST", domains.domains_path(world.team), domains.domain()),
        ("GET", pods, None),
        ("GET", "/api/v1/nodes", None),
        ("GET", f"/api/v1/namespaces/{DRIVER}/secrets", None),
        ("GET", world.templates(DRIVER), None),
    ):
        assert asked(server, secret, verb, path, what) == 403, (verb, path)


def test_an_upgrade_brings_new_definitions_and_an_uninstall_keeps_them(
    installed: ApiServer,
) -> None:
    path = (
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/computedomains.resource.nvidia.com"
    )
    old = installed.call("GET", path)
    old["spec"]["versions"][0]["additionalPrinterColumns"] = []
    installed.call("PUT", path, old)

    helm(installed, "upgrade", "nvdra", str(CHART), "--namespace", DRIVER)
    columns = installed.call("GET", path)["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [each["name"] for each in columns][:3] == ["Status", "Ready", "Nodes"]

    helm(installed, "uninstall", "nvdra", "--namespace", DRIVER)
    assert installed.call("GET", path)["metadata"]["name"] == "computedomains.resource.nvidia.com"
    helm(installed, "install", "nvdra", str(CHART), "--namespace", DRIVER)
