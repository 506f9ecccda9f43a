# SPDX-License-Identifier: Apache-2.0
"""AdmissionReviews as an API server sends them."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

CLAIMS: Final = "resourceclaims"
TEMPLATES: Final = "resourceclaimtemplates"
KINDS: Final = {CLAIMS: "ResourceClaim", TEMPLATES: "ResourceClaimTemplate"}

PLACE: Final = "\u0000parameters\u0000"


def entry(
    parameters: str, driver: str = "gpu.nvidia.com", requests: Sequence[str] = ()
) -> tuple[str, str]:
    """An entry of `devices.config` as JSON text around the parameters, and the parameters."""
    opaque = {"driver": driver, "parameters": PLACE}
    body: dict[str, Any] = {"requests": list(requests)} if requests else {}
    return json.dumps({**body, "opaque": opaque}, separators=(",", ":")), parameters


def claim_text(
    entries: Sequence[tuple[str, str]],
    *,
    resource: str = CLAIMS,
    version: str = "v1",
    metadata: Mapping[str, Any] | None = None,
    requests: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """A claim or a template as JSON text; parameters are in it as they are."""
    asked = {"name": "gpu", "deviceClassName": "gpu.nvidia.com"}
    if version != "v1beta1":
        asked = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}  # type: ignore[dict-item]
    marks = [f"\u0001{index}\u0001" for index in range(len(entries))]
    spec: dict[str, Any] = {
        "devices": {"requests": list(requests or [asked]), "config": marks},
    }
    document = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": KINDS[resource],
        "metadata": {"name": "train", "namespace": "team", **(metadata or {})},
        "spec": spec if resource == CLAIMS else {"spec": spec},
    }
    text = json.dumps(document, separators=(",", ":"))
    for mark, (around, parameters) in zip(marks, entries, strict=True):
        filled = around.replace(json.dumps(PLACE), parameters)
        text = text.replace(json.dumps(mark), filled)
    return text


def review(
    object_text: str | None,
    *,
    resource: str = CLAIMS,
    version: str = "v1",
    operation: str = "CREATE",
    old_text: str | None = None,
    uid: str = "",
    **request: Any,
) -> bytes:
    """The body of a request."""
    group = {"group": "resource.k8s.io", "version": version}
    asked = {
        "uid": uid or str(uuid.uuid4()),
        "kind": {**group, "kind": KINDS.get(resource, "Pod")},
        "resource": {**group, "resource": resource},
        "name": "train",
        "namespace": "team",
        "operation": operation,
        "userInfo": {"username": "kubernetes-admin", "groups": ["system:masters"]},
        **request,
    }
    body = json.dumps(asked, separators=(",", ":"))[:-1]
    body += f',"object":{object_text or "null"},"oldObject":{old_text or "null"}}}'
    head = '{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":'
    return f"{head}{body}}}".encode()
