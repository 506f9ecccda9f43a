# SPDX-License-Identifier: Apache-2.0
"""What a tenant must not do with ComputeDomains fails, with the reason and what to do."""

import json
from collections.abc import Sequence
from subprocess import CompletedProcess

import pytest
from nvdra_api import names
from nvdra_testing.cluster import compute_domains, multi_node_job, workloads
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import DEBUG_PORT, NAMESPACE, RELEASE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl

USER = "--as=mallory"
RIGHTS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "user"},
    "rules": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims", "resourceclaimtemplates"],
            "verbs": ["*"],
        },
        {"apiGroups": ["resource.nvidia.com"], "resources": ["computedomains"], "verbs": ["*"]},
    ],
}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "user"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "user"},
    "subjects": [{"kind": "User", "name": "mallory", "apiGroup": "rbac.authorization.k8s.io"}],
}
OUTSIDE = "/var/lib/kubelet/plugins/x"


@pytest.fixture
def tenant(team: Kubectl) -> Kubectl:
    """A namespace, and a user who may create all objects of a workload in it."""
    team.apply(RIGHTS)
    team.apply(BINDING)
    team.wait(lambda: None if has_rights(team) else "none", "the user to have his rights")
    return team


def has_rights(team: Kubectl) -> bool:
    """Whether the API server already knows the user's role, which it watches."""
    asked = team.run_unchecked("auth", "can-i", "create", "resourceclaims.resource.k8s.io", USER)
    return asked.returncode == 0


def refused(rack: Cluster, tenant: Kubectl, parameters: compute_domains.Json) -> str:
    """Create a claim with these parameters, and return the error on its pod.

    The node keeps no trace.
    """
    tenant.apply(compute_domains.channel_claim("mine", parameters), USER)
    tenant.apply(workloads.pod("w", claims=["mine"]), USER)
    said = compute_domains.wait_prepare_error(tenant, "w")
    tenant.delete("pod", "w")
    tenant.delete("resourceclaim", "mine")
    compute_domains.wait_released(rack)
    return said


def test_an_unknown_field_is_named(rack: Cluster, tenant: Kubectl) -> None:
    uid = compute_domains.create_domain(tenant, "ring")
    said = refused(rack, tenant, {"domainID": uid, "surprise": True})
    assert "InvalidConfig: " in said
    assert "surprise" in said
    assert Domain(rack, uid).labelled_nodes() == set()
    tenant.delete("computedomain", "ring")


def test_a_path_in_place_of_a_domains_uid_touches_no_path(rack: Cluster, tenant: Kubectl) -> None:
    said = refused(rack, tenant, {"domainID": "../../../x"})
    assert "InvalidConfig: " in said
    assert "domainID: '../../../x' is not the UID of a ComputeDomain" in said
    for node in rack.nodes():
        assert rack.lab.run("exec", node, "--", "test", "-e", OUTSIDE).returncode != 0


def test_a_domain_that_does_not_exist_is_named(rack: Cluster, tenant: Kubectl) -> None:
    uid = "11111111-2222-3333-4444-555555555555"
    said = refused(rack, tenant, {"domainID": uid})
    assert "DomainNotFound: " in said
    assert uid in said


def test_another_tenants_domain_gives_no_channel(rack: Cluster, tenant: Kubectl) -> None:
    with rack.kubectl.fresh_namespace() as theirs:
        uid = compute_domains.create_domain(theirs, "ring")
        said = refused(rack, tenant, {"domainID": uid})
        assert "NamespaceMismatch: " in said
        assert Domain(rack, uid).labelled_nodes() == set()
        theirs.delete("computedomain", "ring")


def test_a_claim_gets_no_more_channels_than_its_domain_gives(
    rack: Cluster, tenant: Kubectl
) -> None:
    domain = Domain(rack, compute_domains.create_domain(tenant, "ring", mode="Single"))
    parameters = {"domainID": domain.uid, "allocationMode": "All"}
    tenant.apply(compute_domains.channel_claim("mine", parameters), USER)
    tenant.apply(workloads.pod("w", claims=["mine"]), USER)
    tenant.wait_running("w")
    assert compute_domains.channels(tenant, "w") == {"channel0"}
    tenant.delete("pod", "w")
    tenant.delete("resourceclaim", "mine")
    tenant.delete("computedomain", "ring")
    domain.wait_gone()


