"""Which place of the code needs which right: no role grants more than is asked for, or less.

The places are found in the sources: whatever is done with `api`, the client of the API server, and
each `Reflector`, which lists and watches. A new one needs its line here, and a right its place.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

Render = Callable[..., dict[str, dict[str, Any]]]
Right = tuple[str, str]
"""Resource, with its group where it has one; verb."""

PACKAGES = Path(__file__).parents[3] / "packages"
CALLS = {"get", "create", "replace", "patch", "delete", "claim", "watch"}
"""What `nvdra_api.runtime.kube.client.Client` can be asked."""

# Roles as the charts name them, each with the component whose account has it.
GPUS = "ClusterRole/nvdra-nvdra-gpu-plugin"
JOINS = "ClusterRole/nvdra-nvdra-cd-plugin"
SEES_DAEMONS = "Role/nvdra-nvdra-cd-plugin-daemons"
CONTROLS = "ClusterRole/nvdra-nvdra-cd-controller"
MAKES_DAEMONS = "Role/nvdra-nvdra-cd-controller-daemons"
LEADS = "Role/nvdra-nvdra-cd-controller-lease"
DAEMON = "ClusterRole/compute-domain-daemon-role"
DAEMON_AT_HOME = "Role/compute-domain-daemon-role"
COMPONENT = {
    GPUS: "nvdra_gpu_plugin",
    JOINS: "nvdra_cd_plugin",
    SEES_DAEMONS: "nvdra_cd_plugin",
    CONTROLS: "nvdra_cd_controller",
    MAKES_DAEMONS: "nvdra_cd_controller",
    LEADS: "nvdra_cd_controller",
    DAEMON: "nvdra_imex_daemon",
    DAEMON_AT_HOME: "nvdra_imex_daemon",
}
PLUGINS = (GPUS, JOINS)
EVERYBODY = (GPUS, JOINS, CONTROLS, DAEMON)

SLICES = "resource.k8s.io/resourceslices"
CLAIMS = "resource.k8s.io/resourceclaims"
TEMPLATES = "resource.k8s.io/resourceclaimtemplates"
DOMAINS = "resource.nvidia.com/computedomains"
STATUS = "resource.nvidia.com/computedomains/status"
CLIQUES = "resource.nvidia.com/computedomaincliques"
DAEMONSETS = "apps/daemonsets"
LEASES = "coordination.k8s.io/leases"

USES: Final[dict[str, list[tuple[str, str, tuple[str, ...]]]]] = {
    "nvdra_api.runtime.kube.events:Events._pods claim": [("get", CLAIMS, PLUGINS)],
    "nvdra_api.runtime.kube.events:Events._write patch": [("patch", "events", EVERYBODY)],
    "nvdra_api.runtime.kube.events:Events._write create": [("create", "events", EVERYBODY)],
    "nvdra_api.runtime.kube.leases:Lease.release replace": [("update", LEASES, (LEADS,))],
    "nvdra_api.runtime.kube.leases:Lease._tried create": [("create", LEASES, (LEADS,))],
    "nvdra_api.runtime.kube.leases:Lease._tried replace": [("update", LEASES, (LEADS,))],
    "nvdra_api.runtime.kube.leases:Lease._look get": [("get", LEASES, (LEADS,))],
    "nvdra_api.runtime.kube.publisher:Publisher.__init__ Reflector": [
        ("list", SLICES, PLUGINS),
        ("watch", SLICES, PLUGINS),
    ],
    "nvdra_api.runtime.kube.publisher:Publisher._write create": [("create", SLICES, PLUGINS)],
    "nvdra_api.runtime.kube.publisher:Publisher._write replace": [("update", SLICES, PLUGINS)],
    "nvdra_api.runtime.kube.publisher:Publisher._delete delete": [("delete", SLICES, PLUGINS)],
    "nvdra_api.runtime.kube.publisher:Publisher._node_uid get": [("get", "nodes", PLUGINS)],
    "nvdra_api.runtime.kube.reflector:Reflector._list get": [],  # said where there is one
    "nvdra_api.runtime.kube.reflector:Reflector._watch watch": [],
    "nvdra_api.runtime.plugin.cleanup:Cleanup._gone claim": [("get", CLAIMS, PLUGINS)],
    "nvdra_api.runtime.plugin.fetching:Claims.fetch claim": [("get", CLAIMS, PLUGINS)],
    "nvdra_api.runtime.plugin.roots:Roots._pod get": [("get", "pods", PLUGINS)],
    "nvdra_cd_controller.cluster:Source.__init__ Reflector": [
        *((verb, each, (CONTROLS,)) for each in (DOMAINS, TEMPLATES) for verb in ("list", "watch")),
        *(
            (verb, each, (MAKES_DAEMONS,))
            for each in (DAEMONSETS, CLIQUES, "pods")
            for verb in ("list", "watch")
        ),
        ("list", "nodes", (CONTROLS,)),
        ("watch", "nodes", (CONTROLS,)),
    ],
    "nvdra_cd_controller.writes:Writes.status replace": [("update", STATUS, (CONTROLS,))],
    "nvdra_cd_controller.writes:Writes.prune get": [("get", CLIQUES, (MAKES_DAEMONS,))],
    "nvdra_cd_controller.writes:Writes.prune replace": [("update", CLIQUES, (MAKES_DAEMONS,))],
    "nvdra_cd_controller.writes:Writes.annotate patch": [
        ("patch", DAEMONSETS, (MAKES_DAEMONS,)),
        ("patch", TEMPLATES, (CONTROLS,)),
    ],
    "nvdra_cd_controller.writes:Writes.is_absent get": [("list", DOMAINS, (CONTROLS,))],
    "nvdra_cd_controller.writes:Writes._create create": [
        ("create", DAEMONSETS, (MAKES_DAEMONS,)),
        ("create", TEMPLATES, (CONTROLS,)),
    ],
    "nvdra_cd_controller.writes:Writes._adopt get": [
        ("get", DAEMONSETS, (MAKES_DAEMONS,)),
        ("get", TEMPLATES, (CONTROLS,)),
    ],
    "nvdra_cd_controller.writes:Writes._heal patch": [("patch", TEMPLATES, (CONTROLS,))],
    "nvdra_cd_controller.writes:Writes._heal replace": [("update", DAEMONSETS, (MAKES_DAEMONS,))],
    "nvdra_cd_controller.writes:Writes._delete delete": [
        ("delete", DAEMONSETS, (MAKES_DAEMONS,)),
        ("delete", TEMPLATES, (CONTROLS,)),
    ],
    "nvdra_cd_controller.writes:Writes._unlabel patch": [("patch", "nodes", (CONTROLS,))],
    "nvdra_cd_controller.writes:Writes._set_finalizers patch": [
        ("patch", DOMAINS, (CONTROLS,)),
        ("patch", DAEMONSETS, (MAKES_DAEMONS,)),
        ("patch", TEMPLATES, (CONTROLS,)),
    ],
    "nvdra_cd_plugin.daemon_claims:DaemonClaims._pod get": [("get", "pods", (JOINS,))],
    "nvdra_cd_plugin.daemon_watch:Source.__init__ Reflector": [
        ("list", CLIQUES, (SEES_DAEMONS,)),
        ("watch", CLIQUES, (SEES_DAEMONS,)),
        ("list", DOMAINS, (JOINS,)),
        ("watch", DOMAINS, (JOINS,)),
    ],
    "nvdra_cd_plugin.daemon_lookup:DaemonLookup._pods get": [("list", "pods", (SEES_DAEMONS,))],
    "nvdra_cd_plugin.daemon_lookup:DaemonLookup._why_none get": [
        ("get", DAEMONSETS, (SEES_DAEMONS,)),
        ("list", "events", (SEES_DAEMONS,)),
    ],
    "nvdra_cd_plugin.domains:Domains._by_name get": [("get", DOMAINS, (JOINS,))],
    "nvdra_cd_plugin.domains:Domains._among get": [("list", DOMAINS, (JOINS,))],
    "nvdra_cd_plugin.label_watch:LabelWatch.__init__ Reflector": [
        ("list", "nodes", (JOINS,)),
        ("watch", "nodes", (JOINS,)),
    ],
    "nvdra_cd_plugin.node_label:NodeLabels.show_clique patch": [("patch", "nodes", (JOINS,))],
    "nvdra_cd_plugin.node_label:NodeLabels._read get": [("get", "nodes", (JOINS,))],
    "nvdra_cd_plugin.node_label:NodeLabels._wrote patch": [("patch", "nodes", (JOINS,))],
    "nvdra_imex_daemon.labelling:_label patch": [("patch", "pods", (DAEMON_AT_HOME,))],
    "nvdra_imex_daemon.register:Register.__init__ Reflector": [
        *((verb, CLIQUES, (DAEMON_AT_HOME,)) for verb in ("list", "watch")),
        *((verb, DOMAINS, (DAEMON,)) for verb in ("list", "watch")),
    ],
    "nvdra_imex_daemon.register:Register._read get": [
        ("get", CLIQUES, (DAEMON_AT_HOME,)),
        ("get", DOMAINS, (DAEMON,)),
    ],
    "nvdra_imex_daemon.register:Register._write create": [("create", CLIQUES, (DAEMON_AT_HOME,))],
    "nvdra_imex_daemon.register:Register._write patch": [
        ("patch", CLIQUES, (DAEMON_AT_HOME,)),
        ("patch", STATUS, (DAEMON,)),
    ],
    "nvdra_imex_daemon.register:Register._write replace": [
        ("update", CLIQUES, (DAEMON_AT_HOME,)),
        ("update", STATUS, (DAEMON,)),
    ],
    "nvdra_imex_daemon.register:Register.leave replace": [
        ("update", CLIQUES, (DAEMON_AT_HOME,)),
        ("update", STATUS, (DAEMON,)),
    ],
}
"""Place and call → verb, resource, roles."""

# What is not done in a mode, by the roles that then lack it.
WITH_CLIQUES = {DAEMON: {("get", DOMAINS), ("list", DOMAINS), ("watch", DOMAINS)}}
WITH_CLIQUES[DAEMON] |= {("update", STATUS), ("patch", STATUS)}
HOST_MANAGED = {
    JOINS: {("watch", DOMAINS), ("list", "nodes"), ("watch", "nodes"), ("patch", "nodes")},
    CONTROLS: {("list", "nodes"), ("watch", "nodes"), ("patch", "nodes")},
}
NO_DAEMONS = (SEES_DAEMONS, MAKES_DAEMONS, DAEMON, DAEMON_AT_HOME)


def modules() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(PACKAGES.glob("*/src/**/*.py")):
        source = next(each for each in file.parents if each.name == "src")
        name = ".".join(file.relative_to(source).with_suffix("").parts)
        yield name.removesuffix(".__init__"), ast.parse(file.read_text())


def is_client(node: ast.expr) -> bool:
    """`api`, or `_api` of something."""
    if isinstance(node, ast.Attribute):
        return node.attr == "_api"
    return isinstance(node, ast.Name) and node.id == "api"


def places(node: ast.AST, module: str, inside: tuple[str, ...] = ()) -> Iterator[str]:
    """Where the API server is asked for something: `module:Class.method call`."""
    for child in ast.iter_child_nodes(node):
        here = f"{module}:{'.'.join(inside)}"
        if isinstance(child, ast.Attribute) and child.attr in CALLS and is_client(child.value):
            yield f"{here} {child.attr}"
        if isinstance(child, ast.Call) and ast.unparse(child.func).endswith("Reflector"):
            yield f"{here} Reflector"
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from places(child, module, (*inside, child.name))
        else:
            yield from places(child, module, inside)


def imported(package: str, trees: dict[str, ast.Module]) -> set[str]:
    """Our modules that a package brings into its process, by way of others too."""
    found: set[str] = set()
    pending = {name for name in trees if name.split(".")[0] == package}
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


def needed(leave_out: dict[str, set[Right]], *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Role → resource → verbs, as the table says."""
    found: dict[str, Any] = {}
    for uses in USES.values():
        for verb, resource, roles in uses:
            for role in roles:
                if role not in without and (verb, resource) not in leave_out.get(role, ()):
                    found.setdefault(role, {}).setdefault(resource, set()).add(verb)
    return found


