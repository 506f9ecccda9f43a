# SPDX-License-Identifier: Apache-2.0
"""ComputeDomains installed by helm: a real API server enforces permissions and policies."""

import copy
import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from nvdra_testing.control_plane import domain_objects

Cluster = Any  # conftest.Cluster; a conftest cannot be imported

DRIVER = "nvdra-system"
NAME = "nvdra-nvdra-cd-plugin"
ACCOUNT = f"system:serviceaccount:{DRIVER}:{NAME}"
POLICIES = "validatingadmissionpolicies"
LABEL = "resource.nvidia.com/computeDomain"
LINKS_ANNOTATION = "nvdra.nvidia.com/imex-links"
DAEMON_CLASS = "compute-domain-daemon.nvidia.com"
CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"
DAEMON_USER = f"system:serviceaccount:{DRIVER}:compute-domain-daemon-service-account"
CONTROLLER = f"system:serviceaccount:{DRIVER}:nvdra-nvdra-cd-controller"
DOMAIN_UID = "11111111-2222-3333-4444-555555555555"
OTHER_UID = "99999999-2222-3333-4444-555555555555"
POD_UID = "aaaaaaaa-2222-3333-4444-555555555555"
CREATE_NOT = ("create", "--dry-run=server")
CLIQUE = "b43b8b5c-0f4f-4d57-9f8e-0c3a4a8d9a01.32766"


@pytest.fixture(scope="module")
def installed(serving: Callable[..., Cluster]) -> Cluster:
    cluster = serving()
    for name in ("old", "team-a"):
        assert cluster.kubectl("create", "namespace", name).returncode == 0
    for node in ("node-a", "node-b"):
        item = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node, "labels": {"a": "b"}},
        }
        assert cluster.kubectl("create", "-f", "-", stdin=item).returncode == 0
    cluster.install_crds()
    flags = ("--set=global.additionalNamespaces={old}", "--set=global.featureGates.AllBeta=false")
    gates = "--set=global.featureGates.IMEXDaemonsWithDNSNames=true"
    others = "--set=global.admittedByOthers={policies.example.com/}"
    done = cluster.install("nvdra", *flags, gates, others)
    assert done.returncode == 0, done.stderr
    # A new policy is compiled within a second or two of its creation.
    until(lambda: "may not change node" in labelled(cluster, "node-b", {"x": "y"}).stderr)
    until(lambda: claim(cluster, "team-a", DAEMON_CLASS).returncode != 0)
    stranger = clique(DOMAIN_UID, member("node-b"))
    until(lambda: "may not" in written(cluster, stranger, DOMAIN_UID, *CREATE_NOT).stderr)
    return cluster


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, "the admission policy never denied anything"
        time.sleep(0.2)


def patched(
    cluster: Cluster, node: str, change: dict[str, Any], own: str | None = "node-a"
) -> subprocess.CompletedProcess[str]:
    """Requests with a token of the plugin on a node."""
    extra = [f"--as-user-extra=authentication.kubernetes.io/node-name={own}"] if own else []
    where = ("patch", "node", node, "--type=merge", f"--patch={json.dumps(change)}")
    done: subprocess.CompletedProcess[str] = cluster.kubectl(f"--as={ACCOUNT}", *extra, *where)
    return done


def labelled(
    cluster: Cluster, node: str, labels: Mapping[str, str | None], own: str | None = "node-a"
) -> subprocess.CompletedProcess[str]:
    return patched(cluster, node, {"metadata": {"labels": labels}}, own)


def request(device_class: str, version: str = "v1") -> dict[str, Any]:
    wish = {"deviceClassName": device_class}
    return {"name": "it", **(wish if version == "v1beta1" else {"exactly": wish})}


def claim(
    cluster: Cluster, namespace: str, *device_classes: str
) -> subprocess.CompletedProcess[str]:
    """Create a tenant's claim for the first available of these classes."""
    wishes = [{"name": f"w{i}", "deviceClassName": each} for i, each in enumerate(device_classes)]
    asked = (
        request(device_classes[0]) if len(wishes) == 1 else {"name": "it", "firstAvailable": wishes}
    )
    item = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"generateName": "c-", "namespace": namespace},
        "spec": {"devices": {"requests": [asked]}},
    }
    done: subprocess.CompletedProcess[str] = cluster.kubectl("create", "-f", "-", stdin=item)
    return done


