# SPDX-License-Identifier: Apache-2.0
"""The checkpoint file of the reference driver's plugins, as they write it.

Source: docs/reference/gpu-prepare.md, "Checkpoint file"; docs/reference/compute-domain.md,
"Checkpoint".
"""

import json
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

_ORDER = (
    ("allocation", "reservedFor", "devices"),
    ("devices", "nodeSelector", "allocationTimestamp"),
    ("results", "config"),
    ("request", "driver", "pool", "device", "adminAccess", "tolerations", "shareID"),
    ("source", "requests", "opaque"),
    ("driver", "parameters"),
    ("apiGroup", "resource", "name", "uid"),
    ("key", "operator", "values"),
)
"""The fields of a claim's status in the order of the API's types, one tuple for each type."""


def text(claims: Mapping[str, Json], boot_id: str) -> str:
    """The file with both versions and their checksums.

    Args:
        claims: UID → `status`, `preparedDevices`, and what version 2 has besides.
        boot_id: Of the node.
    """
    ordered = {uid: claims[uid] for uid in sorted(claims)}
    first = {
        uid: {"status": _status(each["status"]), "preparedDevices": each["preparedDevices"]}
        for uid, each in ordered.items()
    }
    second = {
        uid: {"checkpointState": "PrepareCompleted", **each, **first[uid]}
        for uid, each in ordered.items()
    }
    v1: Json = {"preparedClaims": first} if first else {}
    claims_of_v2: Json = {"preparedClaims": second} if second else {}
    v2: Json = {"checksum": 0, **claims_of_v2, "nodeBootID": boot_id}
    v2["checksum"] = checksum(_compact(v2))
    outer = checksum(_compact({"checksum": 0, "v1": v1}))
    return _compact({"checksum": outer, "v1": v1, "v2": v2})


def checksum(document: str) -> int:
    """32-bit FNV-1a over the decimal values of the bytes, as Go prints them."""
    printed = f"([]uint8)[{' '.join(str(byte) for byte in document.encode())}]"
    value = 0x811C9DC5
    for byte in printed.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def _compact(document: Json) -> str:
    plain = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _status(value: Any) -> Any:
    """A part of a claim's status with its fields in order; parameters of configs stay so."""
    if isinstance(value, list):
        return [_status(each) for each in value]
    if not isinstance(value, dict):
        return value
    order = next((names for names in _ORDER if set(value) <= set(names)), tuple(value))
    return {
        name: value[name] if name == "parameters" else _status(value[name])
        for name in order
        if name in value
    }
