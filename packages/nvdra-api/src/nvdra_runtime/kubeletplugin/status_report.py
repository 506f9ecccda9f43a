# SPDX-License-Identifier: Apache-2.0
"""The state of a plugin as one JSON document: `/debug/status`, which the command `status` prints.

It is read from memory, so that it answers even if the API server, the disk or a device does not.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic

from nvdra_api.ids import NodeName
from nvdra_api.resource.claims import ClaimRef

from nvdra_runtime.claims.failures import ClaimFailure, FailureRecorder
from nvdra_runtime.claims.prepared_claims import PreparedClaims
from nvdra_runtime.claims.records import RecordT
from nvdra_runtime.http import probes
from nvdra_runtime.http.probes import Check
from nvdra_runtime.process.clock import Clock
from nvdra_runtime.telemetry import trace_ids

Document = dict[str, Any]

DescribeDevices = Callable[[], list[Document]]
"""Describes the devices, with one document for each.

Each has `name`, `state` and `claims` (a list of texts), `problem` if there is one, `note` if there
is more to say for people, and further keys of the driver.
"""

MAX_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Instance:
    """The instance that reports.

    Attributes:
        driver: The driver's name.
        version: Its release.
        node: This node.
        started: When it was started.
    """

    driver: str
    version: str
    node: NodeName
    started: datetime


class StatusReport(Generic[RecordT]):
    """The state of one driver on one node."""

    def __init__(
        self,
        driver: str,
        version: str,
        node: NodeName,
        devices: DescribeDevices,
        prepared_claims: PreparedClaims[RecordT],
        failures: FailureRecorder,
        readiness_checks: Mapping[str, Check],
        clock: Clock,
    ) -> None:
        self._instance = Instance(driver, version, node, clock.now())
        self._devices = devices
        self._prepared_claims = prepared_claims
        self._failures = failures
        self._readiness_checks = readiness_checks
        self._clock = clock

    def document(self) -> Document:
        """The current state. Times are RFC 3339 in UTC.

        `problems` keep the plugin from being ready; `remarks` do not. Both are by readiness check.
        `devices` are in the driver's order, `failures` newest first.
        """
        return {
            **_process(self._instance, self._readiness_checks, self._clock.now()),
            "devices": self._devices(),
            "claims": [*map(self._claim, self._prepared_claims.values()), *self._unreadable()],
            "failures": [_failure(each) for each in self._failures.latest()[:MAX_FAILURES]],
        }

    def _claim(self, record: RecordT) -> Document:
        return {
            **_claim_identity(record.ref),
            "state": "left over" if record.is_released else "prepared",
            "since": _rfc3339(self._prepared_claims.prepared_at(record.uid)),
            "devices": [device.display_name for device in record.devices],
            "pods": list(record.pod_names or record.pods),
        }

    def _unreadable(self) -> list[Document]:
        return [
            {
                **_claim_identity(ref),
                "state": "unreadable record",
                "since": _rfc3339(self._prepared_claims.prepared_at(ref.uid)),
                "devices": [],
                "pods": [],
            }
            for ref in self._prepared_claims.unreadable.values()
        ]


def waiting_document(
    instance: Instance, checks: Mapping[str, Check], now: datetime, active: str = ""
) -> Document:
    """The state of an instance that has not opened the state file yet.

    Args:
        instance: The instance that waits.
        checks: The readiness checks.
        now: The current time.
        active: The active instance, which knows devices and claims; empty if there is none.
    """
    return {
        **_process(instance, checks, now),
        "standing_by_for": active,
        "devices": [],
        "claims": [],
        "failures": [],
    }


def _process(instance: Instance, checks: Mapping[str, Check], now: datetime) -> Document:
    """What is known of the process in any phase."""
    checked = {name: check() for name, check in checks.items()}
    results = {name: text for name, text in checked.items() if text}
    return {
        "driver": instance.driver,
        "node": instance.node,
        "version": instance.version,
        "now": _rfc3339(now),
        "started": _rfc3339(instance.started),
        "problems": {name: text for name, text in results.items() if probes.is_failure(text)},
        "remarks": {name: text for name, text in results.items() if not probes.is_failure(text)},
    }


def _failure(failure: ClaimFailure) -> Document:
    return {
        **_claim_identity(failure.ref),
        "operation": failure.operation,
        "reason": failure.reason,
        "message": failure.message,
        "since": _rfc3339(failure.since),
        "latest": _rfc3339(failure.latest),
        "count": failure.count,
        "ended": failure.ended and _rfc3339(failure.ended),
        "trace_id": trace_ids.trace_id(failure.ref.uid),
    }


def _claim_identity(ref: ClaimRef) -> Document:
    return {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}


def _rfc3339(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
