# SPDX-License-Identifier: Apache-2.0
"""Every permission in the charts' roles is used by the code, and every call has its permission.

The calls are found in the sources: every method call on `api`, the client of the API server, and
every `Informer`, which lists and watches, and all `list_pages.pages`. A new call needs a line in
the table here.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

Render = Callable[..., dict[str, dict[str, Any]]]
Right = tuple[str, str]
"""Verb, and resource with its group if it has one."""

PACKAGES = Path(__file__).parents[3] / "packages"
CALLS = {"get", "list_page", "create", "replace", "patch", "delete", "get_claim", "watch"}
"""Methods of `nvdra_runtime.kube.client.Client` that make a request."""

LISTING = {"Informer", "list_pages.pages"}
"""What lists a collection that it is given."""

# Roles as the charts name them, each with the component whose account has it.
GPU_PLUGIN = "ClusterRole/nvdra-nvdra-gpu-plugin"
RUNS_MPS = "Role/nvdra-nvdra-gpu-plugin-mps"
CD_PLUGIN = "ClusterRole/nvdra-nvdra-cd-plugin"
READS_DAEMONS = "Role/nvdra-nvdra-cd-plugin-daemons"
CONTROLLER = "ClusterRole/nvdra-nvdra-cd-controller"
MANAGES_DAEMONS = "Role/nvdra-nvdra-cd-controller-daemons"
LEADER_ELECTION = "Role/nvdra-nvdra-cd-controller-lease"
DAEMON = "ClusterRole/compute-domain-daemon-role"
DAEMON_OWN_NAMESPACE = "Role/compute-domain-daemon-role"
WEBHOOK = "ClusterRole/nvdra-nvdra-webhook"
KEEPS_CERTIFICATES = "Role/nvdra-nvdra-webhook"
TEST = "ClusterRole/nvdra-test"
TEST_IN_NAMESPACES = "Role/nvdra-test"
COMPONENT = {
    GPU_PLUGIN: "nvdra_gpu_plugin",
    RUNS_MPS: "nvdra_gpu_plugin",
    CD_PLUGIN: "nvdra_cd_plugin",
    READS_DAEMONS: "nvdra_cd_plugin",
    CONTROLLER: "nvdra_cd_controller",
    MANAGES_DAEMONS: "nvdra_cd_controller",
    LEADER_ELECTION: "nvdra_cd_controller",
    WEBHOOK: "nvdra_webhook",
    KEEPS_CERTIFICATES: "nvdra_webhook",
    DAEMON: "nvdra_imex_daemon",
    DAEMON_OWN_NAMESPACE: "nvdra_imex_daemon",
    TEST: "nvdra_runtime.installation",
    TEST_IN_NAMESPACES: "nvdra_runtime.installation",
}
PLUGINS = (GPU_PLUGIN, CD_PLUGIN)
ALL_COMPONENTS = (GPU_PLUGIN, CD_PLUGIN, CONTROLLER, DAEMON)

SLICES = "resource.k8s.io/resourceslices"
CLAIMS = "resource.k8s.io/resourceclaims"
TEMPLATES = "resource.k8s.io/resourceclaimtemplates"
DOMAINS = "resource.nvidia.com/computedomains"
STATUS = "resource.nvidia.com/computedomains/status"
CLIQUES = "resource.nvidia.com/computedomaincliques"
DAEMONSETS = "apps/daemonsets"
DEPLOYMENTS = "apps/deployments"
NETWORK_POLICIES = "networking.k8s.io/networkpolicies"
DEFINITIONS = "apiextensions.k8s.io/customresourcedefinitions"
LEASES = "coordination.k8s.io/leases"
REGISTRATIONS = "admissionregistration.k8s.io/validatingwebhookconfigurations"

USES: Final[dict[str, list[tuple[str, str, tuple[str, ...]]]]] = {
    "nvdra_runtime.kube.event_recorder:EventRecorder._find_pods get_claim": [
        ("get", CLAIMS, PLUGINS)
    ],
    "nvdra_runtime.kube.event_recorder:EventRecorder._write patch": [
        ("patch", "events", ALL_COMPONENTS)
    ],
    "nvdra_runtime.kube.event_recorder:EventRecorder._write create": [
        ("create", "events", ALL_COMPONENTS)
    ],
    "nvdra_runtime.kube.leader_election:LeaderElector.release replace": [
        ("update", LEASES, (LEADER_ELECTION,))
    ],
    "nvdra_runtime.kube.leader_election:LeaderElector._try_acquire_or_renew create": [
        ("create", LEASES, (LEADER_ELECTION,))
    ],
    "nvdra_runtime.kube.leader_election:LeaderElector._try_acquire_or_renew replace": [
        ("update", LEASES, (LEADER_ELECTION,))
    ],
    "nvdra_runtime.kube.leader_election:LeaderElector._read_lease get": [
        ("get", LEASES, (LEADER_ELECTION,))
    ],
    "nvdra_runtime.resourceslices.publisher:Publisher.__init__ Informer": [
        ("list", SLICES, PLUGINS),
        ("watch", SLICES, PLUGINS),
    ],
    "nvdra_runtime.resourceslices.publisher:Publisher._write create": [("create", SLICES, PLUGINS)],
    "nvdra_runtime.resourceslices.publisher:Publisher._write replace": [
        ("update", SLICES, PLUGINS)
    ],
    "nvdra_runtime.resourceslices.publisher:Publisher._delete delete": [
        ("delete", SLICES, PLUGINS)
    ],
    "nvdra_runtime.resourceslices.publisher:Publisher._node_uid get": [("get", "nodes", PLUGINS)],
    "nvdra_runtime.kubeletplugin.standby:Standby._read_kubelet_version get": [
        ("get", "nodes", PLUGINS)
    ],
    "nvdra_runtime.kubeletplugin.standby:Standby._see_slices get": [("list", SLICES, PLUGINS)],
    # Counted where an informer is created, or the pages are asked for.
    "nvdra_runtime.kube.informer:Informer._list_pages list_pages.pages": [],
    "nvdra_runtime.kube.list_pages:pages list_page": [],
    # GET /version, which the API server's own role system:discovery allows to every account.
    "nvdra_gpu_plugin.publishing.kept_fields:KeptFields.ask get": [],
    "nvdra_gpu_plugin.publishing.kept_fields:KeptFields._would_keep create": [
        ("create", SLICES, (GPU_PLUGIN,))
    ],
    "nvdra_runtime.kube.informer:Informer._read_watch watch": [],
    "nvdra_runtime.claims.stale_claims:StaleClaimCleanup._stale_reason get_claim": [
        ("get", CLAIMS, PLUGINS)
    ],
    "nvdra_runtime.claims.claim_reader:ClaimReader.fetch get_claim": [("get", CLAIMS, PLUGINS)],
    "nvdra_runtime.claims.root_spans:RootSpanWriter._get_pod get": [("get", "pods", PLUGINS)],
    # Apply makes what does not exist, and needs the right to create for it.
    "nvdra_cd_controller.crds.keeper:CrdKeeper._keep patch": [
        ("patch", DEFINITIONS, (CONTROLLER,)),
        ("create", DEFINITIONS, (CONTROLLER,)),
    ],
    "nvdra_cd_controller.crds.keeper:CrdKeeper._find get": [("get", DEFINITIONS, (CONTROLLER,))],
    "nvdra_cd_controller.informers:IndexedInformer.__init__ Informer": [
        *(
            (verb, each, (CONTROLLER,))
            for each in (DOMAINS, TEMPLATES)
            for verb in ("list", "watch")
        ),
        *(
            (verb, each, (MANAGES_DAEMONS,))
            for each in (DAEMONSETS, NETWORK_POLICIES, CLIQUES, "pods")
            for verb in ("list", "watch")
        ),
        ("list", "nodes", (CONTROLLER,)),
        ("watch", "nodes", (CONTROLLER,)),
    ],
    "nvdra_cd_controller.deleted_domains:DeletedDomains._list list_pages.pages": [
        ("list", DOMAINS, (CONTROLLER,))
    ],
    "nvdra_cd_controller.lost_nodes:LostNodes._ask get": [("list", "nodes", (CONTROLLER,))],
    "nvdra_cd_controller.missing_pods:MissingPods._ask get": [
        ("list", "events", (MANAGES_DAEMONS,))
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter.update_status replace": [
        ("update", STATUS, (CONTROLLER,))
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter.write_clique patch": [
        ("patch", CLIQUES, (MANAGES_DAEMONS,))
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter.whole_clique get": [
        ("get", CLIQUES, (MANAGES_DAEMONS,))
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._create_clique create": [
        ("create", CLIQUES, (MANAGES_DAEMONS,))
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._create_clique get": [
        ("get", CLIQUES, (MANAGES_DAEMONS,))
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._create_clique patch": [
        ("patch", CLIQUES, (MANAGES_DAEMONS,))
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._read_finalizers get": [
        ("list", DOMAINS, (CONTROLLER,)),
        ("list", TEMPLATES, (CONTROLLER,)),
        ("list", DAEMONSETS, (MANAGES_DAEMONS,)),
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._create create": [
        ("create", DAEMONSETS, (MANAGES_DAEMONS,)),
        ("create", NETWORK_POLICIES, (MANAGES_DAEMONS,)),
        ("create", TEMPLATES, (CONTROLLER,)),
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._adopt get": [
        ("get", DAEMONSETS, (MANAGES_DAEMONS,)),
        ("get", NETWORK_POLICIES, (MANAGES_DAEMONS,)),
        ("get", TEMPLATES, (CONTROLLER,)),
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._whole_template get": [
        ("get", TEMPLATES, (CONTROLLER,))
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._patch patch": [
        ("patch", DAEMONSETS, (MANAGES_DAEMONS,)),
        ("patch", TEMPLATES, (CONTROLLER,)),
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._correct replace": [
        ("update", DAEMONSETS, (MANAGES_DAEMONS,)),
        ("update", NETWORK_POLICIES, (MANAGES_DAEMONS,)),
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._delete delete": [
        ("delete", DAEMONSETS, (MANAGES_DAEMONS,)),
        ("delete", NETWORK_POLICIES, (MANAGES_DAEMONS,)),
        ("delete", TEMPLATES, (CONTROLLER,)),
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._remove_node_label patch": [
        ("patch", "nodes", (CONTROLLER,))
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._has_label get": [
        ("list", "nodes", (CONTROLLER,))
    ],
    "nvdra_cd_controller.object_writer:ObjectWriter._patch_domain patch": [
        ("patch", DOMAINS, (CONTROLLER,))
    ],
    "nvdra_cd_plugin.claims.claim_admission:ClaimAdmission._pod get": [
        ("get", "pods", (CD_PLUGIN,))
    ],
    "nvdra_cd_plugin.daemon.readiness_watch:DomainEntries._informer Informer": [
        ("list", CLIQUES, (READS_DAEMONS,)),
        ("watch", CLIQUES, (READS_DAEMONS,)),
        ("list", DOMAINS, (CD_PLUGIN,)),
        ("watch", DOMAINS, (CD_PLUGIN,)),
    ],
    "nvdra_cd_plugin.daemon.pod_lookup:DaemonPodLookup._pods get": [
        ("list", "pods", (READS_DAEMONS,))
    ],
    "nvdra_cd_plugin.daemon.pod_lookup:DaemonPodLookup._why_no_pod get": [
        ("get", DAEMONSETS, (READS_DAEMONS,)),
        ("list", "events", (READS_DAEMONS,)),
    ],
    "nvdra_cd_plugin.domains.lookup:DomainLookup._get_by_name get": [
        ("get", DOMAINS, (CD_PLUGIN,))
    ],
    "nvdra_cd_plugin.domains.uid_search:UidSearch._list list_pages.pages": [
        ("list", DOMAINS, (CD_PLUGIN,))
    ],
    "nvdra_gpu_plugin.nvml_release.node_annotation:NodeAnnotation.__init__ Informer": [
        ("list", "nodes", (GPU_PLUGIN,)),
        ("watch", "nodes", (GPU_PLUGIN,)),
    ],
    "nvdra_gpu_plugin.claims.status_writer:StatusWriter._apply patch": [
        ("patch", f"{CLAIMS}/status", (GPU_PLUGIN,)),
        ("associated-node:patch", f"{CLAIMS}/driver", (GPU_PLUGIN,)),
    ],
    "nvdra_gpu_plugin.mps.daemons:MpsDaemons._node_uid get": [("get", "nodes", (GPU_PLUGIN,))],
    "nvdra_gpu_plugin.mps.daemons:MpsDaemons._create_or_replace create": [
        ("create", DEPLOYMENTS, (RUNS_MPS,))
    ],
    "nvdra_gpu_plugin.mps.daemons:MpsDaemons._create_or_replace get": [
        ("get", DEPLOYMENTS, (RUNS_MPS,))
    ],
    "nvdra_gpu_plugin.mps.daemons:MpsDaemons._create_or_replace delete": [
        ("delete", DEPLOYMENTS, (RUNS_MPS,))
    ],
    "nvdra_gpu_plugin.mps.daemons:MpsDaemons._refusal get": [("get", DEPLOYMENTS, (RUNS_MPS,))],
    "nvdra_gpu_plugin.mps.daemons:MpsDaemons._problem get": [("list", "pods", (RUNS_MPS,))],
    "nvdra_gpu_plugin.mps.deployment_collector:DeploymentCollector._delete_others get": [
        ("list", DEPLOYMENTS, (RUNS_MPS,))
    ],
    "nvdra_gpu_plugin.mps.deployment_collector:DeploymentCollector._delete delete": [
        ("delete", DEPLOYMENTS, (RUNS_MPS,))
    ],
    "nvdra_cd_plugin.membership.label_watch:LabelWatch.__init__ Informer": [
        ("list", "nodes", (CD_PLUGIN,)),
        ("watch", "nodes", (CD_PLUGIN,)),
    ],
    "nvdra_cd_plugin.membership.node_labels:NodeLabels.set_clique_label patch": [
        ("patch", "nodes", (CD_PLUGIN,))
    ],
    "nvdra_cd_plugin.membership.node_labels:NodeLabels._read get": [("get", "nodes", (CD_PLUGIN,))],
    "nvdra_cd_plugin.membership.node_labels:NodeLabels._patch patch": [
        ("patch", "nodes", (CD_PLUGIN,))
    ],
    "nvdra_imex_daemon.membership.announcer:Announcer.announce patch": [
        ("patch", "pods", (DAEMON_OWN_NAMESPACE,))
    ],
    "nvdra_imex_daemon.membership.clique_label:_set_until_done patch": [
        ("patch", "pods", (DAEMON_OWN_NAMESPACE,))
    ],
    "nvdra_imex_daemon.membership.links_annotation:LinksAnnotation._write_changed patch": [
        ("patch", "pods", (DAEMON_OWN_NAMESPACE,))
    ],
    "nvdra_imex_daemon.membership.member_list:MemberList.__init__ Informer": [
        *((verb, CLIQUES, (DAEMON_OWN_NAMESPACE,)) for verb in ("list", "watch")),
        *((verb, DOMAINS, (DAEMON,)) for verb in ("list", "watch")),
    ],
    "nvdra_imex_daemon.membership.member_list:MemberList._read get": [
        ("get", CLIQUES, (DAEMON_OWN_NAMESPACE,)),
        ("get", DOMAINS, (DAEMON,)),
    ],
    "nvdra_imex_daemon.membership.member_list:MemberList._write create": [
        ("create", CLIQUES, (DAEMON_OWN_NAMESPACE,))
    ],
    "nvdra_imex_daemon.membership.member_list:MemberList._write patch": [
        ("patch", CLIQUES, (DAEMON_OWN_NAMESPACE,)),
        ("patch", STATUS, (DAEMON,)),
    ],
    "nvdra_imex_daemon.membership.member_list:MemberList._write replace": [
        ("update", CLIQUES, (DAEMON_OWN_NAMESPACE,)),
        ("update", STATUS, (DAEMON,)),
    ],
    "nvdra_imex_daemon.membership.member_list:MemberList.leave replace": [
        ("update", CLIQUES, (DAEMON_OWN_NAMESPACE,)),
        ("update", STATUS, (DAEMON,)),
    ],
    "nvdra_webhook.certificates.managed:ManagedKeyPairs._publish patch": [
        ("patch", REGISTRATIONS, (WEBHOOK,))
    ],
    "nvdra_webhook.certificates.managed:ManagedKeyPairs.look get": [
        ("get", "secrets", (KEEPS_CERTIFICATES,)),
        ("get", REGISTRATIONS, (WEBHOOK,)),
    ],
    "nvdra_webhook.certificates.managed:ManagedKeyPairs.look replace": [
        ("update", "secrets", (KEEPS_CERTIFICATES,))
    ],
    "nvdra_webhook.cluster_look:ClusterLook._list get": [
        ("list", SLICES, (WEBHOOK,)),
        ("list", "resource.k8s.io/deviceclasses", (WEBHOOK,)),
    ],
    "nvdra_runtime.installation.checker:Checker._device_class get": [
        ("get", "resource.k8s.io/deviceclasses", (TEST,))
    ],
    # What is served, the API server's own role system:discovery tells every account.
    "nvdra_runtime.installation.checker:Checker._api_version get": [],
    "nvdra_runtime.installation.checker:Checker._deployment get": [
        ("get", DEPLOYMENTS, (TEST_IN_NAMESPACES,))
    ],
    "nvdra_runtime.installation.checker:Checker._webhook create": [
        ("create", CLAIMS, (TEST_IN_NAMESPACES,))
    ],
    "nvdra_runtime.installation.checker:Checker._pages get": [
        ("list", "pods", (TEST_IN_NAMESPACES,)),
        ("list", "events", (TEST_IN_NAMESPACES,)),
        ("list", "nodes", (TEST,)),
        ("list", SLICES, (TEST,)),
    ],
}
"""By place and call: verb, resource, roles that grant it."""

OF_THE_WEBHOOK = (WEBHOOK, KEEPS_CERTIFICATES)
"""The umbrella does not install it by default."""

OF_THE_TEST = (TEST, TEST_IN_NAMESPACES)
"""Exist while `helm test` runs."""

# Permissions that a mode does not use, by role.
WITH_CLIQUES = {DAEMON: {("get", DOMAINS), ("list", DOMAINS), ("watch", DOMAINS)}}
WITH_CLIQUES[DAEMON] |= {("update", STATUS), ("patch", STATUS)}
HOST_MANAGED = {
    CD_PLUGIN: {("watch", DOMAINS), ("list", "nodes"), ("watch", "nodes"), ("patch", "nodes")},
    CONTROLLER: {("list", "nodes"), ("watch", "nodes"), ("patch", "nodes")},
}
WITHOUT_MPS: dict[str, set[Right]] = {RUNS_MPS: {("create", DEPLOYMENTS), ("list", "pods")}}
WITHOUT_NETWORK_POLICIES: dict[str, set[Right]] = {
    MANAGES_DAEMONS: {(verb, NETWORK_POLICIES) for verb in ("get", "create", "update")}
}
USUALLY_OFF = {**WITHOUT_MPS, **WITHOUT_NETWORK_POLICIES}
NO_DAEMONS = (READS_DAEMONS, MANAGES_DAEMONS, DAEMON, DAEMON_OWN_NAMESPACE)


def modules() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(PACKAGES.glob("*/src/**/*.py")):
        source = next(each for each in file.parents if each.name == "src")
        name = ".".join(file.relative_to(source).with_suffix("").parts)
        yield name.removesuffix(".__init__"), ast.parse(file.read_text())


def is_client(node: ast.expr) -> bool:
    """Whether the expression is `api`, or an attribute `_api`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "_api"
    return isinstance(node, ast.Name) and node.id == "api"


