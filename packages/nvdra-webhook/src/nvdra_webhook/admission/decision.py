# SPDX-License-Identifier: Apache-2.0
"""Decides whether an object may be stored: its configs must be ones that prepare accepts.

The rules are those of the plugins, in `nvdra_api`: the same strict decoder, defaults and checks.
Source: docs/reference/webhook.md, "Evaluation", "Intended differences".
"""

import functools
import itertools
from dataclasses import dataclass
from typing import Final

from msgspec import Raw
from nvdra_api import decoding, json_text
from nvdra_api.errors import Reason
from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.names import RESOURCE_GROUP
from nvdra_api.v1beta1 import (
    CONFIGS_BY_DRIVER,
    DeviceConfig,
    GpuConfig,
    MigDeviceConfig,
    VfioDeviceConfig,
)
from nvdra_api.validation import Problem

from nvdra_webhook.admission import claim, passthrough, review, warnings
from nvdra_webhook.admission.claim import Claim
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.admission.requests import ValidConfig
from nvdra_webhook.admission.review import Cause, Details, Request, Status, Verdict

VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Versions of resource.k8s.io whose objects are examined."""
KINDS: Final = {"resourceclaims": claim.CLAIM, "resourceclaimtemplates": claim.TEMPLATE}
"""The kind of each resource that is examined."""
KEPT_CHECKS: Final = 1024
LONGEST_KEPT: Final = 1024
"""How many checks are kept, and of parameters of how many bytes, which
bounds the memory that they take."""
UNDECODABLE: Final = "undecodable"
"""Instead of a kind, for metrics."""

_ALLOWED: Final = Verdict()
_PREFIXES: Final = {claim.CLAIM: "spec.devices", claim.TEMPLATE: "spec.spec.devices"}


@dataclass(frozen=True, slots=True)
class _Checked:
    """What prepare would say of parameters, wherever in an object they are.

    Attributes:
        kind: Kind of the config, for metrics.
        problems: What is wrong; empty if the config is valid.
        sentence: The message of the problems, before and after the field that has them.
        warnings: What may surprise in a valid config: a path below the field, and a text.
        valid: What a valid config says; None if it has problems.
    """

    kind: str
    problems: tuple[Problem, ...] = ()
    sentence: tuple[str, str] = ("", "")
    warnings: tuple[tuple[str, str], ...] = ()
    valid: ValidConfig | None = None


class Examiner:
    """Gives verdicts. What it has said of the last parameters is kept.

    Claims that are made from one template repeat its parameters to the letter, thousands of times.
    """

    def __init__(self, gates: FeatureGates) -> None:
        """Use these feature gates, the same as the plugins'."""
        self._gates = gates
        self._has_passthrough = gates.is_enabled(Feature.PASSTHROUGH)
        self._check_again = functools.lru_cache(maxsize=KEPT_CHECKS)(self._check)

    def decide(self, request: Request, cluster: ClusterNames) -> Verdict:
        """Return the verdict on a request.

        Args:
            request: What the API server asks.
            cluster: What is known of the cluster, for warnings.
        """
        resource = request.resource
        kind = KINDS.get(resource.resource)
        if resource.group != RESOURCE_GROUP or resource.version not in VERSIONS or kind is None:
            return bad_request(
                "expected resource to be one of the supported versions for resourceclaims or "
                f"resourceclaimtemplates, got {resource}"
            )
        if request.sub_resource or review.is_absent(request.object):
            return _ALLOWED
        try:
            new = claim.decode(request.object)
            if problem := _disagreement(request, new, kind):
                return bad_request(problem)
            if new.is_being_deleted:
                return _ALLOWED
            old = None
            if request.operation == "UPDATE" and not review.is_absent(request.old_object):
                old = claim.decode(request.old_object)
                if old.spec == new.spec:
                    return _ALLOWED
            return self._examine(request, new, old, kind, cluster)
        except review.UNDECODABLE as error:
            found = json_text.find_excess(bytes(request.object))
            return bad_request(f"object could not be decoded: {found or error}")

    def _examine(
        self, request: Request, new: Claim, old: Claim | None, kind: str, cluster: ClusterNames
    ) -> Verdict:
        devices = new.devices(kind)
        path = _PREFIXES[kind]
        stored = (old.devices(kind).config if old else None) or ()
        before = {entry.content() for entry in stored} if stored else frozenset()
        texts: list[str] = []
        causes: list[Cause] = []
        wrong_kinds: list[str] = []
        valid: dict[int, ValidConfig] = {}
        told: list[str] = []
        for index, entry in enumerate(devices.config or ()):
            opaque = entry.opaque
            if opaque is None or opaque.driver not in CONFIGS_BY_DRIVER:
                continue
            if before and entry.content() in before:
                continue
            where = f"{path}.config[{index}].opaque.parameters"
            parameters = bytes(opaque.parameters)
            is_short = len(parameters) <= LONGEST_KEPT
            check = self._check_again if is_short else self._check
            checked = check(opaque.driver, parameters)
            if checked.problems:
                begin, end = checked.sentence
                texts.append(f"{begin}{where}{end}")
                causes += [_cause(where, problem) for problem in checked.problems]
                wrong_kinds.append(checked.kind)
            elif checked.valid is not None:
                valid[index] = checked.valid
            told += [f"{where}{below}: {text}" for below, text in checked.warnings]
        of_devices = [told, warnings.of_devices(devices, path, valid, cluster, self._gates)]
        if self._has_passthrough:
            for refused in passthrough.refusals(devices, valid):
                where = f"{path}.config[{refused.config}]{refused.field}"
                texts.append(f"object at {where} is invalid: {refused.text}")
                causes.append(Cause("FieldValueInvalid", refused.text, where))
                wrong_kinds.append(valid[refused.config].kind)
            of_devices.append(passthrough.warnings(devices, path, valid, request.namespace))
        all_warnings = itertools.chain.from_iterable(of_devices)
        shown = tuple(itertools.islice(all_warnings, warnings.MAX_WARNINGS))
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
        return Verdict(status, shown, tuple(wrong_kinds))

    def _check(self, driver: str, parameters: bytes) -> _Checked:
        """Check parameters as prepare does."""
        if review.is_absent(Raw(parameters)):
            problem = Problem("", "parameters are required", remedy=decoding.kinds_remedy(driver))
            sentence = ("object at ", f" is invalid: {problem.text}")
            return _Checked(UNDECODABLE, (problem,), sentence)
        try:
            config = decoding.decode_config(driver, parameters)
        except decoding.DecodeError as error:
            sentence = ("error decoding object at ", f": {error}")
            return _Checked(UNDECODABLE, error.problems, sentence)
        config = config.normalized(self._gates)
        found = config.problems(self._gates)
        if found:
            texts = ", and ".join(problem.text for problem in found)
            return _Checked(config.kind, found, ("object at ", f" is invalid: {texts}"))
        found_warnings = tuple(warnings.of_config(config))
        return _Checked(config.kind, warnings=found_warnings, valid=_valid(config))


def _valid(config: DeviceConfig) -> ValidConfig:
    """What of a valid config, with its defaults, the claim's other parts are compared with."""
    if isinstance(config, GpuConfig | MigDeviceConfig):
        is_shared = config.sharing is not None
        return ValidConfig(config.kind, is_mps=config.mps is not None, is_shared=is_shared)
    if isinstance(config, VfioDeviceConfig) and config.iommu is not None:
        return ValidConfig(
            config.kind,
            backend_policy=config.iommu.backend_policy or "",
            has_api_device=bool(config.iommu.enable_api_device),
        )
    return ValidConfig(config.kind)


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


def bad_request(message: str) -> Verdict:
    """Refuse a request that cannot be examined."""
    return Verdict(Status(status="Failure", message=message, reason="BadRequest", code=400))
