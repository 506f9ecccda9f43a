# SPDX-License-Identifier: Apache-2.0
"""The DaemonSet: where its pods run, what they mount, how they are updated."""

from collections.abc import Callable
from typing import Any

import pytest
from nvdra_testing import charts

Render = Callable[..., dict[str, dict[str, Any]]]

PLUGINS = ("nvdra-gpu-plugin", "nvdra-cd-plugin")


def daemonset(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (found,) = objects["DaemonSet"].values()
    spec: dict[str, Any] = found["spec"]
    return spec


def pod(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = daemonset(objects)["template"]["spec"]
    return spec


def container(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (only,) = pod(objects)["containers"]
    assert isinstance(only, dict)
    return only


def mounts(objects: dict[str, dict[str, Any]]) -> dict[str, tuple[str, str, str]]:
    """By path in the container: the path on the node, its type, its mount propagation."""
    volumes = {
        volume["name"]: volume["hostPath"]
        for volume in pod(objects)["volumes"]
        if "hostPath" in volume
    }
    found = {
        mount["mountPath"]: (
            volumes[mount["name"]]["path"],
            volumes[mount["name"]]["type"],
            mount.get("mountPropagation", "None"),
        )
        for mount in container(objects)["volumeMounts"]
        if mount["name"] in volumes
    }
    assert len(found) == len(volumes)
    return found


MOUNTS = {
    "/var/lib/kubelet/plugins_registry": (
        "/var/lib/kubelet/plugins_registry",
        "DirectoryOrCreate",
        "None",
    ),
    "/var/lib/kubelet/plugins": ("/var/lib/kubelet/plugins", "DirectoryOrCreate", "Bidirectional"),
    "/var/lib/kubelet": ("/var/lib/kubelet", "Directory", "HostToContainer"),
    "/var/run/cdi": ("/var/run/cdi", "DirectoryOrCreate", "None"),
    "/driver-root": ("/", "DirectoryOrCreate", "HostToContainer"),
    "/dev": ("/dev", "Directory", "HostToContainer"),
}


def test_the_plugin_writes_only_the_kubelets_plugin_directories(
    render: Render,
) -> None:
    read_only = [
        mount["mountPath"]
        for mount in container(render("nvdra-gpu-plugin"))["volumeMounts"]
        if mount.get("readOnly")
    ]
    assert read_only == ["/var/lib/kubelet"]


def test_the_driver_cdi_and_the_kubelets_directories_are_mounted(render: Render) -> None:
    assert mounts(render("nvdra-gpu-plugin")) == MOUNTS


@pytest.mark.parametrize(
    ("root", "parent", "inside"),
    [
        ("/run/nvidia/driver/", "/run/nvidia", "/driver-root/driver"),
        ("/home/kubernetes/bin/nvidia", "/home/kubernetes/bin", "/driver-root/nvidia"),
        ("/opt", "/", "/driver-root/opt"),
        ("/", "/", "/driver-root"),
    ],
)
def test_the_parent_of_the_driver_root_is_mounted_so_that_another_mount_on_it_is_seen(
    render: Render, root: str, parent: str, inside: str
) -> None:
    objects = render("nvdra-gpu-plugin", {"global": {"nvidiaDriverRoot": root}})
    there = (parent, "DirectoryOrCreate", "HostToContainer")
    assert mounts(objects) == MOUNTS | {"/driver-root": there}
    (variable,) = [
        each["value"]
        for each in container(objects)["env"]
        if each["name"] == "DRIVER_ROOT_CTR_PATH"
    ]
    assert variable == inside


def test_the_plugin_leaves_no_file_in_the_nodes_dev(render: Render) -> None:
    path = container(render("nvdra-gpu-plugin"))["terminationMessagePath"]
    assert not path.startswith("/dev/")


@pytest.mark.parametrize("system", ["proc", "sys", "dev"])
def test_a_moved_root_is_mounted_at_its_own_path(render: Render, system: str) -> None:
    path = f"/run/nvidia/{system}"
    objects = render("nvdra-gpu-plugin", {"global": {f"{system}Root": path}})
    assert mounts(objects) == MOUNTS | {path: (path, "Directory", "HostToContainer")}


def test_a_root_written_in_another_way_is_not_moved(render: Render) -> None:
    values = {"global": {"procRoot": "/proc/", "sysRoot": "//sys", "devRoot": "/dev/."}}
    assert render("nvdra-gpu-plugin", values) == render("nvdra-gpu-plugin")


def test_the_kubelets_directories_have_one_path_inside_and_outside(render: Render) -> None:
    values = {
        "kubeletPluginsDirectoryPath": "/data/kubelet/plugins",
        "kubeletRegistrarDirectoryPath": "/data/kubelet/plugins_registry",
    }
    found = mounts(render("nvdra-gpu-plugin", {"kubeletPlugin": values}))
    assert found["/data/kubelet/plugins"][0] == "/data/kubelet/plugins"
    assert found["/data/kubelet/plugins_registry"][0] == "/data/kubelet/plugins_registry"
    assert len(found) == len(MOUNTS)


def test_the_container_is_privileged_and_starts_the_plugin_itself(render: Render) -> None:
    found = container(render("nvdra-gpu-plugin"))
    assert found["name"] == "gpus"
    assert found["command"] == ["nvdra-gpu-plugin"]
    assert found["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert "initContainers" not in pod(render("nvdra-gpu-plugin"))


@pytest.mark.parametrize("chart", PLUGINS)
def test_of_the_image_nothing_can_be_written_but_tmp(render: Render, chart: str) -> None:
    objects = render(chart)
    assert container(objects)["securityContext"]["readOnlyRootFilesystem"]
    empty = [each["name"] for each in pod(objects)["volumes"] if "emptyDir" in each]
    places = {each["name"]: each["mountPath"] for each in container(objects)["volumeMounts"]}
    assert [places[name] for name in empty] == ["/tmp"]


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, charts.image("nvdra-gpu-plugin")),
        (
            {"global": {"imageRegistry": "registry.example.com/mirror"}},
            f"registry.example.com/mirror/nvdra/nvdra-gpu-plugin:{charts.version()}",
        ),
        (
            {"global": {"imageRegistry": "registry.example.com/"}},
            charts.image("nvdra-gpu-plugin"),
        ),
        (
            {
                "global": {"imageRegistry": ""},
                "image": {"repository": "ghcr.io/me/x", "tag": "dev"},
            },
            "ghcr.io/me/x:dev",
        ),
    ],
)
def test_the_image_is_registry_repository_and_tag(
    render: Render, values: dict[str, Any], image: str
) -> None:
    assert container(render("nvdra-gpu-plugin", values))["image"] == image


def test_images_are_pulled_as_the_globals_say(render: Render) -> None:
    values = {"imagePullPolicy": "Always", "imagePullSecrets": [{"name": "pull"}]}
    objects = render("nvdra-gpu-plugin", {"global": values})
    assert container(objects)["imagePullPolicy"] == "Always"
    assert pod(objects)["imagePullSecrets"] == [{"name": "pull"}]


def rolling(surge: int | str, unavailable: int | str) -> dict[str, Any]:
    update = {"maxSurge": surge, "maxUnavailable": unavailable}
    return {"type": "RollingUpdate", "rollingUpdate": update}


@pytest.mark.parametrize("chart", PLUGINS)
@pytest.mark.parametrize(
    ("values", "strategy"),
    [
        ({}, rolling("10%", 0)),
        ({"rollingUpdate": {"maxSurge": 1}}, rolling(1, 0)),
        ({"rollingUpdate": {"maxUnavailable": "0%"}}, rolling("10%", "0%")),
        ({"rollingUpdate": {"maxUnavailable": "100%"}}, rolling(0, "100%")),
        ({"rollingUpdate": {"maxSurge": 2, "maxUnavailable": 1}}, rolling(0, 1)),
        ({"type": "OnDelete"}, {"type": "OnDelete"}),
    ],
    ids=[
        "the default",
        "another surge",
        "zero in another way",
        "values for a release without surge",
        "both",
        "on delete",
    ],
)
def test_a_new_plugin_starts_beside_the_old_one_unless_nodes_may_be_without(
    render: Render, chart: str, values: dict[str, Any], strategy: dict[str, Any]
) -> None:
    objects = render(chart, {"kubeletPlugin": {"updateStrategy": values}})
    assert daemonset(objects)["updateStrategy"] == strategy


@pytest.mark.parametrize("chart", PLUGINS)
def test_two_plugins_on_a_node_share_neither_ports_nor_namespaces(
    render: Render, chart: str
) -> None:
    found = render(chart)
    assert [port for port in container(found)["ports"] if "hostPort" in port] == []
    assert [each for each in pod(found) if each.startswith("host")] == []


@pytest.mark.parametrize("chart", PLUGINS)
def test_a_plugin_is_told_the_uid_of_its_pod_which_is_in_the_names_of_its_sockets(
    render: Render, chart: str
) -> None:
    (variable,) = [each for each in container(render(chart))["env"] if each["name"] == "POD_UID"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}


def test_a_stopping_plugin_may_finish_what_the_kubelet_still_waits_for(render: Render) -> None:
    kubelet_deadline_s = 45
    assert pod(render("nvdra-gpu-plugin"))["terminationGracePeriodSeconds"] > kubelet_deadline_s


@pytest.mark.parametrize(("endpoint", "port"), [(":8080", 8080), ("[::]:9090", 9090)])
def test_the_probes_ask_the_port_of_the_plugin(render: Render, endpoint: str, port: int) -> None:
    values = {"kubeletPlugin": {"metrics": {"gpuHttpEndpoint": endpoint}}}
    found = container(render("nvdra-gpu-plugin", values))
    assert found["ports"] == [{"name": "http", "containerPort": port}]
    assert found["startupProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert found["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert found["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


def test_the_probes_stay_without_metrics(render: Render) -> None:
    values = {"kubeletPlugin": {"metrics": {"enabled": False}}}
    assert "livenessProbe" in container(render("nvdra-gpu-plugin", values))


def test_pods_run_on_nodes_with_any_of_five_labels(render: Render) -> None:
    required = pod(render("nvdra-gpu-plugin"))["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    labels = {}
    for term in required["nodeSelectorTerms"]:
        (expression,) = term["matchExpressions"]
        assert expression["operator"] == "In"
        labels[expression["key"]] = expression["values"]
    assert labels == {
        "feature.node.kubernetes.io/pci-10de.present": ["true"],
        "feature.node.kubernetes.io/pci-0302_10de.present": ["true"],
        "feature.node.kubernetes.io/pci-0300_10de.present": ["true"],
        "feature.node.kubernetes.io/cpu-model.vendor_id": ["NVIDIA"],
        "nvidia.com/gpu.present": ["true"],
    }


def test_pods_tolerate_the_gpu_taint_and_have_a_high_priority(render: Render) -> None:
    found = pod(render("nvdra-gpu-plugin"))
    assert found["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    assert found["priorityClassName"] == "system-node-critical"


@pytest.mark.parametrize(
    ("value", "field", "content"),
    [
        ("tolerations", "tolerations", [{"operator": "Exists"}]),
        ("podSecurityContext", "securityContext", {"runAsUser": 0}),
        ("priorityClassName", "priorityClassName", "high"),
    ],
)
def test_a_value_about_the_pod_is_its_field(
    render: Render, value: str, field: str, content: Any
) -> None:
    assert pod(render("nvdra-gpu-plugin", {"kubeletPlugin": {value: content}}))[field] == content


def test_affinity_can_be_removed(render: Render) -> None:
    values = {"kubeletPlugin": {"affinity": None}}
    assert "affinity" not in pod(render("nvdra-gpu-plugin", values))