def test_every_policys_expressions_are_well_typed(installed: Cluster) -> None:
    def policies() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(
            installed.kubectl("get", POLICIES, "-o", "json").stdout
        )["items"]
        return items

    def unchecked() -> list[str]:
        found = policies()
        assert len(found) == 15
        return [each["metadata"]["name"] for each in found if "status" not in each]

    until(lambda: not unchecked())
    for each in policies():
        assert each["status"]["typeChecking"] == {}, each["metadata"]["name"]


@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "allowed"),
    [
        ("get", "resourceclaims.resource.k8s.io", "-A", "yes"),
        ("list", "resourceclaims.resource.k8s.io", "-A", "no"),
        ("watch", "computedomains.resource.nvidia.com", "-A", "yes"),
        ("update", "computedomains.resource.nvidia.com", "-A", "no"),
        ("patch", "nodes", "-A", "yes"),
        ("update", "nodes", "-A", "no"),
        ("watch", "nodes", "-A", "yes"),
        ("list", "pods", "-A", "no"),
        ("list", "pods", f"-n={DRIVER}", "yes"),
        ("list", "pods", "-n=old", "yes"),
        ("watch", "pods", f"-n={DRIVER}", "no"),
        ("watch", "computedomaincliques.resource.nvidia.com", f"-n={DRIVER}", "yes"),
        ("watch", "computedomaincliques.resource.nvidia.com", "-n=old", "yes"),
        ("watch", "computedomaincliques.resource.nvidia.com", "-n=team-a", "no"),
        ("update", "computedomaincliques.resource.nvidia.com", f"-n={DRIVER}", "no"),
        ("get", "daemonsets.apps", f"-n={DRIVER}", "yes"),
        ("get", "daemonsets.apps", "-n=team-a", "no"),
        ("list", "events", f"-n={DRIVER}", "yes"),
        ("list", "events", "-n=team-a", "no"),
        ("list", "computedomaincliques.resource.nvidia.com", f"-n={DRIVER}", "yes"),
        ("get", "computedomaincliques.resource.nvidia.com", f"-n={DRIVER}", "no"),
        ("patch", "resourceslices.resource.k8s.io", "-A", "no"),
        ("get", "secrets", f"-n={DRIVER}", "no"),
    ],
)
def test_the_plugins_account_has_these_permissions(
    installed: Cluster, verb: str, resource: str, namespace: str, allowed: str
) -> None:
    argv = ("auth", "can-i", verb, resource, namespace, f"--as={ACCOUNT}")
    assert installed.kubectl(*argv).stdout.strip() == allowed


def test_the_plugin_sets_and_removes_our_labels_of_its_own_node(installed: Cluster) -> None:
    for labels in ({LABEL: "some-uid", "nvidia.com/gpu.clique": "x.1"}, {LABEL: "another"}):
        assert labelled(installed, "node-a", labels).returncode == 0
    gone: dict[str, str | None] = {LABEL: None, "nvidia.com/gpu.clique": None}
    assert labelled(installed, "node-a", gone).returncode == 0


def test_it_does_not_label_another_node(installed: Cluster) -> None:
    said = labelled(installed, "node-b", {LABEL: "some-uid"}).stderr
    assert "running on node 'node-a' may not change node 'node-b'" in said


@pytest.mark.parametrize("labels", [{"a": "c"}, {"a": None}, {"new": "x"}])
def test_it_does_not_change_other_labels(installed: Cluster, labels: dict[str, str | None]) -> None:
    said = labelled(installed, "node-a", labels).stderr
    assert f"may change no labels of a node but {LABEL}, nvidia.com/gpu.clique" in said


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": ["a.example.com/b"]}},
    ],
)
def test_it_changes_nothing_else_of_its_node(installed: Cluster, change: dict[str, Any]) -> None:
    assert "may change nothing of a node but labels" in patched(installed, "node-a", change).stderr


def test_its_account_without_a_node_changes_no_node(installed: Cluster) -> None:
    assert "may not change node" in labelled(installed, "node-a", {LABEL: "x"}, own=None).stderr


def test_administrators_can_still_change_nodes(installed: Cluster) -> None:
    assert installed.kubectl("cordon", "node-b").returncode == 0
    assert installed.kubectl("uncordon", "node-b").returncode == 0


