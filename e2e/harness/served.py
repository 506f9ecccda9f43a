"""Manifests in the version of resource.k8s.io that a cluster serves; tests write them in v1.

v1beta2 has v1's shape. v1beta1, all that Kubernetes 1.32 has, says `exactly` without the word.
"""

from collections.abc import Mapping
from typing import Any

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Best first."""

# The first releases that have them; before, users are told that there is no such thing.
PRIORITIZED_LISTS = (1, 33)
EXTENDED_RESOURCES = (1, 34)


def best(served: str) -> str:
    """The version to write in, by the output of `kubectl api-versions`; v1 where there is none."""
    lines = served.split()
    return next((version for version in VERSIONS if f"{GROUP}/{version}" in lines), VERSIONS[0])


def written(manifest: Mapping[str, Any], version: str) -> dict[str, Any]:
    """An object of v1 as that version has it; objects of other groups as they are."""
    if manifest["apiVersion"] != f"{GROUP}/v1":
        return dict(manifest)
    found = {**manifest, "apiVersion": f"{GROUP}/{version}"}
    if version != "v1beta1":
        return found
    if manifest["kind"] == "ResourceClaim":
        found["spec"] = _flat(manifest["spec"])
    if manifest["kind"] == "ResourceClaimTemplate":
        found["spec"] = {**manifest["spec"], "spec": _flat(manifest["spec"]["spec"])}
    if manifest["kind"] == "ResourceSlice":
        devices = [
            {"name": each["name"], "basic": _basic(each)} for each in manifest["spec"]["devices"]
        ]
        found["spec"] = {**manifest["spec"], "devices": devices}
    return found


def device(of_slice: Mapping[str, Any]) -> Mapping[str, Any]:
    """A published device as v1 has it."""
    return {"name": of_slice["name"], **of_slice.get("basic", of_slice)}


def _basic(device: Mapping[str, Any]) -> dict[str, Any]:
    """All of a device but its name."""
    return {key: value for key, value in device.items() if key != "name"}


def _flat(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A claim's spec, each request without `exactly`."""
    requests = [
        {**{key: value for key, value in request.items() if key != "exactly"}, **request["exactly"]}
        if "exactly" in request
        else request
        for request in spec["devices"].get("requests", [])
    ]
    return {**spec, "devices": {**spec["devices"], "requests": requests}}
