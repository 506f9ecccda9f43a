# SPDX-License-Identifier: Apache-2.0
"""The accounts of plugins, controller and daemons, with every gate that gives them rights.

Requests that no role allows are denied, and so is what an admission policy takes away from them.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from nvdra_api import names
from nvdra_api.ids import DomainUID
from nvdra_testing.cluster import compute_domains, mps_daemons, rbac, workloads
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import CD_PLUGIN, GPU_PLUGIN, NAMESPACE, RELEASE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.rbac import Account
from nvdra_testing.control_plane import domain_objects, installation

PLUGIN = Account(NAMESPACE, f"{RELEASE}-{CD_PLUGIN.name}")
GPUS = Account(NAMESPACE, f"{RELEASE}-{GPU_PLUGIN.name}")
CONTROLLER = Account(NAMESPACE, compute_domains.CONTROLLER_NAME)
DAEMON = Account(NAMESPACE, "compute-domain-daemon-service-account")
READING = ("get", "list", "watch")
NODE, OTHER = "node-1", "node-2"
NOBODYS = "00000000-0000-4000-8000-000000000000"
"""The UID of a domain that does not exist."""
LABELLED = {"labels": {"a": "b"}}
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
DAEMONSETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
NETWORK_POLICIES = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
POLICIES_ON = "--set=nvdra-cd-controller.daemon.networkPolicy.enabled=true"
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"


@pytest.fixture(scope="module", autouse=True)
def with_all_gates(rack: Cluster, rack_settings: list[str]) -> Iterator[None]:
    """The rack, while GPU plugin and controller do all that they can."""
    rack.install(*rack_settings, *mps_daemons.ALL_GATES, POLICIES_ON)
    yield
    rack.install(*rack_settings)


@pytest.mark.parametrize("account", [PLUGIN, GPUS, CONTROLLER, DAEMON], ids=lambda each: each.name)
def test_every_verb_that_is_not_granted_is_forbidden(
    rack: Cluster, team: Kubectl, account: Account
) -> None:
    objects = rbac.parse_manifests(rack.helm("get", "manifest", RELEASE, "-n", NAMESPACE))
    own = rbac.granted_rules(objects, account)
    assert own
    granted = [*own, *rbac.rules_of_all_accounts(rack.kubectl)]
    asked = rbac.all_requests(rack.kubectl, [NAMESPACE, team.namespace])
    has_right = {each: any(one.covers(each) for one in granted) for each in asked}
    forbidden = [each for each in asked if not has_right[each]]
    assert len(forbidden) > 500

    refused = rbac.forbidden(rack.kubectl, account, forbidden)
    let_through = [each for each, is_so in zip(forbidden, refused, strict=True) if not is_so]
    assert let_through == []
    # It can read what it may read, so the account and its roles are the right ones.
    allowed = [each for each in asked if has_right[each] and each.verb in READING]
    assert allowed
    refused = rbac.forbidden(rack.kubectl, account, allowed)
    assert [each for each, is_so in zip(allowed, refused, strict=True) if is_so] == []


def test_the_plugins_own_token_opens_nothing_of_other_nodes_and_no_secret(
    rack: Cluster, tmp_path: Path
) -> None:
    plugin = as_pod(rack, rack.plugin_pod(NODE), tmp_path)
    label = f"{names.DOMAIN_LABEL}={NOBODYS}"
    (theirs,) = slices(rack, OTHER)
    for command, words in (
        (("label", "node", OTHER, label), f"may not change node '{OTHER}'"),
        (("label", "node", NODE, "role=control-plane"), "may change no labels of a node but"),
        (("annotate", "node", NODE, "a=b"), "may change nothing of a node but labels"),
        (("delete", "resourceslice", theirs), NODE),
        (("get", "secrets", "-A"), "cannot list resource"),
        (("get", "pods", "-A"), "cannot list resource"),
        (("delete", "daemonset", "--all"), "cannot list resource"),
        (("create", "token", CONTROLLER.name), "cannot create resource"),
        (("exec", compute_domains.wait_leader(rack), "--", "true"), "cannot create resource"),
    ):
        assert words in refused(plugin, *command)
    assert slices(rack, OTHER) == [theirs]


def test_the_gpu_plugins_own_token_opens_no_other_node_slice_and_claim(
    rack: Cluster, team: Kubectl, tmp_path: Path
) -> None:
    """What somebody can do who takes the token out of the plugin's pod on a node."""
    gpus = replace(rack, component=GPU_PLUGIN)
    team.apply(workloads.template("one", workloads.gpus()))
    holder = workloads.pod("holder", templates=["one"])
    holder["spec"]["nodeSelector"] = {"kubernetes.io/hostname": OTHER}
    team.apply(holder)
    team.wait_running("holder")
    (claim,) = workloads.claims_of(team, "holder")
    stolen = as_pod(rack, gpus.plugin_pod(NODE), tmp_path)
    theirs = next(
        each for each in slices_of(rack, GPU_PLUGIN.driver) if each["spec"]["nodeName"] == OTHER
    )
    version = rack.kubectl.resource_api_version
    base = f"/apis/resource.k8s.io/{version}"
    path = f"{base}/resourceslices/{theirs['metadata']['name']}"
    made = {"generateName": "mine-"}
    taken = {**theirs, "metadata": made}
    pool = {**taken, "spec": {**theirs["spec"], "nodeName": NODE}}
    own_pool = {**theirs["spec"]["pool"], "name": NODE}
    ours = {**taken, "spec": {**pool["spec"], "pool": own_pool, "driver": CD_PLUGIN.driver}}
    controller = f"{DEPLOYMENTS}/{CONTROLLER.name}"
    told = {
        "run a pod on it": rbac.send_request(stolen, "POST", DEPLOYMENTS, root_on(OTHER)),
        "run another pod on the own node": rbac.send_request(
            stolen, "POST", DEPLOYMENTS, root_on(NODE)
        ),
        "delete the controller": rbac.send_request(stolen, "DELETE", controller, {}),
        "delete all Deployments": rbac.send_request(stolen, "DELETE", DEPLOYMENTS, {}),
        "delete its slice": rbac.send_request(stolen, "DELETE", path, {}),
        "change its slice": rbac.send_request(stolen, "PUT", path, theirs),
        "make a slice for it": rbac.send_request(stolen, "POST", f"{base}/resourceslices", taken),
        "make one of another driver": rbac.send_request(
            stolen, "POST", f"{base}/resourceslices", ours
        ),
        "make one in its pool": rbac.send_request(stolen, "POST", f"{base}/resourceslices", pool),
        "label its Node": refused(stolen, "label", "node", OTHER, "a=b"),
        "label the own Node": refused(stolen, "label", "node", NODE, "a=b"),
        "list claims": refused(stolen, "get", "resourceclaims", "-A"),
        "delete its claim": refused(
            stolen.in_namespace(team.namespace), "delete", "resourceclaim", claim_name(claim)
        ),
        "read Secrets": refused(stolen, "get", "secrets", "-A"),
        "make a token": refused(stolen, "create", "token", CONTROLLER.name),
        "run a pod": refused(stolen, "run", "x", "--image=x"),
    }
    words = {
        "run a pod on it": "may only make and delete MPS control daemons of that node",
        "run another pod on the own node": f"ValidatingAdmissionPolicy '{GPUS.name}-mps'",
        "delete the controller": "may only make and delete MPS control daemons of that node",
        "delete its slice": f"running on node '{NODE}' may not modify cluster or node",
        "change its slice": f"running on node '{NODE}' may not modify cluster or node",
        "make a slice for it": f"running on node '{NODE}' may not modify cluster or node",
        "make one of another driver": "may only modify resourceslices of the driver",
        "make one in its pool": f"running on node '{NODE}' may only publish the pool of that name",
        "make a token": "cannot create resource",
        "run a pod": "cannot create resource",
    }
    status = f"{base}/namespaces/{team.namespace}/resourceclaims/{claim_name(claim)}/status"
    results = claim["status"]["allocation"]["devices"]["results"]
    entry = {key: results[0][key] for key in ("driver", "pool", "device")}
    change: workloads.Manifest = {"status": {"devices": [{**entry, "data": {"stolen": True}}]}}
    told["say how its claim's device is"] = rbac.send_request(stolen, "PATCH", status, change)
    words["say how its claim's device is"] = (
        "cannot arbitrary-node:patch"
        if rack.release >= (1, 36)
        else "may not say how devices of another node or driver are"
    )
    change = {"status": {"reservedFor": None}}
    told["take its claim from its pod"] = rbac.send_request(stolen, "PATCH", status, change)
    words["take its claim from its pod"] = (
        "requires resource="
        if rack.release >= (1, 36)
        else "may change nothing of a claim but how its devices are"
    )
    for what, said in told.items():
        print(f"{what}: {said.strip()}")
        assert words.get(what, "cannot ") in said, what
    team.delete("pod", "holder")