def places(node: ast.AST, module: str, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """The calls of the API server: `module:Class.method call`."""
    for child in ast.iter_child_nodes(node):
        here = f"{module}:{'.'.join(inside)}"
        if isinstance(child, ast.Attribute) and child.attr in CALLS and is_client(child.value):
            yield f"{here} {child.attr}"
        if isinstance(child, ast.Call) and ast.unparse(child.func) in LISTING:
            yield f"{here} {ast.unparse(child.func)}"
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from places(child, module, (*inside, child.name))
        else:
            yield from places(child, module, inside)


def imported(package: str, trees: dict[str, ast.Module]) -> set[str]:
    """Our modules that a package imports, directly or indirectly."""
    found: set[str] = set()
    pending = {name for name in trees if f"{name}.".startswith(f"{package}.")}
    while pending:
        found.add(module := pending.pop())
        for node in ast.walk(trees[module]):
            names: set[str] = set()
            if isinstance(node, ast.ImportFrom) and node.module:
                names = {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
            elif isinstance(node, ast.Import):
                names = {each.name for each in node.names}
            pending |= (names & set(trees)) - found
    return found


def needed(
    leave_out: dict[str, set[Right]],
    *,
    without: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The permissions in the table, by role and resource."""
    found: dict[str, Any] = {}
    for uses in USES.values():
        for verb, resource, roles in uses:
            for role in roles:
                if role not in only if only else role in (*OF_THE_WEBHOOK, *OF_THE_TEST):
                    continue
                if role not in without and (verb, resource) not in leave_out.get(role, ()):
                    found.setdefault(role, {}).setdefault(resource, set()).add(verb)
    return found


def granted(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The permissions in the charts, by role and resource."""
    return {
        f"{kind}/{name}": granted_by(role)
        for kind in ("Role", "ClusterRole")
        for name, role in objects.get(kind, {}).items()
    }


def granted_by(role: dict[str, Any]) -> dict[str, set[str]]:
    """The permissions in a role, by resource."""
    found: dict[str, set[str]] = {}
    for rule in role["rules"]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                full = f"{group}/{resource}" if group else resource
                found.setdefault(full, set()).update(rule["verbs"])
    return found


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return dict(modules())


def test_every_call_of_the_api_server_is_in_the_table(
    trees: dict[str, ast.Module],
) -> None:
    there = {place for name, tree in trees.items() for place in places(tree, name)}
    assert there == set(USES)


def test_the_client_is_named_api_everywhere_so_that_every_call_is_found(
    trees: dict[str, ast.Module],
) -> None:
    kept: set[str] = set()
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.arg) and node.annotation is not None:
            types = ast.unparse(node.annotation).split(" | ")
            kept |= {node.arg for each in types if each.endswith("Client")}
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "api":
            kept |= {ast.unparse(each) for each in node.targets}
    assert kept == {"api", "self._api"}


def test_no_role_has_a_permission_for_code_that_its_component_does_not_import(
    trees: dict[str, ast.Module],
) -> None:
    reached = {each: imported(each, trees) for each in set(COMPONENT.values())}
    for place, uses in USES.items():
        for _, _, roles in uses:
            for role in roles:
                assert place.split(":")[0] in reached[COMPONENT[role]], (place, role)


def test_the_webhook_has_the_rights_that_it_uses_and_none_where_it_asks_nothing(
    render: Render,
) -> None:
    managed = {"tls": {"mode": "self-managed"}}
    assert granted(render("nvdra-webhook", managed)) == needed({}, only=OF_THE_WEBHOOK)
    (rule,) = render("nvdra-webhook", managed)["Role"]["nvdra-nvdra-webhook"]["rules"]
    assert rule["resourceNames"] == ["nvdra-nvdra-webhook-cert"]
    looks = granted(render("nvdra-webhook"))
    assert set(looks) == {WEBHOOK}
    assert all(verbs == {"list"} for verbs in looks[WEBHOOK].values())
    assert granted(render("nvdra-webhook", {"clusterLookupInterval": "0s"})) == {}


def test_the_test_of_an_installation_has_the_rights_that_it_uses(
    render_test: Callable[..., list[dict[str, Any]]],
) -> None:
    webhook = {"webhook": {"enabled": True, "tls": {"mode": "self-managed"}}}
    made = render_test("nvdra", webhook)
    found: dict[str, Any] = {}
    for role in (each for each in made if each["kind"] in ("Role", "ClusterRole")):
        for resource, verbs in granted_by(role).items():
            own = found.setdefault(f"{role['kind']}/{role['metadata']['name']}", {})
            own[resource] = own.get(resource, set()) | verbs
    assert found == needed({}, only=OF_THE_TEST)
    for role in made:
        for rule in role.get("rules", []):
            if "get" in rule["verbs"]:
                assert rule["resourceNames"], "what is read by name is restricted to it"
    without = [each["metadata"].get("namespace") for each in render_test("nvdra")]
    assert "default" not in without, "claims are created to try the webhook only"


def test_the_roles_grant_exactly_what_is_used(render: Render) -> None:
    assert granted(render("nvdra")) == needed({**WITH_CLIQUES, **USUALLY_OFF})


@pytest.mark.parametrize("is_on", [False, True])
def test_with_network_policies_off_the_controller_may_only_remove_them(
    render: Render, is_on: bool
) -> None:
    values = {"daemon": {"networkPolicy": {"enabled": is_on}}}
    granted_to = granted(render("nvdra-cd-controller", values))
    wanted = needed({} if is_on else WITHOUT_NETWORK_POLICIES)
    assert granted_to[MANAGES_DAEMONS] == wanted[MANAGES_DAEMONS]


@pytest.mark.parametrize(
    ("gates", "is_on"),
    [
        ({"MPSSupport": True}, True),
        ({"AllAlpha": True}, True),
        ({"AllAlpha": True, "MPSSupport": False}, False),
    ],
)
def test_without_its_gate_the_plugin_may_only_end_mps_daemons(
    render: Render, gates: dict[str, bool], is_on: bool
) -> None:
    granted_to = granted(render("nvdra-gpu-plugin", {"global": {"featureGates": gates}}))
    wanted = needed({} if is_on else WITHOUT_MPS)
    assert granted_to[RUNS_MPS] == wanted[RUNS_MPS]


def test_without_cliques_daemons_may_write_the_status_of_domains(render: Render) -> None:
    values = {"global": {"featureGates": {"ComputeDomainCliques": False}}}
    assert granted(render("nvdra", values)) == needed(USUALLY_OFF)


@pytest.mark.parametrize("labels_cliques", [False, True])
def test_where_the_hosts_run_imex_there_are_fewer_permissions(
    render: Render, labels_cliques: bool
) -> None:
    values = {
        "global": {
            "featureGates": {"HostManagedIMEXDaemon": True},
            "imex": {"mode": "hostManaged"},
        },
        "nvdra-cd-plugin": {
            "kubeletPlugin": {
                "containers": {"computeDomains": {"gpuCliqueLabelEnabled": labels_cliques}}
            }
        },
    }
    left_out = {role: set(rights) for role, rights in HOST_MANAGED.items()} | WITHOUT_MPS
    if labels_cliques:
        left_out[CD_PLUGIN].remove(("patch", "nodes"))
    assert granted(render("nvdra", values)) == needed(left_out, without=NO_DAEMONS)


def test_claims_are_read_by_name_only_in_the_client(
    trees: dict[str, ast.Module],
) -> None:
    # The client itself reads claims in `get_claim`, and the versions of the API.
    tree = trees["nvdra_runtime.kube.client"]
    asked = {
        ast.unparse(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Call", "self.get")
    }
    verbs = {"'GET'", "'POST'", "'PUT'", "'PATCH'", "'DELETE'", "'WATCH'"}
    assert asked == {*verbs, "apiversions.GROUP_PATH"}
