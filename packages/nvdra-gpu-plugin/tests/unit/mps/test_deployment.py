# SPDX-License-Identifier: Apache-2.0
"""The Deployment of an MPS control daemon, as it is sent to the API server."""

from dataclasses import replace
from pathlib import Path

import pytest
from nvdra_api.ids import DeviceName, GpuUUID, NodeName
from nvdra_gpu_plugin.devices.steps import ShareByMps
from nvdra_gpu_plugin.mps import deployment
from nvdra_gpu_plugin.mps.deployment import DaemonSettings

ID = "9a0d4a54-1a3b-4d0c-b6a4-54a1f0f0c001-a8cac"
DIRECTORY = f"/var/lib/kubelet/plugins/gpu.nvidia.com/mps/{ID}"
UUID = GpuUUID("GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86")
STEP = ShareByMps(
    gpu=UUID,
    device=DeviceName("gpu-0"),
    devices=(DeviceName("gpu-0"),),
    thread_percentage=50,
    default_limit="10Gi",
    is_multi_user=True,
    run="r1",
    directory=DIRECTORY,
)
SETTINGS = DaemonSettings(
    node=NodeName("node-a"),
    namespace="nvdra-system",
    image="registry.example.com/nvdra:dev",
    pull_policy="IfNotPresent",
    pull_secrets=("regcred",),
    service_account="nvdra-kubeletplugin",
    priority_class="system-node-critical",
    grace_period_s=600,
    requests=(("memory", "256Mi"),),
    limits=(("cpu", "16"), ("memory", "32Gi")),
    feature_gates="MPSSupport=true,",
)


def test_it_is_that_of_the_reference_driver_but_for_its_command() -> None:
    found = deployment.manifest(STEP, [UUID], {UUID: 10240}, SETTINGS)
    name = f"mps-control-daemon-{ID}"
    assert found["metadata"]["name"] == name
    assert found["metadata"]["namespace"] == "nvdra-system"
    assert found["metadata"]["labels"]["app"] == name
    assert found["spec"]["selector"] == {"matchLabels": {"app": name}}
    template = found["spec"]["template"]
    assert template["metadata"]["labels"]["app"] == name
    pod = template["spec"]
    assert pod["affinity"] == {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {
                        "matchFields": [
                            {"key": "metadata.name", "operator": "In", "values": ["node-a"]}
                        ]
                    }
                ]
            }
        }
    }
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["hostPID"]
    assert pod["terminationGracePeriodSeconds"] == 600
    assert pod["serviceAccountName"] == "nvdra-kubeletplugin"
    assert pod["imagePullSecrets"] == [{"name": "regcred"}]
    assert not pod["automountServiceAccountToken"]
    assert {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]} == {
        "driver-root": "/",
        "mps-directory": DIRECTORY,
        "mps-shm-directory": f"{DIRECTORY}/shm",
        "mps-pipe-directory": f"{DIRECTORY}/pipe",
        "mps-log-directory": f"{DIRECTORY}/log",
    }
    (container,) = pod["containers"]
    assert container["name"] == "mps-control-daemon"
    assert container["image"] == "registry.example.com/nvdra:dev"
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["resources"] == {
        "requests": {"memory": "256Mi"},
        "limits": {"cpu": "16", "memory": "32Gi"},
    }
    assert container["securityContext"] == {"privileged": True}
    assert container["command"] == ["nvdra-gpu-plugin", "mps-daemon"]
    probe = container["startupProbe"]["exec"]["command"]
    assert probe == ["cat", "/run/nvidia-mps-ready"], "its own, whatever the daemon's directory has"
    assert f"--ready-file={probe[1]}" in container["args"]
    assert found["spec"]["strategy"] == {"type": "Recreate"}
    assert container["args"][-5:] == [
        "--run=r1",
        "--grace-period=600",
        "--multi-user",
        "--thread-percentage=50",
        "--memory-limit=0=10240M",
    ]
    assert {each["name"]: each["value"] for each in container["env"]} == {
        "CUDA_VISIBLE_DEVICES": UUID,
        "NVIDIA_VISIBLE_DEVICES": "void",
        "FEATURE_GATES": "MPSSupport=true,",
    }
    assert {each["name"]: each["mountPath"] for each in container["volumeMounts"]} == {
        "driver-root": "/driver-root",
        "mps-directory": "/mps",
        "mps-shm-directory": "/driver-root/dev/shm",
        "mps-pipe-directory": "/driver-root/run/nvidia-mps",
        "mps-log-directory": "/driver-root/var/log/nvidia-mps",
    }