def root_on(node: str) -> workloads.Manifest:
    """A Deployment that is called an MPS control daemon, and is root on a node."""
    labels = {"app": "mps-control-daemon-x"}
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    pod = {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
        "serviceAccountName": CONTROLLER.name,
        "hostPID": True,
        "containers": [{"name": "x", "image": "x", "securityContext": {"privileged": True}}],
        "volumes": [{"name": "root", "hostPath": {"path": "/"}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "mps-control-daemon-x", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def claim_name(claim: workloads.Manifest) -> str:
    return str(claim["metadata"]["name"])


def test_a_daemons_own_token_changes_no_other_pod_and_no_domain(
    rack: Cluster, team: Kubectl, tmp_path: Path
) -> None:
    domain = Domain(rack, compute_domains.create_domain(team, "ring"))
    team.apply(compute_domains.channel_pod("w", compute_domains.template_name("ring"), NODE))
    team.wait_running("w")
    pod = domain.daemons()[NODE]
    daemon = as_pod(rack, pod, tmp_path)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    ours = f"/apis/{names.NVIDIA_API_VERSION}/namespaces/{team.namespace}/computedomains/ring"
    for stranger in (rack.plugin_pod(OTHER), compute_domains.wait_leader(rack)):
        said = rbac.send_request(daemon, "PATCH", f"{pods}/{stranger}", {"metadata": LABELLED})
        assert f"an IMEX daemon may label its own pod '{pod}' and no other" in said
    for path in (
        ours,
        f"{ours}/status",
        f"/api/v1/nodes/{NODE}",
        f"/api/v1/namespaces/{NAMESPACE}/secrets/x",
    ):
        assert "cannot patch resource" in rbac.send_request(daemon, "PATCH", path, {})
    cliques = f"/apis/{names.NVIDIA_API_VERSION}/namespaces/{NAMESPACE}/computedomaincliques"
    (clique,) = domain.objects("computedomaincliques")
    entry = domain_objects.clique_entry(OTHER, 1, cliqueID=clique["daemons"][0]["cliqueID"])
    change = {"daemons": [*clique["daemons"], entry]}
    said = rbac.send_request(daemon, "PATCH", f"{cliques}/{clique['metadata']['name']}", change)
    assert f"an IMEX daemon on node '{NODE}' may not say how another node is" in said
    said = rbac.send_request(daemon, "POST", cliques, domain_objects.clique(NOBODYS))
    assert f"the IMEX daemon '{pod}' is not of the ComputeDomain of clique" in said
    for command, words in (
        (("get", "secrets"), "cannot list resource"),
        (("get", "pods"), "cannot list resource"),
        (("create", "token", PLUGIN.name), "cannot create resource"),
        (("delete", "pod", pod), "cannot delete resource"),
    ):
        assert words in refused(daemon, *command)
    team.delete("pod", "w")
    team.delete("computedomain", "ring")
    domain.wait_gone()
    compute_domains.wait_released(rack)


def test_the_controllers_own_token_makes_no_pod_and_reads_no_secret(
    rack: Cluster, tmp_path: Path
) -> None:
    controller = as_pod(rack, compute_domains.wait_leader(rack), tmp_path)
    for command, words in (
        (("get", "secrets", "-A"), "cannot list resource"),
        (("create", "configmap", "x"), "cannot create resource"),
        (("run", "x", "--image=x"), "cannot create resource"),
        (("create", "token", PLUGIN.name), "cannot create resource"),
        (("create", "clusterrolebinding", "x", "--clusterrole=cluster-admin"), "cannot create"),
        (("get", "lease", "-n", "kube-system"), "cannot list resource"),
        (("delete", "node", OTHER), "cannot delete resource"),
    ):
        assert words in refused(controller, *command)
    said = rbac.send_request(controller, "PATCH", f"/api/v1/nodes/{OTHER}", {"metadata": LABELLED})
    assert "this user may do nothing with labels of a node but take" in said
    made = {**root_on(NODE), "kind": "DaemonSet"}
    said = rbac.send_request(controller, "POST", DAEMONSETS, made)
    assert f"ValidatingAdmissionPolicy '{CONTROLLER.name}-daemonsets'" in said
    gpus = f"{DAEMONSETS}/{GPUS.name}"
    for method, change in (("DELETE", {}), ("PATCH", {"metadata": LABELLED})):
        said = rbac.send_request(controller, method, gpus, change)
        assert "may change and delete no daemonsets but those of ComputeDomains" in said


def test_each_domain_has_a_network_policy_for_its_own_daemons(rack: Cluster, team: Kubectl) -> None:
    """The lab's network enforces none, so that objects are compared."""
    domains = [Domain(rack, compute_domains.create_domain(team, name)) for name in ("a", "b")]
    for domain in domains:
        rack.kubectl.wait(partial(without_daemonset, domain), "a DaemonSet")
        (policy,) = domain.objects("networkpolicies")
        (daemonset,) = domain.objects("daemonsets")
        daemons = {"matchLabels": daemonset["spec"]["template"]["metadata"]["labels"]}
        assert (
            policy["spec"]["podSelector"]
            == daemons
            == {"matchLabels": {names.DOMAIN_LABEL: domain.uid}}
        )
        assert policy["spec"]["ingress"][0]["from"] == [{"podSelector": daemons}]
        assert policy["spec"]["egress"][0]["to"] == [{"podSelector": daemons}]
    team.delete("computedomain", "a")
    team.delete("computedomain", "b")
    for domain in domains:
        domain.wait_gone()


def test_the_controllers_own_token_opens_and_deletes_no_network_policy_of_others(
    rack: Cluster, tmp_path: Path
) -> None:
    controller = as_pod(rack, compute_domains.wait_leader(rack), tmp_path)
    theirs = installation.foreign_network_policy()
    rack.driver_namespace.apply(theirs)
    words = "may make, change and delete no network policies but those of IMEX daemons"
    path = f"{NETWORK_POLICIES}/{theirs['metadata']['name']}"
    opened = {**theirs, "metadata": {"name": "opened"}, "spec": {"podSelector": {}}}
    assert words in rbac.send_request(controller, "DELETE", path, {})
    assert words in rbac.send_request(controller, "POST", NETWORK_POLICIES, opened)
    name = names.daemon_name(DomainUID(NOBODYS))
    opened["metadata"] = {"name": name, "labels": {names.DOMAIN_LABEL: NOBODYS}}
    said = rbac.send_request(controller, "POST", NETWORK_POLICIES, opened)
    assert "is of the connections of one ComputeDomain's daemons" in said
    rack.driver_namespace.delete("networkpolicy", theirs["metadata"]["name"])


def test_the_controllers_own_token_deletes_no_claim_template_of_a_tenant(
    rack: Cluster, team: Kubectl, tmp_path: Path
) -> None:
    team.apply(workloads.template("theirs", workloads.gpus()))
    controller = as_pod(rack, compute_domains.wait_leader(rack), tmp_path)
    said = refused(
        controller.in_namespace(team.namespace), "delete", "resourceclaimtemplate", "theirs"
    )
    assert "may delete no claim templates but those with the label" in said
    assert team.get("resourceclaimtemplate", "theirs")


def without_daemonset(domain: Domain) -> str | None:
    return None if domain.objects("daemonsets") else "none"


def as_pod(rack: Cluster, pod: str, directory: Path) -> Kubectl:
    """A kubectl with the token of a pod."""
    return rbac.kubectl_with_token(
        rack.driver_namespace, rack.driver_namespace.exec(pod, "cat", TOKEN), directory
    )


def refused(who: Kubectl, *command: str) -> str:
    done = who.run_unchecked(*command)
    assert done.returncode != 0, command
    return done.stderr


def slices(rack: Cluster, node: str) -> list[str]:
    """The names of the slices that the ComputeDomain plugin of a node has published."""
    found = slices_of(rack, names.COMPUTE_DOMAIN_DRIVER)
    return [each["metadata"]["name"] for each in found if each["spec"].get("nodeName") == node]


def slices_of(rack: Cluster, driver: str) -> list[workloads.Manifest]:
    """The slices of a driver."""
    return [each for each in rack.kubectl.get("resourceslices") if each["spec"]["driver"] == driver]
