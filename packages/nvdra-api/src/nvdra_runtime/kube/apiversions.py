# SPDX-License-Identifier: Apache-2.0
"""Chooses a version of resource.k8s.io and converts objects from and to v1.

All other code works on v1. v1beta2 has the same fields. In v1beta1, the fields of a device except
its name are below `basic`, and the fields that v1 has below `exactly` of a request are beside its
name. The fields of claims that are read are the same in all three.
Source: docs/reference/resource-slices.md, "Object shape and API versions";
docs/reference/api-server.md, "API version detection".
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from nvdra_api.meta import JsonObject
from nvdra_api.names import RESOURCE_GROUP

VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""In order of preference."""

GROUP_PATH: Final = f"/apis/{RESOURCE_GROUP}"


def preferred_version(group: Mapping[str, Any]) -> str | None:
    """The version to use, from the answer to GET /apis/resource.k8s.io.

    None if the API server has no supported version, for example only v1alpha3.
    """
    served = {entry.get("version") for entry in group.get("versions") or ()}
    return next((version for version in VERSIONS if version in served), None)


def group_version(version: str) -> str:
    """The `apiVersion` of objects: `v1` → `resource.k8s.io/v1`."""
    return f"{RESOURCE_GROUP}/{version}"


def slices_path(version: str, name: str = "") -> str:
    """Path of the ResourceSlices, or of one."""
    return f"{GROUP_PATH}/{version}/resourceslices" + (f"/{name}" if name else "")


def claim_path(version: str, namespace: str, name: str) -> str:
    """Path of one ResourceClaim."""
    return f"{GROUP_PATH}/{version}/namespaces/{namespace}/resourceclaims/{name}"


def templates_path(version: str, namespace: str = "", name: str = "") -> str:
    """Path of the ResourceClaimTemplates of all namespaces or of one, or of one template."""
    below = f"/namespaces/{namespace}" if namespace else ""
    path = f"{GROUP_PATH}/{version}{below}/resourceclaimtemplates"
    return f"{path}/{name}" if name else path


def template_to_version(version: str, obj: JsonObject) -> JsonObject:
    """A v1 ResourceClaimTemplate in the given version. The argument is not changed."""
    return _template(version, obj, _flat_request if version == "v1beta1" else None)


def template_from_version(version: str, obj: JsonObject) -> JsonObject:
    """A ResourceClaimTemplate of the given version as v1. The argument is not changed."""
    return _template("v1", obj, _nested_request if version == "v1beta1" else None)


def slice_to_version(version: str, obj: JsonObject) -> JsonObject:
    """A v1 ResourceSlice in the given version. The argument is not changed."""
    written = {**obj, "apiVersion": group_version(version), "kind": "ResourceSlice"}
    if version == "v1beta1" and "devices" in obj.get("spec", {}):
        spec = dict(obj["spec"])
        spec["devices"] = [_nested(device) for device in spec["devices"]]
        written["spec"] = spec
    return written


def slice_from_version(version: str, obj: JsonObject) -> JsonObject:
    """A ResourceSlice of the given version as v1. The argument is not changed."""
    read = {**obj, "apiVersion": group_version("v1"), "kind": "ResourceSlice"}
    if version == "v1beta1" and (obj.get("spec") or {}).get("devices"):
        spec = dict(obj["spec"])
        spec["devices"] = [_flat(device) for device in spec["devices"]]
        read["spec"] = spec
    return read


def _template(
    version: str, obj: JsonObject, request: Callable[[JsonObject], JsonObject] | None
) -> JsonObject:
    changed = {**obj, "apiVersion": group_version(version), "kind": "ResourceClaimTemplate"}
    claim = (obj.get("spec") or {}).get("spec") or {}
    requests = (claim.get("devices") or {}).get("requests")
    if request is not None and requests:
        devices = {**claim["devices"], "requests": [request(each) for each in requests]}
        changed["spec"] = {**obj["spec"], "spec": {**claim, "devices": devices}}
    return changed


def _flat_request(request: JsonObject) -> JsonObject:
    rest = {key: value for key, value in request.items() if key != "exactly"}
    return {**rest, **(request.get("exactly") or {})}


def _nested_request(request: JsonObject) -> JsonObject:
    if "firstAvailable" in request:
        return request
    exactly = {key: value for key, value in request.items() if key != "name"}
    return {"name": request.get("name", ""), "exactly": exactly}


def _nested(device: JsonObject) -> JsonObject:
    body = {key: value for key, value in device.items() if key != "name"}
    return {"name": device.get("name", ""), "basic": body}


def _flat(device: JsonObject) -> JsonObject:
    rest = {key: value for key, value in device.items() if key != "basic"}
    return {**rest, **(device.get("basic") or {})}