@pytest.mark.parametrize("namespace", [DRIVER, "old"])
def test_the_drivers_own_namespaces_may_claim_a_daemon(installed: Cluster, namespace: str) -> None:
    assert claim(installed, namespace, DAEMON_CLASS).returncode == 0


@pytest.mark.parametrize(
    "classes", [(DAEMON_CLASS,), (CHANNEL_CLASS, DAEMON_CLASS), ("other", DAEMON_CLASS)]
)
def test_a_tenants_claim_for_a_daemon_is_rejected_with_advice(
    installed: Cluster, classes: tuple[str, ...]
) -> None:
    said = claim(installed, "team-a", *classes).stderr
    assert f"the device class {DAEMON_CLASS} is for the IMEX daemons" in said
    assert "(nvdra-system, old): make a ComputeDomain, and claim a channel" in said


@pytest.mark.parametrize("classes", [(CHANNEL_CLASS,), ("gpu.nvidia.com", CHANNEL_CLASS)])
def test_a_tenants_other_claims_are_accepted(installed: Cluster, classes: tuple[str, ...]) -> None:
    assert claim(installed, "team-a", *classes).returncode == 0


def test_a_tenants_template_for_a_daemon_is_rejected(installed: Cluster) -> None:
    item = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "mine", "namespace": "team-a"},
        "spec": {"spec": {"devices": {"requests": [request(DAEMON_CLASS)]}}},
    }
    said = installed.kubectl("create", "-f", "-", stdin=item).stderr
    assert f"the device class {DAEMON_CLASS} is for the IMEX daemons" in said
    item["spec"] = {"spec": {"devices": {"requests": [request(CHANNEL_CLASS)]}}}
    assert installed.kubectl("create", "-f", "-", stdin=item).returncode == 0


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_tenants_claim_in_an_older_api_version_is_rejected(
    serving: Callable[..., Cluster], version: str
) -> None:
    served = f"resource.k8s.io/v1=false,resource.k8s.io/v1beta1=true,resource.k8s.io/{version}=true"
    cluster = serving(served)
    done = cluster.install("nvdra")
    assert done.returncode == 0, done.stderr
    item = {
        "apiVersion": "resource.k8s.io/v1beta1",
        "kind": "ResourceClaim",
        "metadata": {"generateName": "c-", "namespace": "default"},
        "spec": {"devices": {"requests": [request(DAEMON_CLASS, "v1beta1")]}},
    }
    until(lambda: cluster.kubectl("create", "-f", "-", stdin=item).returncode != 0)
    assert "is for the IMEX daemons" in cluster.kubectl("create", "-f", "-", stdin=item).stderr
    item["spec"] = {"devices": {"requests": [request(CHANNEL_CLASS, "v1beta1")]}}
    assert cluster.kubectl("create", "-f", "-", stdin=item).returncode == 0


@pytest.fixture
def domain(installed: Cluster) -> Iterator[dict[str, Any]]:
    """A tenant's ComputeDomain with one node in its status; the gate of cliques is off."""
    item = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "ring", "namespace": "team-a"},
        "spec": {"channel": {"resourceClaimTemplate": {"name": "ring-channel"}}},
    }
    assert installed.kubectl("create", "-f", "-", stdin=item).returncode == 0
    stored = json.loads(
        installed.kubectl("get", "computedomain", "ring", "-n=team-a", "-o=json").stdout
    )
    stored["status"] = {"status": "NotReady", "nodes": [entry("node-b", 0)]}
    done = installed.kubectl("replace", "--subresource=status", "-f", "-", stdin=stored)
    assert done.returncode == 0, done.stderr
    yield json.loads(
        installed.kubectl("get", "computedomain", "ring", "-n=team-a", "-o=json").stdout
    )
    installed.kubectl("delete", "computedomain", "ring", "-n=team-a")


def entry(node: str, index: int) -> dict[str, Any]:
    return {"name": node, "ipAddress": "10.0.0.1", "cliqueID": "", "index": index}


def as_daemon(uid: str, node: str = "node-a") -> tuple[str, ...]:
    """The user in the token of a domain's daemon on a node."""
    extra = "--as-user-extra=authentication.kubernetes.io"
    return (
        f"--as={DAEMON_USER}",
        f"{extra}/node-name={node}",
        f"{extra}/pod-name=computedomain-daemon-{uid}-x7x7x",
        f"{extra}/pod-uid={POD_UID}",
    )


