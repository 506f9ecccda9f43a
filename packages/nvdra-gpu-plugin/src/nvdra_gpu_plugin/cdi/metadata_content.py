# SPDX-License-Identifier: Apache-2.0
"""The device metadata files of a claim, and the CDI specs that mount them: paths and content.

A container sees one file for each request that it names, and in it every device of the request with
its attributes. The content follows from the claim's record alone.

Source: KEP-5304; docs/reference/resource-claims.md, "Device metadata files".
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from nvdra_api import names
from nvdra_api.meta import JsonObject
from nvdra_cdi import files
from nvdra_cdi.model import ContainerEdits, Device, Mount, Spec
from pydantic_core import to_json

from nvdra_gpu_plugin.devices.claim_records import GpuClaimRecord, GpuDeviceRecord

DIRECTORY: Final = "dra-device-metadata"
"""Below the plugin's directory; there is a directory for each claim, and in it one per request."""

SPEC_PREFIX: Final = f"{names.GPU_DRIVER}_metadata_"
"""With this begin the names of the CDI specs; the claim's UID and the request follow."""

_VERSIONS: Final = ("v1beta1", "v1alpha1")
"""Of the group `metadata.resource.k8s.io`, newest first. Readers take the first that they know."""

_IN_CONTAINER: Final = Path("/var/run/kubernetes.io/dra-device-attributes")

_FILE: Final = "metadata.json"

_LONGEST_NAME: Final = 255
"""Bytes in the name of a directory. A namespace and a claim's name together may have more."""
_DIGITS: Final = 16


def claim_directory(plugin_dir: Path, record: GpuClaimRecord) -> Path:
    """Where the claim's metadata files are on the node.

    Claims that follow one another under the same name share it. A name that is too long for a
    directory ends with its digest.
    """
    name = f"{record.namespace}_{record.name}"
    if len(name) > _LONGEST_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
        name = f"{name[: _LONGEST_NAME - _DIGITS - 1]}-{digest}"
    return plugin_dir / DIRECTORY / name


def documents(record: GpuClaimRecord, plugin_dir: Path) -> dict[Path, bytes]:
    """The claim's metadata files: a stream of JSON objects for each request, one per version."""
    if record.metadata is None:
        return {}
    directory = claim_directory(plugin_dir, record)
    return {
        directory / request / _FILE: _stream(record, devices)
        for request, devices in _by_request(record).items()
    }


def spec_paths(record: GpuClaimRecord, cdi_root: Path) -> dict[str, Path]:
    """Where the CDI specs of a claim are, by request."""
    return {
        request: cdi_root / f"{SPEC_PREFIX}{record.uid}_{request}.json"
        for request in _by_request(record)
    }


def specs(record: GpuClaimRecord, plugin_dir: Path, cdi_root: Path) -> dict[Path, bytes]:
    """The CDI specs that mount the metadata files, one for each request, as JSON.

    Raises:
        ValidationError: A name of the claim cannot be part of a CDI document.
    """
    if record.metadata is None:
        return {}
    directory = claim_directory(plugin_dir, record)
    found: dict[Path, bytes] = {}
    for request, path in spec_paths(record, cdi_root).items():
        mount = Mount(
            str(directory / request / _FILE), _container_path(record, request), ("ro", "bind")
        )
        device = Device(f"{record.uid}_{request}", ContainerEdits(mounts=(mount,)))
        spec = Spec(names.GPU_CDI_METADATA_KIND, (device,))
        found[path] = files.encode(spec, "json", str(path))
    return found


def _container_path(record: GpuClaimRecord, request: str) -> str:
    pod_claim = "" if record.metadata is None else record.metadata.pod_claim_name
    claim = Path("resourceclaimtemplates", pod_claim) if pod_claim else None
    claim = claim or Path("resourceclaims", record.name)
    return str(_IN_CONTAINER / claim / request / f"{names.GPU_DRIVER}-metadata.json")


def _by_request(record: GpuClaimRecord) -> Mapping[str, Sequence[GpuDeviceRecord]]:
    """The devices by the request without the subrequest, which is the name of its directory."""
    found: dict[str, list[GpuDeviceRecord]] = {}
    for device in record.devices:
        if device.request and device.metadata is not None:
            found.setdefault(device.request, []).append(device)
    return found


def _stream(record: GpuClaimRecord, devices: Sequence[GpuDeviceRecord]) -> bytes:
    objects = [_object(version, record, devices) for version in _VERSIONS]
    return b"".join(to_json(each, indent=2) + b"\n" for each in objects)


def _object(version: str, record: GpuClaimRecord, devices: Sequence[GpuDeviceRecord]) -> JsonObject:
    assert record.metadata is not None
    pod_claim = record.metadata.pod_claim_name
    requests: dict[str, list[JsonObject]] = {}
    for device in devices:
        assert device.metadata is not None
        requests.setdefault(device.metadata.request, []).append(_device(device))
    return {
        "kind": "DeviceMetadata",
        "apiVersion": f"metadata.resource.k8s.io/{version}",
        "metadata": {
            "name": record.name,
            "namespace": record.namespace,
            "uid": record.uid,
            "generation": record.metadata.generation,
        },
        **({"podClaimName": pod_claim} if pod_claim else {}),
        "requests": [{"name": name, "devices": each} for name, each in requests.items()],
    }


def _device(device: GpuDeviceRecord) -> JsonObject:
    assert device.metadata is not None
    attributes = dict(device.metadata.attributes)
    if device.is_made and device.uuid:
        attributes["uuid"] = {"string": device.uuid}
    return {
        "driver": names.GPU_DRIVER,
        "pool": device.pool,
        "name": device.device,
        **({"attributes": dict(sorted(attributes.items()))} if attributes else {}),
    }
