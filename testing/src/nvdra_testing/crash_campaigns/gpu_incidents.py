# SPDX-License-Identifier: Apache-2.0
"""Disturbs GPUs of a node and heals them: Xids, ECC errors, GPUs that are lost, fail or have gone.

And programs outside of pods that have a GPU open. A GPU has one incident at a time, and what it is
shows in the slices: taints, or no devices at all.
"""

import time
from collections.abc import Mapping, Set
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum

from nvdra_testing.crash_campaigns import claim_model
from nvdra_testing.hardware.gpu_faults import FAULTS
from nvdra_testing.node.plugin import Node

LINGERS_S = 45.0
"""A taint goes when the GPU has been well for 10 s. It is noticed within 10 s, and the plugin may
have to be started."""
KEEPS_MODE_S = 310.0
"""For five minutes after a monitor has kept a GPU from being switched, it does not offer what needs
the other MIG mode. See `nvdra_gpu_plugin.hardware.mode_refusals`."""
XID, LOST = "gpu.nvidia.com/xid", "gpu.nvidia.com/gpu-lost"
"""Keys of taints."""


class Incident(Enum):
    """What happens to a GPU."""

    XID = "XID"
    ECC = "ECC error"
    LOSS = "loss"
    RESET_REQUIRED = "reset required"
    ERRORS = "unknown errors"
    UNPLUGGED = "unplugging"
    MONITORED = "DCGM holds it"


_TAINTS: Mapping[Incident, Set[str]] = {
    Incident.XID: {XID},
    Incident.LOSS: {LOST},
    Incident.RESET_REQUIRED: {LOST},
}
_POSSIBLE_TAINTS: Mapping[Incident, Set[str]] = {Incident.ERRORS: {LOST}}
"""Those that come when an incident has lasted for half a minute."""

_FAULTS = {
    Incident.LOSS: "lost",
    Incident.RESET_REQUIRED: "reset required",
    Incident.ERRORS: "unknown errors",
    Incident.UNPLUGGED: "absent",
    Incident.MONITORED: "monitored",
}
"""Their names in `FAULTS`; the other incidents are reported once."""

ANSWERS_ERRORS = frozenset({Incident.LOSS, Incident.RESET_REQUIRED, Incident.ERRORS})
"""Incidents during which a plugin that starts cannot describe the GPU."""


@dataclass
class GpuIncidents:
    """The GPUs of one node, by device name `gpu-<index>`.

    Attributes:
        present: The incidents of GPUs that have one.
        healed_at: When GPUs were healed that may still have taints, in monotonic seconds.
        monitored_at: When GPUs were let go by monitors since the plugin was started.
    """

    node: Node
    present: dict[str, Incident] = field(default_factory=dict)
    healed_at: dict[str, float] = field(default_factory=dict)
    monitored_at: dict[str, float] = field(default_factory=dict)
    _faults: dict[str, ExitStack] = field(default_factory=dict)

    @property
    def away(self) -> set[str]:
        """The GPUs that do not work."""
        incidents = (*ANSWERS_ERRORS, Incident.UNPLUGGED)
        return {gpu for gpu, each in self.present.items() if each in incidents}

    @property
    def monitored(self) -> set[str]:
        """The GPUs that a program outside of pods has open."""
        return {gpu for gpu, each in self.present.items() if each is Incident.MONITORED}

    def cause(self, gpu: str, incident: Incident) -> None:
        """Disturb a GPU that has no incident. ECC errors end with their report."""
        index = gpu.removeprefix("gpu-")
        match incident:
            case Incident.XID:
                self.node.simctl("xid", index, "48")
            case Incident.ECC:
                self.node.simctl("ecc", index, "dbe")
                return
            case _:
                fault = FAULTS[_FAULTS[incident]]
                self._faults[gpu] = ExitStack()
                self._faults[gpu].enter_context(fault(self.node, int(index)))
        self.present[gpu] = incident

    def heal(self, gpu: str) -> None:
        """End the incident of a GPU."""
        incident = self.present.pop(gpu)
        if incident is Incident.XID:
            self.node.simctl("recovery", gpu.removeprefix("gpu-"), "none")
        else:
            self._faults.pop(gpu).close()
        self.healed_at[gpu] = time.monotonic()
        if incident is Incident.MONITORED:
            self.monitored_at[gpu] = time.monotonic()

    def end_by_reboot(self) -> None:
        """End all incidents and taints, because the node is rebooted now."""
        for fault in self._faults.values():
            fault.close()
        self._faults.clear()
        self.present.clear()
        self.healed_at.clear()
        self.monitored_at.clear()

    def note_start(self) -> None:
        """Note that the plugin was started: while it does not run, no taint goes.

        It knows nothing of GPUs that could not be switched before.
        """
        self.healed_at = dict.fromkeys(self.healed_at, time.monotonic())
        self.monitored_at.clear()

    def find_problem(self, offered: Mapping[str, Set[str]], devices: Set[str]) -> str:
        """What is wrong with the published devices; empty if nothing is.

        Args:
            offered: The keys of taints of each published device.
            devices: What the node offers when all its GPUs work.
        """
        hidden = {gpu for gpu, each in self.present.items() if each is Incident.UNPLUGGED}
        # A plugin that has never seen a lost GPU at work cannot describe it.
        lost = {gpu for gpu, each in self.present.items() if each in ANSWERS_ERRORS}
        wanted = {each for each in devices if claim_model.gpu_of(each) not in hidden}
        missing = {
            each
            for each in wanted - offered.keys()
            if not (claim_model.gpu_of(each) in lost or self.may_keep_mode(each))
        }
        if missing or offered.keys() - wanted:
            return f"the slices lack {sorted(missing)} and have {sorted(offered.keys() - wanted)}"
        for device, taints in offered.items():
            gpu = claim_model.gpu_of(device)
            incident = self.present.get(gpu)
            required = set() if incident is None else _TAINTS.get(incident, set())
            possible = set() if incident is None else _POSSIBLE_TAINTS.get(incident, set())
            more = taints - required - possible
            if not taints >= required or (more and not self._may_linger(gpu)):
                return f"{device} has the taints {sorted(taints)}, not {sorted(required)}"
        return ""

    def may_keep_mode(self, device: str) -> bool:
        """Whether a device need not be offered, because its GPU could not be switched for it."""
        gpu = claim_model.gpu_of(device)
        left_at = self.monitored_at.get(gpu)
        was_monitored = left_at is not None and time.monotonic() - left_at < KEEPS_MODE_S
        return gpu in self.monitored or was_monitored

    def _may_linger(self, gpu: str) -> bool:
        """Whether taints of an earlier incident need not have gone."""
        if gpu not in self.healed_at:
            return False
        return gpu in self.away or time.monotonic() - self.healed_at[gpu] < LINGERS_S