@pytest.mark.parametrize("as_template", [False, True])
def test_nobody_claims_what_a_domains_daemon_has(tenant: Kubectl, as_template: bool) -> None:
    request = {"name": "it", "exactly": {"deviceClassName": names.DAEMON_CLASS}}
    make = workloads.template if as_template else workloads.claim
    said = tenant.apply_rejected(make("mine", request), USER)
    assert f"the device class {names.DAEMON_CLASS} is for the IMEX daemons" in said
    assert "make a ComputeDomain, and claim a channel" in said


@pytest.mark.parametrize(
    "command",
    [
        ("label", "node", "node-1", f"{names.DOMAIN_LABEL}=x"),
        ("get", "computedomaincliques", "-n", NAMESPACE),
        ("delete", "daemonset", "--all", "-n", NAMESPACE),
        ("exec", "-n", NAMESPACE, "daemonset/nvdra-nvdra-cd-plugin", "--", "true"),
    ],
)
def test_what_is_the_drivers_is_forbidden(tenant: Kubectl, command: tuple[str, ...]) -> None:
    done = tenant.run_unchecked(USER, *command)
    assert done.returncode != 0
    assert "orbidden" in done.stderr


def test_a_user_changes_pods_of_his_own_and_no_others(rack: Cluster, tenant: Kubectl) -> None:
    tenant.apply(workloads.pod("own"), USER)
    assert "serverside-applied" in labelled(tenant, "own").stdout
    with rack.kubectl.fresh_namespace() as theirs:
        domain = Domain(rack, compute_domains.create_domain(theirs, "ring"))
        theirs.apply(
            compute_domains.channel_pod("w", compute_domains.template_name("ring"), "node-1")
        )
        theirs.wait_running("w")
        others = (
            (rack.driver_namespace, rack.plugin_pod("node-1")),
            (rack.driver_namespace, domain.daemons()["node-1"]),
            (rack.driver_namespace, compute_domains.wait_leader(rack)),
            (theirs, "w"),
        )
        for where, pod in others:
            assert 'cannot patch resource "pods"' in labelled(where, pod).stderr
            assert "mallory" not in where.get("pod", pod)["metadata"].get("labels", {})
        theirs.delete("pod", "w")
        theirs.delete("computedomain", "ring")
        domain.wait_gone()
    tenant.delete("pod", "own")
    compute_domains.wait_released(rack)


def labelled(where: Kubectl, pod: str) -> CompletedProcess[str]:
    """Label a pod as the user in one PATCH request; `kubectl label` would read the pod first."""
    metadata = {"name": pod, "namespace": where.namespace, "labels": {"mallory": "here"}}
    change = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    flags = ("--server-side", "--validate=false")
    return where.run_unchecked("apply", "-f", "-", *flags, USER, text=change)


