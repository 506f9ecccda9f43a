# SPDX-License-Identifier: Apache-2.0
"""Turns a node without our driver, where pods hold claims, into one that the reference driver left.

That is: the kubelet's checkpoint has the CDI names that the reference driver answered with; its CDI
specs, its checkpoint, its locks and the sockets of a killed plugin are there; and there is nothing
of ours. Files are changed from outside, through the first process of the node.
Source: docs/reference/gpu-prepare.md, "Files, directories and sockets", "CDI specs".
"""

import json
import zlib
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from socket import AF_UNIX, socket

import yaml
from nvdra_api import names

from nvdra_testing import yaml_documents
from nvdra_testing.cluster import reference_checkpoint
from nvdra_testing.cluster.installation import Cluster
from nvdra_testing.cluster.reference_checkpoint import Json

_KUBELET = Path("var/lib/kubelet")
_CDI = Path("run/cdi")
_CHECKPOINT = "checkpoint.json"
_LOCKS = ("pu.lock", "cp.lock")
_HOOK = "nvidia-cdi-hook"


def leave_gpu_claims(cluster: Cluster, node: str, claims: Sequence[Json], gpus: Json) -> None:
    """Leave claims of whole GPUs as the reference driver does, and restart the kubelet.

    Args:
        cluster: A cluster from which our driver has been uninstalled.
        node: The node.
        claims: The claims that pods on it hold.
        gpus: Device name → UUID.
    """
    root = _root(cluster, node)
    (ours,) = (root / _CDI).glob(f"{names.GPU_CDI_VENDOR}-device_*.yaml")
    spec = yaml_documents.load(ours.read_text())
    edits = {each["name"]: each["containerEdits"] for each in spec["devices"]}
    answered = _rename_in_kubelet(root, {claim["metadata"]["uid"] for claim in claims})
    prepared: dict[str, Json] = {}
    for claim in claims:
        uid = claim["metadata"]["uid"]
        results = claim["status"]["allocation"]["devices"]["results"]
        devices = [(each, f"{uid}-{each['device']}") for each in results]
        own = {
            **spec,
            "kind": names.GPU_CDI_CLAIM_KIND,
            "devices": [
                {"name": name, "containerEdits": edits[answered[uid, result["device"]]]}
                for result, name in devices
            ],
        }
        file = root / _CDI / f"{names.GPU_CDI_VENDOR}-claim_{uid}.yaml"
        file.write_text(yaml.safe_dump(own, explicit_start=True, sort_keys=False))
        group = [
            {
                "gpu": {
                    "info": {"uuid": gpus[result["device"]]},
                    "device": _device(result, f"{names.GPU_CDI_CLAIM_KIND}={name}"),
                },
                "mig": None,
            }
            for result, name in devices
        ]
        state = {"mpsControlDaemonID": ""}
        prepared[uid] = {
            "status": claim["status"],
            "preparedDevices": [{"devices": group, "configState": state}],
        }
    ours.unlink()
    _leave_state(cluster, node, names.GPU_DRIVER, prepared)
    cluster.lab.run_checked("restart", f"{node}/kubelet")


def leave_channel_claims(cluster: Cluster, node: str, domain: str, claims: Sequence[Json]) -> None:
    """Leave channel claims of a domain as the reference driver does: their CDI names are the same.

    Args:
        cluster: A cluster from which our driver has been uninstalled.
        node: The node.
        domain: The domain's UID.
        claims: The claims that pods on it hold.
    """
    prepared: dict[str, Json] = {}
    for claim in claims:
        uid = claim["metadata"]["uid"]
        (result,) = claim["status"]["allocation"]["devices"]["results"]
        name = f"{names.DOMAIN_CDI_CLAIM_KIND}={uid}-{result['device']}"
        channel = {"channel": {"info": {"id": 0}, "device": _device(result, name)}, "daemon": None}
        state = {"Type": "channel", "ComputeDomain": domain}
        prepared[uid] = {
            "status": claim["status"],
            "preparedDevices": [{"devices": [channel], "configState": state}],
            "name": claim["metadata"]["name"],
            "namespace": claim["metadata"]["namespace"],
        }
    _leave_state(cluster, node, names.COMPUTE_DOMAIN_DRIVER, prepared)


