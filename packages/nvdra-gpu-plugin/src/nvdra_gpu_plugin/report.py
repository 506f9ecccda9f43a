"""What the plugin knows right now, as one JSON document: `/debug/status`, for `status` to print.

Read from memory alone: it answers although the API server, the disk or a board does not.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nvdra_api.protocol import identity
from nvdra_api.runtime.http.probes import Check
from nvdra_api.runtime.plugin.held import HeldClaims
from nvdra_api.runtime.plugin.refusals import Refusal, Refusals
from nvdra_api.runtime.process.clock import Clock
from nvdra_api.types import names
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.ids import NodeName

from nvdra_gpu_plugin.__about__ import __version__
from nvdra_gpu_plugin.hardware import Hardware
from nvdra_gpu_plugin.inventory import Gpu
from nvdra_gpu_plugin.records import GpuHolding

Document = dict[str, Any]

MOST_FAILURES = 20


class Report:
    """The state of one driver on one node."""

    def __init__(
        self,
        node: NodeName,
        gpus: Hardware,
        held: HeldClaims[GpuHolding],
        refusals: Refusals,
        ready: Mapping[str, Check],
        clock: Clock,
    ) -> None:
        self._node = node
        self._gpus = gpus
        self._held = held
        self._refusals = refusals
        self._ready = ready
        self._clock = clock
        self._started = clock.now()

    def document(self) -> Document:
        """Everything, as of now; times are RFC 3339 in UTC.

        `devices` are in the order of their PCI addresses; `failures` newest first.
        """
        return {
            "driver": names.GPU_DRIVER,
            "node": self._node,
            "version": __version__,
            "now": _time(self._clock.now()),
            "started": _time(self._started),
            "problems": {name: told for name, check in self._ready.items() if (told := check())},
            "devices": self._devices(),
            "claims": [*map(self._claim, self._held.values()), *self._unreadable()],
            "failures": [_failure(each) for each in self._refusals.latest()[:MOST_FAILURES]],
        }

    def _devices(self) -> list[Document]:
        view = self._gpus.view
        known = () if view.snapshot is None else view.snapshot.inventory.gpus
        problems = {fault.board: fault.text for fault in view.faults}
        found = [self._device(gpu, problems.pop(gpu.name, "")) for gpu in known]
        left_out = [
            {"name": board, "state": "left out", "problem": problem, "claims": []}
            for board, problem in problems.items()
        ]
        return found + left_out

    def _device(self, gpu: Gpu, problem: str) -> Document:
        holders = [
            str(holding.ref)
            for holding in self._held.values()
            if any(device.uuid == gpu.uuid for device in holding.devices)
        ]
        state = "MIG mode, not offered" if gpu.is_mig_enabled else "held" if holders else "free"
        if problem:
            state = "left out"
        return {
            "name": gpu.name,
            "uuid": gpu.uuid,
            "pci": gpu.pci,
            "product": gpu.product_name,
            "driver_version": gpu.driver_version,
            "state": state,
            "claims": holders,
            **({"problem": problem} if problem else {}),
        }

    def _claim(self, holding: GpuHolding) -> Document:
        return {
            **_named(holding.ref),
            "state": "prepared",
            "since": _time(self._held.since(holding.uid)),
            "devices": [
                f"{device.device} (admin)" if device.is_admin else device.device
                for device in holding.devices
            ],
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
