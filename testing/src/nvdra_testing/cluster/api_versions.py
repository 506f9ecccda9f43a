# SPDX-License-Identifier: Apache-2.0
"""Converts manifests to the version of resource.k8s.io that a cluster serves; tests write v1.

v1beta2 has the same fields as v1. v1beta1, the only version in Kubernetes 1.32, has no `exactly`.
"""

from collections.abc import Mapping
from typing import Any

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""The preferred version first."""

# The first releases with these features, which labs switch on; earlier releases lack them.
PRIORITIZED_LISTS_SINCE = (1, 33)
EXTENDED_RESOURCES_SINCE = (1, 34)
PARTITIONS_SINCE = (1, 33)
SHARES_SINCE = (1, 34)


def preferred_version(served: str) -> str:
    """The version to use, by the output of `kubectl api-versions`; v1 if there is none."""
    lines = served.split()
    return next((version for version in VERSIONS if f"{GROUP}/{version}" in lines), VERSIONS[0])


def convert_manifest(manifest: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Convert an object of v1 to a version; objects of other groups stay as they are."""
    if manifest["apiVersion"] != f"{GROUP}/v1":
        return dict(manifest)
    found = {**manifest, "apiVersion": f"{GROUP}/{version}"}
    if version != "v1beta1":
        return found
    if manifest["kind"] == "ResourceClaim":
        found["spec"] = _flatten_requests(manifest["spec"])
    if manifest["kind"] == "ResourceClaimTemplate":
        found["spec"] = {**manifest["spec"], "spec": _flatten_requests(manifest["spec"]["spec"])}
    if manifest["kind"] == "ResourceSlice":
        devices = [
            {"name": each["name"], "basic": _basic_device(each)}
            for each in manifest["spec"]["devices"]
        ]
        found["spec"] = {**manifest["spec"], "devices": devices}
    return found


def device_as_v1(of_slice: Mapping[str, Any]) -> Mapping[str, Any]:
    """A published device in the form of v1."""
    return {"name": of_slice["name"], **of_slice.get("basic", of_slice)}


def _basic_device(device: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of a device but its name."""
    return {key: value for key, value in device.items() if key != "name"}


def _flatten_requests(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A claim's spec with the fields of `exactly` in the request itself."""
    requests = [
        {**{key: value for key, value in request.items() if key != "exactly"}, **request["exactly"]}
        if "exactly" in request
        else request
        for request in spec["devices"].get("requests", [])
    ]
    return {**spec, "devices": {**spec["devices"], "requests": requests}}