def told(
    cluster: Cluster, stored: dict[str, Any], uid: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Write a status as a daemon on node-a."""
    who = as_daemon(uid or stored["metadata"]["uid"])
    flags = ("replace", "--subresource=status", "-f", "-")
    done: subprocess.CompletedProcess[str] = cluster.kubectl(*who, *flags, stdin=stored)
    return done


def test_without_cliques_a_daemon_writes_its_own_entry_in_the_domains_status(
    installed: Cluster, domain: dict[str, Any]
) -> None:
    other = dict(domain["status"]["nodes"][0])
    domain["status"]["nodes"] = [other, entry("node-a", 1)]
    done = told(installed, domain)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("nodes", [[], [entry("node-b", 3)], [entry("node-c", 0)]])
def test_without_cliques_a_daemon_writes_no_other_nodes_entry(
    installed: Cluster, domain: dict[str, Any], nodes: list[dict[str, Any]]
) -> None:
    domain["status"]["nodes"] = nodes
    assert "may not say how another node is" in told(installed, domain).stderr


def test_without_cliques_a_daemon_writes_nothing_else_of_the_status(
    installed: Cluster, domain: dict[str, Any]
) -> None:
    domain["status"]["status"] = "Ready"
    assert "may not say how the domain is" in told(installed, domain).stderr


def test_without_cliques_a_daemon_writes_no_other_domain(
    installed: Cluster, domain: dict[str, Any]
) -> None:
    domain["status"]["nodes"].append(entry("node-a", 1))
    assert "is not of the ComputeDomain 'ring'" in told(installed, domain, OTHER_UID).stderr


def clique(uid: str, *members: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainClique",
        "metadata": {
            "name": f"{uid}.{CLIQUE}",
            "namespace": DRIVER,
            "labels": {LABEL: uid, f"{LABEL}.cliqueID": CLIQUE},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": POD_UID}],
            **metadata,
        },
        "daemons": list(members),
    }


def member(node: str, index: int = 0) -> dict[str, Any]:
    return {"nodeName": node, "ipAddress": "10.0.0.1", "cliqueID": CLIQUE, "index": index}


@pytest.fixture
def stored_clique(installed: Cluster) -> Iterator[dict[str, Any]]:
    """The clique of a domain, which a daemon on node-b has created."""
    who = as_daemon(DOMAIN_UID, "node-b")
    made = installed.kubectl(
        *who, "create", "-f", "-", "-o=json", stdin=clique(DOMAIN_UID, member("node-b"))
    )
    assert made.returncode == 0, made.stderr
    yield json.loads(made.stdout)
    name = f"{DOMAIN_UID}.{CLIQUE}"
    installed.kubectl("delete", "computedomainclique", name, f"-n={DRIVER}")


def written(
    cluster: Cluster, item: dict[str, Any], uid: str = DOMAIN_UID, *verb: str
) -> subprocess.CompletedProcess[str]:
    """Write a clique as a domain's daemon on node-a."""
    done: subprocess.CompletedProcess[str] = cluster.kubectl(
        *as_daemon(uid), *(verb or ("replace",)), "-f", "-", stdin=item
    )
    return done


def test_a_daemon_joins_the_clique_of_its_domain_and_leaves_it(
    installed: Cluster, stored_clique: dict[str, Any]
) -> None:
    stored_clique["daemons"].append(member("node-a", 1))
    del stored_clique["metadata"]["resourceVersion"]
    joined = written(installed, stored_clique)
    assert joined.returncode == 0, joined.stderr
    del stored_clique["daemons"][1]
    assert written(installed, stored_clique).returncode == 0


def test_a_daemon_becomes_an_additional_owner_of_the_clique(
    installed: Cluster, stored_clique: dict[str, Any]
) -> None:
    mine = {"apiVersion": "v1", "kind": "Pod", "name": "y", "uid": POD_UID}
    stored_clique["metadata"]["ownerReferences"].append({**mine, "uid": OTHER_UID})
    assert "may put its own pod among the owners" in written(installed, stored_clique).stderr
    stored_clique["metadata"]["ownerReferences"].pop()
    del stored_clique["metadata"]["labels"]  # put on by whoever finds them missing
    assert written(installed, stored_clique).returncode == 0


@pytest.mark.parametrize("verb", ["create", "replace"])
def test_a_daemon_writes_no_clique_of_another_domain(
    installed: Cluster, stored_clique: dict[str, Any], verb: str
) -> None:
    stored_clique["daemons"].append(member("node-a", 1))
    item = clique(DOMAIN_UID, member("node-a")) if verb == "create" else stored_clique
    said = written(installed, item, OTHER_UID, verb).stderr
    assert f"is not of the ComputeDomain of clique '{DOMAIN_UID}.{CLIQUE}'" in said


@pytest.mark.parametrize(
    "members", [[], [member("node-b", 3)], [member("node-b"), member("node-c", 1)]]
)
def test_a_daemon_changes_no_entry_of_another_node(
    installed: Cluster, stored_clique: dict[str, Any], members: list[dict[str, Any]]
) -> None:
    stored_clique["daemons"] = members
    assert "may not say how another node is" in written(installed, stored_clique).stderr


def test_a_new_clique_has_no_entry_of_another_node(installed: Cluster) -> None:
    item = clique(DOMAIN_UID, member("node-b"))
    said = written(installed, item, DOMAIN_UID, "create").stderr
    assert "may not say how another node is" in said


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ({"labels": {LABEL: "another"}}, "the labels of a clique are the parts of its name"),
        ({"labels": {f"{LABEL}.cliqueID": "x.9"}}, "are the parts of its name"),
        ({"finalizers": ["a.example.com/b"]}, "change nothing else of what keeps it"),
        ({"ownerReferences": []}, "change nothing else of what keeps it"),
        ({"labels": {"a": "b"}}, "may change no labels and annotations of a clique"),
        ({"annotations": {"a": "b" * 200_000}}, "may change no labels and annotations of a clique"),
    ],
)
def test_a_daemon_changes_no_other_metadata_of_a_clique(
    installed: Cluster, stored_clique: dict[str, Any], metadata: dict[str, Any], text: str
) -> None:
    stored_clique["metadata"].update(metadata)
    assert text in written(installed, stored_clique).stderr


