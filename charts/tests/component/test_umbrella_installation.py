# SPDX-License-Identifier: Apache-2.0
"""helm installs the umbrella chart, and the API server enforces the plugin's permissions."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from nvdra_api.gates import UNAVAILABLE_FEATURES
from nvdra_testing import yaml_documents
from nvdra_testing.charts import CHARTS, FROM_REGISTRY, folder

Cluster = Any  # conftest.Cluster; a conftest cannot be imported

NAME = "nvdra-nvdra-gpu-plugin"
ACCOUNT = f"system:serviceaccount:nvdra-system:{NAME}"
GPUS_ALONE = "--set=resources.computeDomains.enabled=false"


@pytest.fixture(scope="module")
def installed(serving: Callable[..., Cluster]) -> Cluster:
    cluster = serving()
    done = cluster.install("nvdra", GPUS_ALONE)
    assert done.returncode == 0, done.stderr
    until_the_policy_acts(cluster)
    return cluster


def until_the_policy_acts(cluster: Cluster) -> None:
    """Wait for a new policy, which takes effect within a second or two."""
    deadline = time.monotonic() + 30
    while (
        write(cluster, "create", node_slice("node-b"), "node-a", "--dry-run=server").returncode == 0
    ):
        assert time.monotonic() < deadline, "the admission policy never denied anything"
        time.sleep(0.2)


def node_slice(
    node: str, name: str = "", driver: str = "gpu.nvidia.com", **spec: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"slice-of-{node}"},
        "spec": {
            "driver": driver,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0"}],
            **(spec or {"nodeName": node}),
        },
    }


def write(
    cluster: Cluster, verb: str, item: dict[str, Any], node: str | None, *flags: str
) -> subprocess.CompletedProcess[str]:
    """Requests with a token of the plugin on a node."""
    extra = [f"--as-user-extra=authentication.kubernetes.io/node-name={node}"] if node else []
    done: subprocess.CompletedProcess[str] = cluster.kubectl(
        verb, f"--as={ACCOUNT}", *extra, *flags, "-f", "-", stdin=item
    )
    return done


@pytest.fixture
def published(installed: Cluster) -> Any:
    """Create slices as the administrator; they are deleted after the test."""
    made: list[str] = []

    def publish(item: dict[str, Any]) -> dict[str, Any]:
        assert installed.kubectl("create", "-f", "-", stdin=item).returncode == 0
        made.append(item["metadata"]["name"])
        return item

    yield publish
    for name in made:
        installed.kubectl("delete", "resourceslice", name, "--ignore-not-found")


def test_the_api_server_accepts_every_object(installed: Cluster) -> None:
    manifest = installed.helm("get", "manifest", "nvdra", "-n", "nvdra-system").stdout
    kinds = [item["kind"] for item in yaml_documents.load_all(manifest) if item]
    assert sorted(kinds) == sorted(
        ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "DaemonSet"]
        + ["DeviceClass"] * 3
        + ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] * 3
    )


@pytest.mark.parametrize("command", [("install",), ("upgrade", "--install")])
def test_a_new_release_needs_a_registry(installed: Cluster, command: tuple[str, ...]) -> None:
    where = ("other", str(folder("nvdra")), "-n", "others", "--create-namespace")
    done = installed.helm(*command, *where, GPUS_ALONE)
    assert done.returncode != 0
    assert "global.imageRegistry: the images would come from docker.io/nvdra" in done.stderr
    assert "other" not in installed.helm("list", "-A", "--all", "--short").stdout.split()


def test_the_api_server_accepts_a_class_for_each_mig_profile(installed: Cluster) -> None:
    profiles = ["1g.10gb", "1g.10gb+me", "1g.10gb-me", "2g.48gb+me.all", "1c.3g.40gb"]
    setting = f"deviceClasses.migExtendedResources={json.dumps(profiles)}"
    chart = str(folder("nvdra-gpu-plugin"))
    how = (FROM_REGISTRY, "--set-json", setting, "--kube-version", "1.36.3")
    shown = installed.helm("template", "a", chart, "-n", "x", *how)
    assert shown.returncode == 0, shown.stderr
    items = [
        item
        for item in yaml_documents.load_all(shown.stdout)
        if item and item["kind"] == "DeviceClass" and item["metadata"]["name"].startswith("mig-")
    ]
    classes = {"apiVersion": "v1", "kind": "List", "items": items}
    kept = "jsonpath={.spec.extendedResourceName} "
    done = installed.kubectl("create", "--dry-run=server", "-o", kept, "-f", "-", stdin=classes)
    assert done.returncode == 0, done.stderr
    names = {f"nvidia.com/mig-{profile.replace('+', '.')}" for profile in profiles}
    assert set(done.stdout.split()) == names


def test_the_policys_expressions_are_well_typed(installed: Cluster) -> None:
    get = ("get", "validatingadmissionpolicy", NAME, "-o", "jsonpath={.status}")
    deadline = time.monotonic() + 30
    while not (status := yaml_documents.load(installed.kubectl(*get).stdout)):
        assert time.monotonic() < deadline, "the policy's types were never checked"
        time.sleep(0.2)
    assert status == {"observedGeneration": 1, "typeChecking": {}}


def test_the_user_is_warned_about_a_device_plugin_on_the_same_nodes(installed: Cluster) -> None:
    notes = installed.helm("get", "notes", "nvdra", "-n", "nvdra-system").stdout
    assert "WARNING: do not run NVIDIA's device plugin" in notes
    assert "kubectl -n nvdra-system exec POD -- nvdra-gpu-plugin status" in notes


def report(cluster: Cluster, *, ready: int, generation: int = 1) -> None:
    """Say, as the controller of DaemonSets would, how many plugins of two nodes are ready."""
    status = {
        "observedGeneration": generation,
        "desiredNumberScheduled": 2,
        "currentNumberScheduled": 2,
        "updatedNumberScheduled": 2,
        "numberMisscheduled": 0,
        "numberReady": ready,
        "numberAvailable": ready,
    }
    where = ("daemonset", NAME, "-n", "nvdra-system", "--subresource=status", "--type=merge")
    change = json.dumps({"status": status})
    assert cluster.kubectl("patch", *where, "-p", change).returncode == 0


def test_the_notes_say_how_to_wait_for_the_plugins_of_all_nodes(installed: Cluster) -> None:
    notes = installed.helm("get", "notes", "nvdra", "-n", "nvdra-system").stdout
    assert "helm --wait" not in notes  # it waits for all of them, too
    (line,) = [each for each in notes.splitlines() if "rollout status" in each]
    command = line.partition("kubectl ")[2].split()

    def wait(ready: int) -> subprocess.CompletedProcess[str]:
        """Run the command while so many of the plugins of two nodes are ready."""
        report(installed, ready=ready)
        done: subprocess.CompletedProcess[str] = installed.kubectl(*command, "--timeout=2s")
        return done

    assert "1 of 2 updated pods are available" in wait(ready=1).stdout
    assert wait(ready=1).returncode != 0
    assert wait(ready=2).returncode == 0


def test_helm_waits_for_the_plugins_of_all_nodes(installed: Cluster) -> None:
    def wait(ready: int) -> subprocess.CompletedProcess[str]:
        """Run `helm upgrade --wait` while so many of the plugins of two nodes are ready."""
        report(installed, ready=ready)
        chart = str(installed.charts / "nvdra")
        how = ("-n", "nvdra-system", "--reuse-values", "--wait", "--timeout=4s")
        done: subprocess.CompletedProcess[str] = installed.helm("upgrade", "nvdra", chart, *how)
        return done

    assert "context deadline exceeded" in wait(ready=1).stderr
    done = wait(ready=2)
    assert done.returncode == 0, done.stderr


def test_the_notes_say_that_helm_leaves_plugins_out_where_nodes_may_be_without(
    installed: Cluster,
) -> None:
    flag = "--set=nvdra-gpu-plugin.kubeletPlugin.updateStrategy.rollingUpdate.maxUnavailable=10%"
    chart = str(installed.charts / "nvdra")
    where = ("-n", "nvdra-system", "--dry-run=server")
    done = installed.helm("upgrade", "nvdra", chart, *where, "--reuse-values", flag)
    assert "`helm --wait` leaves out as many pods" in done.stdout


@pytest.mark.parametrize(
    ("gates", "shares", "is_told"),
    [
        ("ConsumableShares=true,global.featureGates.MPSSupport=true", "memory", True),
        ("AllAlpha=true", "4", True),
        ("AllAlpha=true,global.featureGates.MPSSupport=false", "4", False),
        ("ConsumableShares=true", "memory", False),
        ("AllAlpha=true", "disabled", False),
    ],
)
def test_the_notes_say_that_devices_with_shares_have_no_mps(
    installed: Cluster, gates: str, shares: str, is_told: bool
) -> None:
    chart = str(installed.charts / "nvdra")
    where = ("-n", "nvdra-system", "--dry-run=server", "--reuse-values")
    flags = (
        f"--set=global.featureGates.{gates}",
        f"--set-string=nvdra-gpu-plugin.kubeletPlugin.consumableShares={shares}",
    )
    done = installed.helm("upgrade", "nvdra", chart, *where, *flags)
    assert done.returncode == 0, done.stderr
    assert (f"(kubeletPlugin.consumableShares={shares})" in done.stdout) == is_told


def test_an_upgrade_with_the_same_values_does_not_change_the_daemonset(
    installed: Cluster,
) -> None:
    get = ("get", "daemonset", NAME, "-n", "nvdra-system", "-o", "jsonpath={.metadata.generation}")
    before = installed.kubectl(*get).stdout
    chart = str(installed.charts / "nvdra")
    done = installed.helm("upgrade", "nvdra", chart, "-n", "nvdra-system", "--reuse-values")
    assert done.returncode == 0, done.stderr
    assert installed.kubectl(*get).stdout == before == "1"


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("get", "resourceclaims.resource.k8s.io", "yes"),
        ("list", "resourceclaims.resource.k8s.io", "no"),
        ("watch", "resourceslices.resource.k8s.io", "yes"),
        ("create", "resourceslices.resource.k8s.io", "yes"),
        ("get", "nodes", "yes"),
        ("update", "nodes", "no"),
        ("get", "pods", "yes"),
        ("list", "pods", "no"),
        ("create", "events", "yes"),
        ("get", "secrets", "no"),
    ],
)
def test_the_account_has_these_permissions_in_every_namespace(
    installed: Cluster, verb: str, resource: str, allowed: str
) -> None:
    argv = ("auth", "can-i", verb, resource, "--all-namespaces", f"--as={ACCOUNT}")
    assert installed.kubectl(*argv).stdout.strip() == allowed


def test_the_plugin_writes_slices_of_its_own_node(installed: Cluster) -> None:
    mine = node_slice("node-a")
    assert write(installed, "create", mine, "node-a").returncode == 0
    mine["spec"]["pool"]["generation"] = 2
    assert write(installed, "replace", mine, "node-a").returncode == 0
    assert write(installed, "delete", mine, "node-a").returncode == 0


@pytest.mark.protocol("S9")
def test_it_does_not_create_slices_of_another_node(installed: Cluster) -> None:
    done = write(installed, "create", node_slice("node-b"), "node-a")
    assert "this user running on node 'node-a' may not modify" in done.stderr


@pytest.mark.protocol("S9")
def test_it_does_not_create_slices_for_all_nodes(installed: Cluster) -> None:
    done = write(installed, "create", node_slice("node-a", allNodes=True), "node-a")
    assert "this user running on node 'node-a' may not modify" in done.stderr


@pytest.mark.protocol("S9")
@pytest.mark.parametrize("verb", ["replace", "delete"])
def test_it_does_not_change_slices_of_another_node(
    installed: Cluster, published: Any, verb: str
) -> None:
    theirs = published(node_slice("node-b"))
    theirs["spec"]["pool"]["generation"] = 2
    done = write(installed, verb, theirs, "node-a")
    assert "this user running on node 'node-a' may not modify" in done.stderr


def test_it_does_not_publish_devices_in_the_pool_of_another_node(installed: Cluster) -> None:
    pool = {"name": "node-b", "generation": 1000, "resourceSliceCount": 1}
    mine = node_slice("node-a", pool=pool, nodeName="node-a")
    done = write(installed, "create", mine, "node-a")
    assert "on node 'node-a' may only publish the pool of that name" in done.stderr


def test_it_removes_a_slice_of_its_own_node_whatever_pool_it_names(
    installed: Cluster, published: Any
) -> None:
    pool = {"name": "other", "generation": 1, "resourceSliceCount": 1}
    left = published(node_slice("node-a", pool=pool, nodeName="node-a"))
    assert write(installed, "delete", left, "node-a").returncode == 0


def test_it_does_not_publish_for_another_driver(installed: Cluster) -> None:
    done = write(installed, "create", node_slice("node-a", driver="other.example.com"), "node-a")
    assert "may only modify resourceslices of the driver gpu.nvidia.com" in done.stderr


def test_its_account_without_a_node_writes_nothing(installed: Cluster) -> None:
    done = write(installed, "create", node_slice("node-a"), None)
    assert "no node association found for user" in done.stderr


def test_other_users_are_not_restricted(published: Any) -> None:
    assert published(node_slice("node-c", driver="other.example.com"))


@pytest.mark.parametrize("version", ["v1beta2", "v1beta1"])
def test_classes_are_created_in_the_newest_version_that_is_served(
    serving: Callable[..., Cluster], version: str
) -> None:
    served = f"resource.k8s.io/v1=false,resource.k8s.io/v1beta1=true,resource.k8s.io/{version}=true"
    cluster = serving(served)
    done = cluster.install("nvdra")
    assert done.returncode == 0, done.stderr
    manifest = cluster.helm("get", "manifest", "nvdra", "-n", "nvdra-system").stdout
    classes = [
        item for item in yaml_documents.load_all(manifest) if item and item["kind"] == "DeviceClass"
    ]
    assert {item["apiVersion"] for item in classes} == {f"resource.k8s.io/{version}"}
    assert not any("extendedResourceName" in item["spec"] for item in classes)


def test_a_cluster_without_dynamic_allocation_is_an_error_with_advice(
    serving: Callable[..., Cluster],
) -> None:
    done = serving("resource.k8s.io/v1=false").install("nvdra")
    assert done.returncode != 0
    assert "serves none of resource.k8s.io/v1, v1beta2 and v1beta1" in done.stderr
    assert "DynamicResourceAllocation" in done.stderr


def test_one_command_deletes_what_a_killed_test_leaves(installed: Cluster) -> None:
    page = (CHARTS.parent / "docs" / "operations.md").read_text()
    (command,) = re.findall(r"^kubectl (delete --all-namespaces .*?)^```", page, re.DOTALL | re.M)
    before = everything(installed)
    hooks = installed.helm("get", "hooks", "nvdra", "-n", "nvdra-system").stdout
    items = [item for item in yaml_documents.load_all(hooks) if item]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    assert installed.kubectl("create", "-f", "-", stdin=listed).returncode == 0
    left = everything(installed) - before
    assert len(left) == len(items) > 5
    done = installed.kubectl(*command.replace("\\\n", " ").split(), "--grace-period=0")
    assert done.returncode == 0, done.stderr
    assert everything(installed) == before


def everything(cluster: Cluster) -> set[str]:
    kinds = "pods,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
    found = cluster.kubectl("get", f"{kinds},networkpolicies", "-A", "-o", "json").stdout
    return {
        f"{item['kind']} {item['metadata'].get('namespace')}/{item['metadata']['name']}"
        for item in json.loads(found)["items"]
    }


def test_the_notes_say_what_is_missing_in_the_cluster(installed: Cluster) -> None:
    def notes(*flags: str) -> str:
        chart = str(installed.charts / "nvdra")
        where = ("-n", "nvdra-system", "--dry-run=server", "--reuse-values")
        done = installed.helm("upgrade", "nvdra", chart, *where, *flags)
        assert done.returncode == 0, done.stderr
        _, _, after = done.stdout.partition("LOOK AT THIS")
        return str(after)

    def labelled(**labels: str) -> dict[str, Any]:
        system = {"kubernetes.io/os": "linux"}  # a kubelet says it
        metadata = {"name": "node-of-the-notes", "labels": {**system, **labels}}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata}

    def set_status(status: dict[str, Any]) -> None:
        patch = f"--patch={json.dumps({'status': status})}"
        what = ("node", "node-of-the-notes", "--subresource=status", "--type=merge", patch)
        installed.kubectl("patch", *what)

    try:
        installed.kubectl("apply", "-f", "-", stdin=labelled())
        assert "No node is one for the plugins, by its labels" in notes()
        ready = labelled(**{"nvidia.com/gpu.present": "true"})
        installed.kubectl("apply", "-f", "-", stdin=ready)
        assert notes() == ""
        taint = {"key": "sku", "value": "gpu", "effect": "NoSchedule"}
        installed.kubectl("apply", "-f", "-", stdin={**ready, "spec": {"taints": [taint]}})
        said = "does not run there: node-of-the-notes (sku=gpu:NoSchedule)"
        assert notes().count(said) == 1
        with_domains = "--set=resources.computeDomains.enabled=true"
        assert notes(with_domains).count(said) == 2  # of both plugins
        tolerated = '--set-json={}.kubeletPlugin.tolerations=[{{"key":"sku","operator":"Exists"}}]'
        of_both = [tolerated.format(each) for each in ("nvdra-gpu-plugin", "nvdra-cd-plugin")]
        assert notes(with_domains, *of_both) == ""
        installed.kubectl("apply", "-f", "-", stdin=ready)
        for gate in UNAVAILABLE_FEATURES:
            told = notes(f"--set=global.featureGates.{gate}=true")
            assert f"The feature gate {gate} has no effect in this version" in told
        assert notes("--set=global.featureGates.PassthroughSupport=true") == ""
        level = "pod-security.kubernetes.io/enforce"
        for enforced in ("restricted", "privileged"):
            installed.kubectl("label", "--overwrite", "ns", "nvdra-system", f"{level}={enforced}")
            assert ("enforces the Pod Security level restricted" in notes()) == (
                enforced == "restricted"
            )
        for version in ("containerd://1.7.35", "containerd://2.1.9", "cri-o://1.34.0"):
            set_status({"nodeInfo": {"containerRuntimeVersion": version}})
            assert ("enable_cdi = true, and" in notes()) == version.startswith("containerd://1.")
        set_status({"allocatable": {"nvidia.com/gpu": "8"}})
        offered = "A device plugin offers GPUs on node-of-the-notes (nvidia.com/gpu)"
        assert offered in notes()
    finally:
        installed.kubectl("delete", "node", "node-of-the-notes", "--ignore-not-found")
