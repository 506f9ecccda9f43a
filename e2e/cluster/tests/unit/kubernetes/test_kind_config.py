# SPDX-License-Identifier: Apache-2.0
"""The configuration of a kind cluster and the commands for it."""

from pathlib import Path

import pytest
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes import kind_config

FOLDERS = {"nvdra-two-worker": Path("/l/1"), "nvdra-two-worker2": Path("/l/2")}
LAB = kind_config.plan("two", 2, "dgx-h100", "1.36.3", {})
IMAGE = f"kindest/node:{kind_config.NODE_IMAGES[1, 36]}"


def test_nodes_have_the_names_that_kind_gives_them() -> None:
    assert [node.name for node in LAB.nodes] == list(FOLDERS)
    assert (LAB.provider, kind_config.cluster_name(LAB)) == ("kind", "nvdra-two")
    assert [node.name for node in kind_config.plan("a", 1, "dgx-h100", "1.36.3", {}).nodes] == [
        "nvdra-a-worker"
    ]


def test_a_release_that_kind_has_no_image_of_names_its_patch_release() -> None:
    lab = kind_config.plan("old", 1, "dgx-h100", "1.33.13", {})
    found = kind_config.config(lab, {"nvdra-old-worker": Path("/l")})
    assert found["nodes"][0]["image"] == "kindest/node:v1.33.13"
    mine = kind_config.config(lab, {"nvdra-old-worker": Path("/l")}, "example.com/node:1")
    assert mine["nodes"][0]["image"] == "example.com/node:1"


def test_every_worker_has_its_own_hardware_and_the_label_of_gpu_nodes() -> None:
    assert kind_config.config(LAB, FOLDERS) == {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": "nvdra-two",
        "containerdConfigPatches": [
            '[plugins."io.containerd.grpc.v1.cri"]\n'
            "  enable_cdi = true\n"
            '  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]\n'
        ],
        "nodes": [
            {"role": "control-plane", "image": IMAGE},
            *(
                {
                    "role": "worker",
                    "image": IMAGE,
                    "labels": {"nvidia.com/gpu.present": "true"},
                    "extraMounts": [{"hostPath": folder, "containerPath": "/run/nvidia"}],
                }
                for folder in ("/l/1", "/l/2")
            ),
        ],
    }


def test_an_older_release_gets_the_gates_and_api_versions_that_the_driver_needs() -> None:
    lab = kind_config.plan("old", 1, "dgx-h100", "1.33.13", {"DRAAdminAccess": False})
    found = kind_config.config(lab, {"nvdra-old-worker": Path("/l")})
    assert found["runtimeConfig"] == {
        "resource.k8s.io/v1beta2": "true",
        "resource.k8s.io/v1beta1": "true",
        "resource.k8s.io/v1alpha3": "true",
    }
    assert found["featureGates"] == {
        "DynamicResourceAllocation": True,
        "DRAAdminAccess": False,
        "DRADeviceTaints": True,
        "DRAPartitionableDevices": True,
        "DRAPrioritizedList": True,
        "ResourceHealthStatus": True,
    }


def test_the_image_of_the_nodes_can_be_another_one() -> None:
    found = kind_config.config(LAB, FOLDERS, "registry.example.com/node:1")
    assert {node["image"] for node in found["nodes"]} == {"registry.example.com/node:1"}


def test_a_name_that_is_none_and_a_lab_without_nodes_are_refused() -> None:
    with pytest.raises(LabError, match="--name"):
        kind_config.plan("No Name", 1, "dgx-h100", "1.36.3", {})
    with pytest.raises(LabError, match="--nodes 0"):
        kind_config.plan("none", 0, "dgx-h100", "1.36.3", {})


def test_a_command_on_a_node_has_a_terminal_only_where_the_caller_has_one() -> None:
    argv = kind_config.exec_command("n", {"A": "b"}, ["sh", "-c", "x"], has_terminal=False)
    assert argv == ("docker", "exec", "--interactive", "--env=A=b", "n", "sh", "-c", "x")
    assert "--tty" in kind_config.exec_command("n", {}, ["sh"], has_terminal=True)
