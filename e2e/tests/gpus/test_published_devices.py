# SPDX-License-Identifier: Apache-2.0
"""What selectors and the scheduler can know about a node's GPUs."""

import re

from nvdra_testing.cluster.installation import Cluster

DEVICES_OF_A_DGX_H100 = 8


def test_every_gpu_of_every_node_is_published_with_what_selectors_need(cluster: Cluster) -> None:
    devices = cluster.devices()
    assert {device.node for device in devices} == set(cluster.nodes())
    for device in devices:
        known = dict(device.attributes)
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", known.pop("uuid"))
        assert re.fullmatch(r"0000:[0-9a-f]{2}:00\.0", known["resource.kubernetes.io/pciBusID"])
        assert known.pop("resource.kubernetes.io/pciBusID") == known.pop("pcieBusID")
        assert re.fullmatch(r"pci0000:[0-9a-f]{2}", known.pop("resource.kubernetes.io/pcieRoot"))
        assert known.pop("resource.kubernetes.io/numaNode") in {0, 1}
        assert known == {
            "type": "gpu",
            "productName": "NVIDIA H100 80GB HBM3",
            "architecture": "Hopper",
            "brand": "Nvidia",
            "cudaComputeCapability": "9.0.0",
            "cudaDriverVersion": "13.0.0",
            "driverVersion": "580.95.5",
            "addressingMode": "HMM",
        }
        assert device.capacity == {"memory": "81559Mi"}
    assert len({device.uuid for device in devices}) == len(devices)


def test_a_node_publishes_as_many_gpus_as_it_has_device_nodes(cluster: Cluster) -> None:
    assert cluster.nodes()
    for node in cluster.nodes():
        nodes = cluster.exec_on_node(node, "sh", "-c", "ls -d /dev/nvidia[0-9]*").split()
        published = [device.name for device in cluster.devices() if device.node == node]
        assert published == sorted(f"gpu-{path.removeprefix('/dev/nvidia')}" for path in nodes)
        assert len(published) == DEVICES_OF_A_DGX_H100


def test_the_plugins_metrics_are_served_at_the_pods_port(cluster: Cluster) -> None:
    assert cluster.nodes()
    for node in cluster.nodes():
        script = (
            "import urllib.request as u; "
            "print(u.urlopen('http://localhost:8080/metrics').read().decode())"
        )
        inside = cluster.driver_namespace.exec(cluster.plugin_pod(node), "python3", "-c", script)
        for name in ("nvidia_dra_prepared_devices", "nvidia_dra_requests_total", "nvdra_devices"):
            assert name in inside
            assert any(sample.startswith(f"{name}{{") for sample in cluster.metrics(node))