def granted(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Role → resource → verbs, as the charts say."""
    found: dict[str, Any] = {}
    for kind in ("Role", "ClusterRole"):
        for name, role in objects[kind].items():
            for rule in role["rules"]:
                assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        full = f"{group}/{resource}" if group else resource
                        verbs = found.setdefault(f"{kind}/{name}", {}).setdefault(full, set())
                        verbs |= set(rule["verbs"])
    return found


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return dict(modules())


def test_each_place_that_asks_something_of_the_api_server_is_in_the_table(
    trees: dict[str, ast.Module],
) -> None:
    there = {place for name, tree in trees.items() for place in places(tree, name)}
    assert there == set(USES)


def test_the_client_is_called_api_everywhere_so_that_no_place_is_overlooked(
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


def test_nobody_has_a_right_for_code_that_is_not_in_its_process(
    trees: dict[str, ast.Module],
) -> None:
    reached = {each: imported(each, trees) for each in set(COMPONENT.values())}
    for place, uses in USES.items():
        for _, _, roles in uses:
            for role in roles:
                assert place.split(":")[0] in reached[COMPONENT[role]], (place, role)


def test_the_roles_grant_what_is_used_and_nothing_else(render: Render) -> None:
    assert granted(render("nvdra")) == needed(WITH_CLIQUES)


def test_without_cliques_daemons_may_write_into_the_status_of_domains(render: Render) -> None:
    values = {"global": {"featureGates": {"ComputeDomainCliques": False}}}
    assert granted(render("nvdra", values)) == needed({})


@pytest.mark.parametrize("labels_cliques", [False, True])
def test_where_the_hosts_run_imex_there_are_fewer_rights(
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
    left_out = {role: set(rights) for role, rights in HOST_MANAGED.items()}
    if labels_cliques:
        left_out[JOINS].remove(("patch", "nodes"))
    assert granted(render("nvdra", values)) == needed(left_out, without=NO_DAEMONS)


def test_claims_are_read_by_their_name_in_no_other_place_than_the_client(
    trees: dict[str, ast.Module],
) -> None:
    # `claim` of the client is the GET of a claim; the versions of the API are asked for there too.
    tree = trees["nvdra_api.runtime.kube.client"]
    asked = {
        ast.unparse(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("self._call", "self.get")
    }
    assert asked == {"'GET'", "'POST'", "'PUT'", "'PATCH'", "'DELETE'", "apiversions.GROUP_PATH"}