@pytest.mark.parametrize(
    "command",
    [
        ("port-forward", "-n", NAMESPACE, "daemonset/nvdra-nvdra-cd-plugin", ":6060"),
        ("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/PLUGIN:6060/proxy/debug/traces"),
        (
            "create",
            "--raw",
            f"/api/v1/namespaces/{NAMESPACE}/pods/PLUGIN:6060/proxy/debug/flags/v",
            "-f",
            "-",
        ),
        ("logs", "-n", NAMESPACE, "daemonset/nvdra-nvdra-cd-plugin"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_no_user_reaches_the_traces_of_others_through_the_api_server(
    rack: Cluster, tenant: Kubectl, command: tuple[str, ...]
) -> None:
    plugin = rack.plugin_pod("node-1")
    done = tenant.run_unchecked(
        USER, *(each.replace("PLUGIN", plugin) for each in command), text="9"
    )
    assert done.returncode != 0
    assert "orbidden" in done.stderr


def test_no_pod_reads_the_traces_of_others_or_sets_how_much_is_logged(
    rack: Cluster, tenant: Kubectl
) -> None:
    domain = Domain(rack, compute_domains.create_domain(tenant, "ring"))
    pod = compute_domains.channel_pod("w", compute_domains.template_name("ring"), "node-1")
    pod["spec"]["containers"][0] |= {
        "image": workloads.PYTHON_IMAGE,
        "command": workloads.IDLE_COMMAND,
    }
    tenant.apply(pod, USER)
    tenant.wait_running("w")
    installed = rack.driver_namespace.get("pods", "", "-l", f"app.kubernetes.io/instance={RELEASE}")
    staying = workloads.living(installed)
    programs = [*staying, *domain.objects("pods")]
    assert len(programs) >= 6, "controller, two plugins of each driver, and the tenant's own daemon"
    with_metrics = 0
    for program in programs:
        address = program["status"]["podIP"]
        served = {
            port["containerPort"]
            for container in program["spec"]["containers"]
            for port in container.get("ports", [])
        }
        told = asked(tenant, "w", address, [DEBUG_PORT, *served])
        assert told.pop((DEBUG_PORT, "GET /debug/traces")) == "refused"
        assert told.pop((DEBUG_PORT, "PUT /debug/flags/v")) == "refused"
        assert told.pop((DEBUG_PORT, "GET /metrics")) == "refused"
        # The metrics port does not serve it.
        metrics = [told.pop((port, "GET /metrics")) for port in served]
        assert metrics == ["200"] * len(served)
        assert [text for text in told.values() if text not in ("404", "405")] == []
        assert len(told) == 2 * len(served), "its traces and how much it logs were asked for"
        with_metrics += bool(served)
    assert with_metrics >= len(staying), "each installed program has a port for metrics"
    # It is served inside the pod itself, with the verbosity of the chart.
    plugin = rack.plugin_pod("node-1")
    own = asked(rack.driver_namespace, plugin, "127.0.0.1", [DEBUG_PORT], "GET /debug/traces")
    assert set(own.values()) == {"200"}
    assert asked(
        rack.driver_namespace, plugin, "127.0.0.1", [DEBUG_PORT], "GET /debug/flags/v", body=True
    ) == {(DEBUG_PORT, "GET /debug/flags/v"): "4"}
    tenant.delete("pod", "w")
    tenant.delete("computedomain", "ring")
    domain.wait_gone()
    compute_domains.wait_released(rack)


SNOOP = """
import sys, urllib.error, urllib.request

host, ports, shows_body, *requests = sys.argv[1:]
for port in ports.split():
    for request in requests:
        method, path = request.split()
        url, data = f"http://{host}:{port}{path}", b"9" if method == "PUT" else None
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, data, method=method), timeout=20
            ) as answer:
                text = answer.read().decode().strip() if shows_body else answer.status
        except urllib.error.HTTPError as error:
            text = error.code
        except urllib.error.URLError as error:
            text = "refused" if isinstance(error.reason, ConnectionRefusedError) else error.reason
        print(port, request, text, sep="\\t")
"""
TRIED = ("GET /debug/traces", "PUT /debug/flags/v", "GET /metrics")


def asked(
    pods: Kubectl,
    pod: str,
    host: str,
    ports: Sequence[int],
    *requests: str,
    body: bool = False,
) -> dict[tuple[int, str], str]:
    """The answers to a program in a pod at these ports of a host."""
    python = [
        *multi_node_job.PYTHON_COMMAND,
        SNOOP,
        host,
        " ".join(map(str, ports)),
        "yes" if body else "",
    ]
    lines = pods.exec(pod, *python, *(requests or TRIED)).splitlines()
    answers = (line.split("\t") for line in lines)
    return {(int(port), request): text for port, request, text in answers}


def test_a_second_domain_is_pending_until_the_first_has_left_the_node(
    rack: Cluster, tenant: Kubectl
) -> None:
    first = compute_domains.create_domain(tenant, "first")
    compute_domains.create_domain(tenant, "second")
    for name in ("first", "second"):
        pod = compute_domains.channel_pod(name, compute_domains.template_name(name), "node-1")
        tenant.apply(pod, USER)
        if name == "first":
            tenant.wait_running("first")
    # There is one channel-0 on a node, so the scheduler rejects the pod before the plugin.
    tenant.wait(
        lambda: None if unschedulable(tenant, "second") else str(tenant.events("second")),
        "the second pod to be told that the node has no channel left",
    )
    assert Domain(rack, first).labelled_nodes() == {"node-1"}
    tenant.delete("pod", "first")
    tenant.wait_running("second")
    tenant.delete("pod", "second")
    for name in ("first", "second"):
        tenant.delete("computedomain", name)
    compute_domains.wait_released(rack)


def unschedulable(tenant: Kubectl, pod: str) -> list[str]:
    events = tenant.events(pod)
    return [text for reason, text in events if reason == "FailedScheduling" and "cannot" in text]
