"""A node of a real API server, the devices that tests publish on it, and what is published then."""

import apiserver
from nvdra_api.protocol.apiversions import JsonObject
from nvdra_api.types.ids import DeviceName, NodeName, PoolName
from nvdra_api.types.quantity import Quantity
from nvdra_api.types.slices import Attribute, Device, Pool, Slice, Taint

DRIVER = "gpu.nvidia.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class Node:
    """A node in the API server, and what is published on it."""

    def __init__(self, server: apiserver.ApiServer, name: str, version: str = "v1") -> None:
        self.server = server
        self.name = NodeName(name)
        self.path = SLICES.replace("/v1/", f"/{version}/")
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        self.uid = server.create("/api/v1/nodes", body)["metadata"]["uid"]

    def slices(self) -> list[JsonObject]:
        """In the order of their names, which is the allocator's."""
        found = self.server.call("GET", f"{self.path}?fieldSelector=spec.nodeName%3D{self.name}")
        return sorted(found["items"], key=lambda each: str(each["metadata"]["name"]))

    def wipe(self) -> None:
        """What a kubelet does when it starts."""
        selector = f"fieldSelector=spec.nodeName%3D{self.name}"
        self.server.call("DELETE", f"{self.path}?{selector}")

    def delete(self, name: str) -> None:
        self.server.call("DELETE", f"{self.path}/{name}")

    def edit(self, obj: JsonObject) -> JsonObject:
        edited: JsonObject = self.server.call("PUT", f"{self.path}/{obj['metadata']['name']}", obj)
        return edited

    def pool(self, *slices: tuple[Device, ...]) -> Pool:
        return Pool(PoolName(self.name), tuple(Slice(devices=each) for each in slices))


def gpu(index: int, memory_gib: int = 80, taints: tuple[Taint, ...] = ()) -> Device:
    return Device(
        name=DeviceName(f"gpu-{index}"),
        attributes={
            "type": Attribute("string", "gpu"),
            "index": Attribute("int", index),
            "driverVersion": Attribute("version", "570.86.15"),
        },
        capacity={"memory": Quantity.binary(memory_gib << 30)},
        taints=taints,
    )


def devices(slices: list[JsonObject]) -> list[list[str]]:
    return [[d["name"] for d in each["spec"].get("devices") or ()] for each in slices]


def identities(slices: list[JsonObject]) -> list[tuple[str, str]]:
    return [(s["metadata"]["uid"], s["metadata"]["resourceVersion"]) for s in slices]