@pytest.mark.parametrize("name", [f"{DOMAIN_UID[:8]}.{CLIQUE}", DOMAIN_UID, f"{DOMAIN_UID}.x"])
def test_a_daemon_makes_no_clique_of_a_part_of_a_name(installed: Cluster, name: str) -> None:
    item = clique(DOMAIN_UID, member("node-a"))
    item["metadata"]["name"] = name
    item["metadata"]["labels"] = {}
    done = written(installed, item, DOMAIN_UID, "create")
    assert done.returncode != 0
    assert "is not of the ComputeDomain" in done.stderr or "a clique is called UID" in done.stderr


def test_an_entry_has_no_long_texts(installed: Cluster, stored_clique: dict[str, Any]) -> None:
    for field in ("ipAddress", "cliqueID"):
        item = copy.deepcopy(stored_clique)
        item["daemons"].append(member("node-a", 1) | {field: "x" * 100})
        assert "has no longer texts than" in written(installed, item).stderr


def test_a_label_that_another_admission_adds_is_admitted_if_it_is_named(
    installed: Cluster, stored_clique: dict[str, Any]
) -> None:
    added = {"policies.example.com/added": "x"}
    stored_clique["metadata"]["labels"] |= added
    stored_clique["metadata"]["annotations"] = added
    done = written(installed, stored_clique)
    assert done.returncode == 0, done.stderr
    done = labelled(installed, "node-a", added)
    assert done.returncode == 0, done.stderr
    status, text = installed.patched(
        "/api/v1/nodes/node-a", {"metadata": {"annotations": added}}, CONTROLLER
    )
    assert status == 200, text
    refused = labelled(installed, "node-a", {"other": "x"}).stderr
    assert "is to be named in global.admittedByOthers" in refused


def test_the_controller_removes_stale_entries(
    installed: Cluster, stored_clique: dict[str, Any]
) -> None:
    path = f"{domain_objects.cliques_path(DRIVER)}/{stored_clique['metadata']['name']}"
    status, text = installed.patched(path, {"daemons": []}, CONTROLLER)
    assert status == 200, text


@pytest.fixture
def daemon_pod(installed: Cluster) -> Iterator[str]:
    name = f"computedomain-daemon-{DOMAIN_UID}-x7x7x"
    item = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": DRIVER,
            "labels": {LABEL: DOMAIN_UID},
            "annotations": {"kept": "x"},
        },
        "spec": {
            "serviceAccountName": "compute-domain-daemon-service-account",
            "nodeName": "node-a",
            "containers": [{"name": "c", "image": "i"}],
        },
    }
    done = installed.kubectl("create", "-f", "-", stdin=item)
    assert done.returncode == 0, done.stderr
    yield name
    installed.kubectl("delete", "pod", name, f"-n={DRIVER}", "--force")


