"""What a plugin knows right now, as one JSON document: `/debug/status`, for `status` to print.

Read from memory alone: it answers although the API server, the disk or a device does not.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic

from nvdra_api.protocol import identity
from nvdra_api.runtime.http import probes
from nvdra_api.runtime.http.probes import Check
from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.refusals import Refusal, Refusals
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.holdings import H
from nvdra_api.types.ids import NodeName

Document = dict[str, Any]

Devices = Callable[[], list[Document]]
"""The devices as they are now, a document each.

All have `name`, `state` and `claims` (a list of texts); `problem` where there is one; and what else
the driver tells of them.
"""

MOST_FAILURES = 20


class Report(Generic[H]):
    """The state of one driver on one node."""

    def __init__(
        self,
        driver: str,
        version: str,
        node: NodeName,
        devices: Devices,
        held: HeldClaims[H],
        refusals: Refusals,
        ready: Mapping[str, Check],
        clock: Clock,
    ) -> None:
        self._driver = driver
        self._version = version
        self._node = node
        self._devices = devices
        self._held = held
        self._refusals = refusals
        self._ready = ready
        self._clock = clock
        self._started = clock.now()

    def document(self) -> Document:
        """Everything, as of now; times are RFC 3339 in UTC.

        `problems` are what keeps the plugin from being ready, `remarks` what is well and worth a
        word, both by check; `devices` are in the driver's order; `failures` newest first.
        """
        told = {name: said for name, check in self._ready.items() if (said := check())}
        return {
            "driver": self._driver,
            "node": self._node,
            "version": self._version,
            "now": _time(self._clock.now()),
            "started": _time(self._started),
            "problems": {name: said for name, said in told.items() if probes.is_failure(said)},
            "remarks": {name: said for name, said in told.items() if not probes.is_failure(said)},
            "devices": self._devices(),
            "claims": [*map(self._claim, self._held.values()), *self._unreadable()],
            "failures": [_failure(each) for each in self._refusals.latest()[:MOST_FAILURES]],
        }

    def _claim(self, holding: H) -> Document:
        return {
            **_named(holding.ref),
            "state": "prepared",
            "since": _time(self._held.since(holding.uid)),
            "devices": [device.label for device in holding.devices],
            "pods": list(holding.pod_names or holding.pods),
        }

    def _unreadable(self) -> list[Document]:
        return [
            {
                **_named(ref),
                "state": "unreadable record",
                "since": _time(self._held.since(ref.uid)),
                "devices": [],
                "pods": [],
            }
            for ref in self._held.unreadable.values()
        ]


def _failure(refusal: Refusal) -> Document:
    return {
        **_named(refusal.ref),
        "operation": refusal.operation,
        "reason": refusal.reason,
        "message": refusal.advice,
        "since": _time(refusal.since),
        "latest": _time(refusal.latest),
        "count": refusal.count,
        "ended": refusal.ended and _time(refusal.ended),
        "trace_id": identity.trace_id(refusal.ref.uid),
    }


def _named(ref: ClaimRef) -> Document:
    return {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid}


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
