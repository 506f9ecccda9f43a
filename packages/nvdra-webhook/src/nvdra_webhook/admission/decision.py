"""Decides whether an object may be stored: its configs must be ones that prepare accepts.

The rules are those of the plugins, in `nvdra_api`: the same strict decoder, defaults and checks.
Source: docs/reference/webhook.md, "Evaluation", "Intended differences".
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from nvdra_api import decoding
from nvdra_api.errors import Reason
from nvdra_api.gates import FeatureGates
from nvdra_api.names import RESOURCE_GROUP
from nvdra_api.v1beta1 import CONFIGS_BY_DRIVER
from nvdra_api.validation import Problem

from nvdra_webhook.admission import claim, review, warnings
from nvdra_webhook.admission.claim import Claim, Opaque
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.admission.review import Cause, Details, Request, Status, Verdict

VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Versions of resource.k8s.io whose objects are examined."""
KINDS: Final = {"resourceclaims": claim.CLAIM, "resourceclaimtemplates": claim.TEMPLATE}
"""The kind of each resource that is examined."""
UNDECODABLE: Final = "undecodable"
"""Instead of a kind, for metrics."""

_ALLOWED: Final = Verdict()
_PREFIXES: Final = {claim.CLAIM: "spec.devices", claim.TEMPLATE: "spec.spec.devices"}


def decide(request: Request, gates: FeatureGates, cluster: ClusterNames) -> Verdict:
    """Return the verdict on a request.

    Args:
        request: What the API server asks.
        gates: The feature gates, the same as the plugins'.
        cluster: What is known of the cluster, for warnings.
    """
    resource = request.resource
    kind = KINDS.get(resource.resource)
    if resource.group != RESOURCE_GROUP or resource.version not in VERSIONS or kind is None:
        return _bad_request(
            "expected resource to be one of the supported versions for resourceclaims or "
            f"resourceclaimtemplates, got {resource}"
        )
    if request.sub_resource or review.is_absent(request.object):
        return _ALLOWED
    try:
        new = claim.decode(request.object)
        if problem := _disagreement(request, new, kind):
            return _bad_request(problem)
        if new.is_being_deleted:
            return _ALLOWED
        old = None
        if request.operation == "UPDATE" and not review.is_absent(request.old_object):
            old = claim.decode(request.old_object)
            if bytes(old.spec) == bytes(new.spec):
                return _ALLOWED
        return _examine(request, new, old, kind, gates, cluster)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return _bad_request(f"object could not be decoded: {error}")


def _examine(
    request: Request,
    new: Claim,
    old: Claim | None,
    kind: str,
    gates: FeatureGates,
    cluster: ClusterNames,
) -> Verdict:
    devices = new.devices(kind)
    before = (old.devices(kind).config if old else None) or ()
    path = _PREFIXES[kind]
    texts: list[str] = []
    causes: list[Cause] = []
    kinds: list[str] = []
    told: list[str] = []
    for index, entry in enumerate(devices.config or ()):
        if entry.opaque is None or entry.opaque.driver not in CONFIGS_BY_DRIVER:
            continue
        if any(map(entry.is_same, before)):
            continue
        where = f"{path}.config[{index}].opaque.parameters"
        text, problems, config_kind = _check(entry.opaque, where, gates, told)
        if problems:
            texts.append(text)
            causes += (_cause(where, problem) for problem in problems)
            kinds.append(config_kind)
    told += warnings.of_devices(devices, path, cluster)
    shown = tuple(told[: warnings.MAX_WARNINGS])
    if not texts:
        return Verdict(None, shown)
    details = Details(new.name or request.name, RESOURCE_GROUP, kind, tuple(causes))
    status = Status(
        status="Failure",
        message=f"{len(texts)} configs failed to validate: {'; '.join(texts)}",
        reason="Invalid",
        code=422,
        details=details,
    )
    return Verdict(status, shown, tuple(kinds))


def _check(
    opaque: Opaque, path: str, gates: FeatureGates, told: list[str]
) -> tuple[str, Sequence[Problem], str]:
    """Check the parameters as prepare does.

    Returns:
        The sentence of the message, the problems, and the kind. No problems: the config is valid,
        and `told` has what may surprise in it.
    """
    if review.is_absent(opaque.parameters):
        problem = Problem("", "parameters are required", remedy=_remedy(opaque.driver))
        return f"object at {path} is invalid: {problem.text}", (problem,), UNDECODABLE
    try:
        config = decoding.decode_config(opaque.driver, bytes(opaque.parameters))
    except decoding.DecodeError as error:
        problems = error.problems
        if not problems[0].field and not problems[0].remedy:
            problems = (Problem("", problems[0].text, remedy=_remedy(opaque.driver)),)
        return f"error decoding object at {path}: {error}", problems, UNDECODABLE
    config = config.normalized(gates)
    found = config.problems(gates)
    if not found:
        told += warnings.of_config(config, path)
        return "", (), config.kind
    texts = ", and ".join(problem.text for problem in found)
    return f"object at {path} is invalid: {texts}", found, config.kind


def _remedy(driver: str) -> str:
    kinds = ", ".join(kind.kind for kind in CONFIGS_BY_DRIVER[driver])
    return f"kinds of {driver} are {kinds}, of resource.nvidia.com/v1beta1"


def _cause(path: str, problem: Problem) -> Cause:
    is_gate = problem.reason is Reason.FEATURE_GATE_DISABLED
    return Cause(
        "FieldValueForbidden" if is_gate else "FieldValueInvalid",
        problem.advice,
        f"{path}.{problem.field}" if problem.field else path,
    )


def _disagreement(request: Request, new: Claim, kind: str) -> str:
    """Say what the object is, if it is not what the request is for."""
    version = f"{RESOURCE_GROUP}/{request.resource.version}"
    asked = request.kind
    for what, found_version, found_kind in (
        ("object", new.api_version, new.kind),
        ("kind", f"{asked.group}/{asked.version}" if asked.kind else "", asked.kind),
    ):
        if (found_version or version, found_kind or kind) != (version, kind):
            return (
                f"the request is for {request.resource.resource} of {version}, but its {what} is "
                f'"{found_kind}" of "{found_version}"; expected {kind} of {version}'
            )
    return ""


def _bad_request(message: str) -> Verdict:
    return Verdict(Status(status="Failure", message=message, reason="BadRequest", code=400))
