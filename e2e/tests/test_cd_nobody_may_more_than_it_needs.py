"""The accounts of plugin, controller and daemons: what no role grants is tried, and refused."""

from pathlib import Path

import domains
import members
import pytest
import rights
from cluster import DOMAINS, NAMESPACE, RELEASE, Cluster
from kubectl import Kubectl
from members import Domain
from nvdra_api.types import names
from rights import Account

PLUGIN = Account(NAMESPACE, f"{RELEASE}-{DOMAINS.name}")
CONTROLLER = Account(NAMESPACE, members.CONTROLLER_NAME)
DAEMON = Account(NAMESPACE, "compute-domain-daemon-service-account")
READING = ("get", "list", "watch")
NODE, OTHER = "node-1", "node-2"
NOBODYS = "00000000-0000-4000-8000-000000000000"
"""UID of a domain that is not there."""
LABELLED = {"labels": {"a": "b"}}
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"


@pytest.mark.parametrize("account", [PLUGIN, CONTROLLER, DAEMON], ids=lambda each: each.name)
def test_every_verb_that_is_not_granted_is_forbidden(
    rack: Cluster, team: Kubectl, account: Account
) -> None:
    objects = rights.rendered(rack.helm("get", "manifest", RELEASE, "-n", NAMESPACE))
    own = rights.grants(objects, account)
    assert own
    granted = [*own, *rights.of_everybody(rack.kubectl)]
    asked = rights.every(rack.kubectl, [NAMESPACE, team.namespace])
    has_right = {each: any(one.covers(each) for one in granted) for each in asked}
    forbidden = [each for each in asked if not has_right[each]]
    assert len(forbidden) > 500

    refused = rights.refusals(rack.kubectl, account, forbidden)
    let_through = [each for each, is_so in zip(forbidden, refused, strict=True) if not is_so]
    assert let_through == []
    # What it may read it does read: the account and its roles are the right ones.
    allowed = [each for each in asked if has_right[each] and each.verb in READING]
    assert allowed
    refused = rights.refusals(rack.kubectl, account, allowed)
    assert [each for each, is_so in zip(allowed, refused, strict=True) if is_so] == []


def test_the_plugins_own_token_opens_nothing_of_other_nodes_and_no_secret(
    rack: Cluster, tmp_path: Path
) -> None:
    plugin = as_pod(rack, rack.plugin(NODE), tmp_path)
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
        (("exec", members.wait_leader(rack), "--", "true"), "cannot create resource"),
    ):
        assert words in refused(plugin, *command)
    assert slices(rack, OTHER) == [theirs]


def test_a_daemons_own_token_changes_no_other_pod_and_no_domain(
    rack: Cluster, team: Kubectl, tmp_path: Path
) -> None:
    domain = Domain(rack, members.apply(team, "ring"))
    team.apply(members.worker("w", members.channel_of("ring"), NODE))
    team.wait_running("w")
    pod = domain.daemons()[NODE]
    daemon = as_pod(rack, pod, tmp_path)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    ours = f"/apis/{names.CONFIG_API_VERSION}/namespaces/{team.namespace}/computedomains/ring"
    for stranger in (rack.plugin(OTHER), members.wait_leader(rack)):
        said = rights.sent(daemon, "PATCH", f"{pods}/{stranger}", {"metadata": LABELLED})
        assert f"an IMEX daemon may label its own pod '{pod}' and no other" in said
    for path in (
        ours,
        f"{ours}/status",
        f"/api/v1/nodes/{NODE}",
        f"/api/v1/namespaces/{NAMESPACE}/secrets/x",
    ):
        assert "cannot patch resource" in rights.sent(daemon, "PATCH", path, {})
    cliques = f"/apis/{names.CONFIG_API_VERSION}/namespaces/{NAMESPACE}/computedomaincliques"
    (clique,) = domain.labelled("computedomaincliques")
    entry = domains.entry(OTHER, 1, cliqueID=clique["daemons"][0]["cliqueID"])
    change = {"daemons": [*clique["daemons"], entry]}
    said = rights.sent(daemon, "PATCH", f"{cliques}/{clique['metadata']['name']}", change)
    assert f"an IMEX daemon on node '{NODE}' may not say how another node is" in said
    said = rights.sent(daemon, "POST", cliques, domains.clique(NOBODYS))
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
    members.wait_released(rack)


def test_the_controllers_own_token_makes_no_pod_and_reads_no_secret(
    rack: Cluster, tmp_path: Path
) -> None:
    controller = as_pod(rack, members.wait_leader(rack), tmp_path)
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
    said = rights.sent(controller, "PATCH", f"/api/v1/nodes/{OTHER}", {"metadata": LABELLED})
    assert "this user may do nothing with labels of a node but take" in said


def as_pod(rack: Cluster, pod: str, directory: Path) -> Kubectl:
    """Whoever has got hold of a pod's token."""
    return rights.with_token(rack.driver, rack.driver.exec(pod, "cat", TOKEN), directory)


def refused(who: Kubectl, *command: str) -> str:
    done = who.attempt(*command)
    assert done.returncode != 0, command
    return done.stderr


def slices(rack: Cluster, node: str) -> list[str]:
    """The names of what the compute-domain plugin of a node has published."""
    return [
        each["metadata"]["name"]
        for each in rack.kubectl.get("resourceslices")
        if (each["spec"].get("nodeName"), each["spec"]["driver"])
        == (node, names.COMPUTE_DOMAIN_DRIVER)
    ]