def changed(
    cluster: Cluster, pod: str, change: dict[str, Any], own: str | None = None
) -> tuple[int, str]:
    """Patch a pod as a daemon, by default its own pod."""
    path = f"/api/v1/namespaces/{DRIVER}/pods/{pod}"
    done: tuple[int, str] = cluster.patched(path, change, DAEMON_USER, pod_name=own or pod)
    return done


def test_a_daemon_says_in_its_own_pod_how_its_connections_are(
    installed: Cluster, daemon_pod: str
) -> None:
    for value in ('{"broken":{"node-b":"INVALID"}}', '{"failure":"x"}', None):
        change = {"metadata": {"annotations": {LINKS_ANNOTATION: value}}}
        status, text = changed(installed, daemon_pod, change)
        assert status == 200, text


def test_a_daemon_labels_its_own_pod_with_its_clique(installed: Cluster, daemon_pod: str) -> None:
    for value in (CLIQUE, ""):
        change = {"metadata": {"labels": {f"{LABEL}.cliqueID": value}}}
        status, text = changed(installed, daemon_pod, change)
        assert status == 200, text


def test_a_daemon_says_on_its_own_pod_how_it_is(installed: Cluster, daemon_pod: str) -> None:
    for value in ('{"ip":"10.0.0.1"}', '{"ip":"10.0.0.1","ready":true}', None):
        change = {"metadata": {"annotations": {"nvdra.nvidia.com/imex-daemon": value}}}
        status, text = changed(installed, daemon_pod, change)
        assert status == 200, text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"metadata": {"labels": {LABEL: "another"}}}, "may change no label of its pod but"),
        ({"metadata": {"labels": {LABEL: None}}}, "may change no label of its pod but"),
        ({"metadata": {"annotations": {"a": "b"}}}, "may change no annotations of its pod but"),
        ({"metadata": {"annotations": {"kept": None}}}, "may change no annotations of its pod but"),
        ({"spec": {"activeDeadlineSeconds": 1}}, "may change nothing of its pod but a label"),
    ],
)
def test_a_daemon_changes_nothing_else_of_its_pod(
    installed: Cluster, daemon_pod: str, change: dict[str, Any], text: str
) -> None:
    assert text in changed(installed, daemon_pod, change)[1]


def test_a_daemon_changes_no_other_pod(installed: Cluster, daemon_pod: str) -> None:
    change = {"metadata": {"labels": {f"{LABEL}.cliqueID": CLIQUE}}}
    own = f"computedomain-daemon-{OTHER_UID}-x7x7x"
    assert "may label its own pod" in changed(installed, daemon_pod, change, own)[1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"metadata": {"labels": {LABEL: "another"}}}, f"but take {LABEL} off"),
        ({"metadata": {"labels": {"new": "x"}}}, f"but take {LABEL} off"),
        ({"metadata": {"labels": {"a": None}}}, f"but take {LABEL} off"),
        ({"metadata": {"annotations": {"a": "b"}}}, "may change nothing of a node but labels"),
        ({"spec": {"unschedulable": True}}, "may change nothing of a node but labels"),
    ],
)
def test_the_controller_changes_nothing_of_a_node(
    installed: Cluster, change: dict[str, Any], text: str
) -> None:
    assert installed.kubectl("label", "node", "node-b", f"{LABEL}=uid").returncode == 0
    assert text in installed.patched("/api/v1/nodes/node-b", change, CONTROLLER)[1]


def test_the_controller_removes_the_label_of_a_domain(installed: Cluster) -> None:
    assert installed.kubectl("label", "node", "node-b", f"{LABEL}=uid").returncode == 0
    gone = {"metadata": {"labels": {LABEL: None}}}
    status, text = installed.patched("/api/v1/nodes/node-b", gone, CONTROLLER)
    assert status == 200, text


def test_a_daemon_emits_events_on_a_domain_in_a_users_namespace(installed: Cluster) -> None:
    argv = ("auth", "can-i", "create", "events", "-n=team-a", f"--as={DAEMON_USER}")
    assert installed.kubectl(*argv).stdout.strip() == "yes"