def leftovers(cluster: Cluster, node: str, driver: str) -> list[str]:
    """The names of the reference driver's checkpoint and of its CDI specs of GPU claims."""
    return sorted(file.name for file in _files(cluster, node, driver))


def what_is_read(cluster: Cluster, node: str, driver: str) -> dict[str, str]:
    """What the reference driver and containers of its claims read when it comes back.

    Returns:
        File → text: its checkpoint, and its CDI specs of GPU claims.
    """
    files = _files(cluster, node, driver)
    return {file.name: file.read_text() for file in files}


def cdi_names(cluster: Cluster, node: str, driver: str) -> dict[str, set[str]]:
    """Claim → the CDI names with which the kubelet would create its containers again."""
    state = json.loads((_root(cluster, node) / _KUBELET / "dra_manager_state").read_text())
    return {
        claim["ClaimUID"]: {
            name
            for device in claim["DriverState"][driver]["Devices"]
            for name in device["CDIDeviceIDs"]
        }
        for claim in json.loads(state["Data"])["ClaimInfoStateList"] or ()
        if driver in claim["DriverState"]
    }


def sockets(cluster: Cluster, node: str, driver: str) -> list[str]:
    """The sockets in the directories of a driver and of registrations."""
    root = _root(cluster, node) / _KUBELET
    places = (root / "plugins" / driver, root / "plugins_registry")
    found = [file for place in places for file in place.iterdir() if file.is_socket()]
    return sorted(file.name for file in found if file.name == "dra.sock" or driver in file.name)


def _leave_state(cluster: Cluster, node: str, driver: str, prepared: dict[str, Json]) -> None:
    """Replace the files in the plugin's directory; what daemons of domains have there stays."""
    directory = _root(cluster, node) / _KUBELET / "plugins" / driver
    for file in directory.iterdir():
        if not file.is_dir() and file.name != _HOOK:
            file.unlink()
    for name in _LOCKS:
        (directory / name).touch(0o644)
    boot_id = cluster.exec_on_node(node, "cat", "/proc/sys/kernel/random/boot_id").strip()
    file = directory / _CHECKPOINT
    file.touch(0o600)
    file.write_text(reference_checkpoint.text(prepared, boot_id))
    registry = _root(cluster, node) / _KUBELET / "plugins_registry"
    for path in (directory / "dra.sock", registry / f"{driver}-reg.sock"):
        with closing(socket(AF_UNIX)) as killed:
            killed.bind(str(path))


def _files(cluster: Cluster, node: str, driver: str) -> list[Path]:
    root = _root(cluster, node)
    found = list((root / _KUBELET / "plugins" / driver).glob(_CHECKPOINT))
    if driver == names.GPU_DRIVER:
        found += (root / _CDI).glob(f"{names.GPU_CDI_VENDOR}-claim_*")
    return found


def _rename_in_kubelet(root: Path, claims: set[str]) -> dict[tuple[str, str], str]:
    """Let the kubelet's checkpoint have the reference driver's CDI names of these claims.

    Returns:
        Claim and device → the name of its device in our CDI spec.
    """
    answered: dict[tuple[str, str], str] = {}
    path = root / _KUBELET / "dra_manager_state"
    data = json.loads(json.loads(path.read_text())["Data"])
    for claim in data["ClaimInfoStateList"]:
        uid = claim["ClaimUID"]
        if uid in claims:
            for device in claim["DriverState"][names.GPU_DRIVER]["Devices"]:
                (ours,) = device["CDIDeviceIDs"]
                answered[uid, device["DeviceName"]] = ours.partition("=")[2]
                name = f"{names.GPU_CDI_CLAIM_KIND}={uid}-{device['DeviceName']}"
                device["CDIDeviceIDs"] = [name]
    text = json.dumps(data, separators=(",", ":"))
    temporary = path.with_name(".dra_manager_state")
    temporary.write_text(json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())}))
    temporary.replace(path)
    return answered


def _device(result: Json, cdi_name: str) -> Json:
    return {
        "Requests": [result["request"]],
        "PoolName": result["pool"],
        "DeviceName": result["device"],
        "CDIDeviceIDs": [cdi_name],
    }


def _root(cluster: Cluster, node: str) -> Path:
    return Path(f"/proc/{cluster.lab.init_pid(node)}/root")