def mount_paths(settings: DaemonSettings) -> dict[str, str]:
    pod = deployment.manifest(STEP, [UUID], {}, settings)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    paths = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    for kind in ("pipe", "log"):
        assert f"--{kind}-directory={paths[f'mps-{kind}-directory']}" in container["args"]
    return paths


@pytest.mark.parametrize("has_shm", [False, True])
def test_nothing_is_mounted_in_a_driver_root_that_is_no_system(has_shm: bool) -> None:
    """It can be read-only (Talos), and has nothing of these directories (GKE)."""
    paths = mount_paths(replace(SETTINGS, has_shell=False, has_shm=has_shm))
    assert paths == {
        "driver-root": "/driver-root",
        "mps-directory": "/mps",
        "mps-shm-directory": "/dev/shm",
        "mps-pipe-directory": "/run/nvidia-mps",
        "mps-log-directory": "/var/log/nvidia-mps",
    }


def test_shared_memory_is_the_containers_own_where_the_driver_root_has_none() -> None:
    paths = mount_paths(replace(SETTINGS, has_shm=False))
    assert paths["mps-shm-directory"] == "/dev/shm"
    assert paths["mps-pipe-directory"] == "/driver-root/run/nvidia-mps"


def test_the_driver_root_is_where_the_node_has_it() -> None:
    settings = replace(SETTINGS, driver_root=Path("/home/kubernetes/bin/nvidia"))
    pod = deployment.manifest(STEP, [UUID], {}, settings)["spec"]["template"]["spec"]
    assert pod["volumes"][0]["hostPath"]["path"] == "/home/kubernetes/bin/nvidia"


def test_without_settings_the_defaults_of_kubernetes_and_of_the_daemon_hold() -> None:
    plain = STEP.model_copy(update={"thread_percentage": None, "is_multi_user": False})
    settings = DaemonSettings(NodeName("node-a"), "nvdra-system", "image")
    pod = deployment.manifest(plain, [UUID], {}, settings)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][-2:] == ["--run=r1", "--grace-period=3600"]
    assert not {"serviceAccountName", "priorityClassName", "imagePullSecrets"} & pod.keys()
    assert "imagePullPolicy" not in container


def test_limits_are_told_by_the_index_that_the_daemon_gives_each_device() -> None:
    """UUIDs are no help with all drivers: NVIDIA/k8s-device-plugin#572."""
    uuids = [GpuUUID(f"GPU-{number}") for number in range(3)]
    limits: dict[str, int] = {uuids[2]: 2048, uuids[1]: 1024}
    pod = deployment.manifest(STEP, uuids, limits, SETTINGS)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][-2:] == ["--memory-limit=1=1024M", "--memory-limit=2=2048M"]
    assert container["env"][0]["value"] == "GPU-0,GPU-1,GPU-2"


def test_a_thread_percentage_of_zero_is_told_to_the_daemon() -> None:
    step = STEP.model_copy(update={"thread_percentage": 0})
    pod = deployment.manifest(step, [UUID], {}, SETTINGS)["spec"]["template"]["spec"]
    assert "--thread-percentage=0" in pod["containers"][0]["args"]


def test_a_node_with_a_long_name_is_found_by_a_label() -> None:
    assert len(deployment.node_value(NodeName("n" * 253))) <= 63
    assert deployment.node_value(NodeName("a")) != deployment.node_value(NodeName("b"))
