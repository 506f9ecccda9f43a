# SPDX-License-Identifier: Apache-2.0
"""A node of a real API server, and the slices that tests publish for it."""

from nvdra_api.ids import DeviceName, NodeName, PoolName
from nvdra_api.meta import JsonObject
from nvdra_api.quantity import Quantity
from nvdra_api.resource.slices import Device, DeviceAttribute, DeviceCapacity, DeviceTaint
from nvdra_runtime.resourceslices.pool import Pool, Slice

from nvdra_testing.control_plane import apiserver

DRIVER = "gpu.nvidia.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class PublishedNode:
    """A node in the API server, and the slices that are published for it."""

    def __init__(self, server: apiserver.ApiServer, name: str, version: str = "v1") -> None:
        self.server = server
        self.name = NodeName(name)
        self.path = SLICES.replace("/v1/", f"/{version}/")
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        self.uid = server.create("/api/v1/nodes", body)["metadata"]["uid"]

    def slices(self) -> list[JsonObject]:
        """The slices in the order of their names, which is the allocator's order."""
        found = self.server.request("GET", f"{self.path}?fieldSelector=spec.nodeName%3D{self.name}")
        return sorted(found["items"], key=lambda each: str(each["metadata"]["name"]))

    def delete_slices(self) -> None:
        """Delete all slices of the node, as a kubelet does when it starts."""
        selector = f"fieldSelector=spec.nodeName%3D{self.name}"
        self.server.request("DELETE", f"{self.path}?{selector}")

    def delete_slice(self, name: str) -> None:
        self.server.request("DELETE", f"{self.path}/{name}")

    def update_slice(self, obj: JsonObject) -> JsonObject:
        edited: JsonObject = self.server.request(
            "PUT", f"{self.path}/{obj['metadata']['name']}", obj
        )
        return edited

    def make_pool(self, *slices: tuple[Device, ...]) -> Pool:
        return Pool(PoolName(self.name), tuple(Slice(devices=each) for each in slices))


def gpu_device(index: int, memory_gib: int = 80, taints: tuple[DeviceTaint, ...] = ()) -> Device:
    return Device(
        name=DeviceName(f"gpu-{index}"),
        attributes={
            "type": DeviceAttribute(string_value="gpu"),
            "index": DeviceAttribute(int_value=index),
            "driverVersion": DeviceAttribute(version_value="570.86.15"),
        },
        capacity={"memory": DeviceCapacity(value=Quantity.binary(memory_gib << 30))},
        taints=taints,
    )


def device_names(slices: list[JsonObject]) -> list[list[str]]:
    return [[d["name"] for d in each["spec"].get("devices") or ()] for each in slices]


def slice_versions(slices: list[JsonObject]) -> list[tuple[str, str]]:
    return [(s["metadata"]["uid"], s["metadata"]["resourceVersion"]) for s in slices]
