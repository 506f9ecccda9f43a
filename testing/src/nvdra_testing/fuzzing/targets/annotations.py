# SPDX-License-Identifier: Apache-2.0
"""Annotations and other small texts that a tenant may write, and lines of a watch."""

import json
from contextlib import suppress
from typing import Any, Final

from nvdra_api import names
from nvdra_api.ids import DomainUID
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_runtime.computedomain import (
    announcements,
    claim_annotations,
    domain_settings,
    imex_links,
)
from nvdra_runtime.kube.informer_cache import InformerCache
from pydantic import ValidationError

from nvdra_testing.fuzzing import documents, function_target

_UID: Final = "11111111-2222-4333-8444-555555555555"


def daemon_annotation(case: bytes) -> None:
    """What a daemon's pod says of itself."""
    text = case.decode(errors="surrogatepass") if _is_text(case) else ""
    found = announcements.from_annotations({names.DAEMON_ANNOTATION: text})
    if found is not None:
        announcements.annotation(found)
    imex_links.decode(text)


def domain_annotation(case: bytes) -> None:
    """The settings of a domain, which each user who may write the domain may write."""
    text = case.decode(errors="surrogatepass") if _is_text(case) else ""
    annotations, uid = {names.DOMAIN_SETTINGS_ANNOTATION: text}, DomainUID("u")
    found = domain_settings.from_annotations(annotations, uid, needs_uid=False)
    if found is not None:
        domain_settings.annotation(found, uid)


def claim_annotation(case: bytes) -> None:
    """Where a claim says that its domain is."""
    text = case.decode(errors="replace")
    namespace, _, name = text.partition("/")
    claim_annotations.domain_of(claim_annotations.annotations(namespace, name))


def watch_line(case: bytes) -> None:
    """A line of a watch of domains. Types are checked by the API server, with the CRD's schema."""
    cache = InformerCache(lambda obj: obj)
    cache.apply_watch_line(case.replace(b"\n", b" "))
    for obj in cache.objects().values():
        with suppress(ValidationError):
            ComputeDomain.model_validate(obj)


def _is_text(case: bytes) -> bool:
    """Whether it can be in an annotation: the API server stores UTF-8."""
    try:
        case.decode()
    except UnicodeDecodeError:
        return False
    return True


_ANNOUNCED: Final = {"ip": "10.0.0.1", "ready": True, "message": "", "index": 3, "left": False}
_SETTINGS: Final = {"maxNodesPerImexDomain": 18, "featureGates": "IMEXDaemonsWithDNSNames=true"}
_EVENT: Final[dict[str, Any]] = {
    "type": "MODIFIED",
    "object": {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {
            "name": "ring",
            "namespace": "team",
            "uid": _UID,
            "resourceVersion": "17",
            "generation": 1,
            "annotations": {"a": "b"},
            "finalizers": ["resource.nvidia.com/computeDomain"],
        },
        "spec": {
            "numNodes": 2,
            "channel": {
                "resourceClaimTemplate": {"name": "ring-channel"},
                "allocationMode": "Single",
            },
        },
        "status": {
            "status": "Ready",
            "nodes": [{"name": "n", "ipAddress": "10.0.0.1", "cliqueID": "a.1", "index": 0}],
        },
    },
}

TARGETS: Final = (
    *(
        function_target.target(function, documents.mutations([valid]), [json.dumps(valid).encode()])
        for function, valid in (
            (daemon_annotation, _ANNOUNCED),
            (domain_annotation, _SETTINGS),
            (watch_line, _EVENT),
        )
    ),
    function_target.target(claim_annotation, documents.names(), [b"team/ring"], 0.2),
)
