# SPDX-License-Identifier: Apache-2.0
"""Lays down a ComputeDomain as the reference driver's controller leaves it in a cluster."""

import json
from pathlib import Path
from string import Template

from nvdra_api import names

from nvdra_testing import yaml_documents
from nvdra_testing.cluster import compute_domains
from nvdra_testing.cluster.compute_domains import Domain, Json
from nvdra_testing.cluster.installation import NAMESPACE, Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.control_plane import domain_objects

CHILDREN = Path(__file__).with_suffix(".yaml")
ENTRY_FIELDS = ("nodeName", "ipAddress", "cliqueID", "index", "status")
"""What the reference's daemon writes of itself into its clique."""


def create(cluster: Cluster, team: Kubectl, name: str, *, max_nodes: int) -> Domain:
    """Create a domain and its children. No controller of ours may run.

    Args:
        cluster: Where the driver is installed.
        team: The domain's namespace.
        name: The domain's name.
        max_nodes: The limit that its daemons are given.
    """
    template = compute_domains.template_name(name)
    manifest = domain_objects.domain(name, template, numNodes=0)
    manifest["metadata"]["finalizers"] = [names.DOMAIN_FINALIZER]
    team.apply(manifest)
    uid = compute_domains.uid_of(team, name)
    children = Template(CHILDREN.read_text()).safe_substitute(
        uid=uid,
        domain_namespace=team.namespace,
        driver_namespace=NAMESPACE,
        template=template,
        image=compute_domains.daemon_image(cluster),
        max_nodes=max_nodes,
    )
    for child in yaml_documents.load_all(children):
        cluster.kubectl.in_namespace(child["metadata"]["namespace"]).apply(child)
    return Domain(cluster, uid)


def write_as_its_programs(domain: Domain, team: Kubectl, name: str) -> None:
    """Reduce the cliques to what the reference's daemons write, and write its status."""
    nodes = []
    for clique in domain.objects("computedomaincliques"):
        entries = [{key: each[key] for key in ENTRY_FIELDS} for each in clique["daemons"]]
        _replace(domain.cluster.driver_namespace, {**clique, "daemons": entries})
        nodes += [
            {"name": each["nodeName"], **{key: each[key] for key in ENTRY_FIELDS[1:]}}
            for each in entries
        ]
    is_ready = all(each["status"] == "Ready" for each in nodes)
    status = {"status": "Ready" if is_ready else "NotReady", "nodes": nodes}
    found = team.get("computedomain", name)
    _replace(team, {**found, "status": status}, "--subresource=status")


def _replace(kubectl: Kubectl, changed: Json, *flags: str) -> None:
    kubectl.run("replace", "-f", "-", *flags, text=json.dumps(changed))
