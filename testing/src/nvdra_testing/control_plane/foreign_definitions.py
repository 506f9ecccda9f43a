# SPDX-License-Identifier: Apache-2.0
"""The CustomResourceDefinitions of ComputeDomains as other projects install them.

The reference driver's chart and the GPU Operator from 26.7 have them in `crds/`, so that helm knows
no owner. The operator's requires `spec.numNodes`.
Source: docs/reference/compute-domain.md, "ComputeDomain".
"""

from typing import Any

Json = dict[str, Any]

GROUP = "resource.nvidia.com"


def computedomains(*, requires_num_nodes: bool = True) -> Json:
    """The definition of ComputeDomains, by default as the GPU Operator has it."""
    template = {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}},
    }
    mode = {"type": "string", "default": "Single", "enum": ["All", "Single"]}
    spec = {
        "type": "object",
        "required": ["channel", *(["numNodes"] if requires_num_nodes else [])],
        "properties": {
            "numNodes": {"type": "integer", "minimum": 0},
            "channel": {
                "type": "object",
                "required": ["resourceClaimTemplate"],
                "properties": {"resourceClaimTemplate": template, "allocationMode": mode},
            },
        },
        "x-kubernetes-validations": [
            {"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}
        ],
    }
    status = {
        "type": "object",
        "required": ["status"],
        "properties": {"status": _status(), "nodes": _members("name")},
    }
    return _definition("ComputeDomain", {"spec": spec, "status": status}, {"status": {}})


def computedomaincliques() -> Json:
    """The definition of ComputeDomainCliques."""
    return _definition("ComputeDomainClique", {"daemons": _members("nodeName")})


def _definition(kind: str, properties: Json, subresources: Json | None = None) -> Json:
    plural = f"{kind.lower()}s"
    every = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    schema = {
        "type": "object",
        "description": f"{kind} of another project.",
        "properties": {**every, "metadata": {"type": "object"}, **properties},
    }
    version: Json = {
        "name": "v1beta1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    if subresources is not None:
        version["subresources"] = subresources
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _members(key: str) -> Json:
    text = {"type": "string"}
    fields = {key: text, "ipAddress": text, "cliqueID": text, "index": {"type": "integer"}}
    return {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
        "items": {
            "type": "object",
            "required": [key, "ipAddress", "cliqueID"],
            "properties": {**fields, "status": _status()},
        },
    }


def _status() -> Json:
    return {"type": "string", "default": "NotReady", "enum": ["Ready", "NotReady"]}
