"""Disturbs GPUs of a node and heals them: Xids, ECC errors, GPUs that are lost or unplugged.

A GPU has one incident at a time, and what it is shows in the slices: taints, or no devices at all.
"""

import json
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum

from nvdra_testing.crash_campaigns import claim_model
from nvdra_testing.node.plugin import Node

LINGERS_S = 45.0
"""A taint goes when the GPU has been well for 10 s. It is noticed within 10 s, and the plugin may
have to be started."""
XID, LOST = "gpu.nvidia.com/xid", "gpu.nvidia.com/gpu-lost"
"""Keys of taints."""


class Incident(Enum):
    """What happens to a GPU."""

    XID = "XID"
    ECC = "ECC error"
    LOSS = "loss"
    UNPLUGGED = "unplugging"


_TAINTS: Mapping[Incident, Set[str]] = {Incident.XID: {XID}, Incident.LOSS: {LOST}}


@dataclass
class GpuIncidents:
    """The GPUs of one node, by device name `gpu-<index>`.

    Attributes:
        present: The incidents of GPUs that have one.
        healed_at: When GPUs were healed that may still have taints, in monotonic seconds.
    """

    node: Node
    present: dict[str, Incident] = field(default_factory=dict)
    healed_at: dict[str, float] = field(default_factory=dict)

    @property
    def away(self) -> set[str]:
        """The GPUs that do not work."""
        incidents = (Incident.LOSS, Incident.UNPLUGGED)
        return {gpu for gpu, each in self.present.items() if each in incidents}

    def cause(self, gpu: str, incident: Incident) -> None:
        """Disturb a GPU that has no incident. ECC errors end with their report."""
        index = _index(gpu)
        match incident:
            case Incident.XID:
                self.node.simctl("xid", index, "48")
            case Incident.ECC:
                self.node.simctl("ecc", index, "dbe")
                return
            case Incident.LOSS:
                self.node.simctl("gpu", "lose", index, "--xid", "79")
            case Incident.UNPLUGGED:
                self.node.simctl("gpu", "unplug", index)
                self._move_listing(gpu, is_away=True)
        self.present[gpu] = incident

    def heal(self, gpu: str) -> None:
        """End the incident of a GPU."""
        index = _index(gpu)
        match self.present.pop(gpu):
            case Incident.XID:
                self.node.simctl("recovery", index, "none")
            case Incident.LOSS:
                self.node.simctl("gpu", "restore", index)
            case Incident.UNPLUGGED:
                self.node.simctl("gpu", "plug", index)
                self._move_listing(gpu, is_away=False)
        self.healed_at[gpu] = time.monotonic()

    def end_by_reboot(self) -> None:
        """Note that the node was rebooted, which ends all incidents and taints."""
        for gpu, incident in self.present.items():
            if incident is Incident.UNPLUGGED:
                self._move_listing(gpu, is_away=False)
        self.present.clear()
        self.healed_at.clear()

    def note_start(self) -> None:
        """Note that the plugin was started: while it does not run, no taint goes."""
        self.healed_at = dict.fromkeys(self.healed_at, time.monotonic())

    def find_problem(self, offered: Mapping[str, Set[str]], devices: Set[str]) -> str:
        """What is wrong with the published devices; empty if nothing is.

        Args:
            offered: The keys of taints of each published device.
            devices: What the node offers when all its GPUs work.
        """
        hidden = {gpu for gpu, each in self.present.items() if each is Incident.UNPLUGGED}
        # A plugin that has never seen a lost GPU at work cannot describe it.
        lost = {gpu for gpu, each in self.present.items() if each is Incident.LOSS}
        wanted = {each for each in devices if claim_model.gpu_of(each) not in hidden}
        missing = {each for each in wanted - offered.keys() if claim_model.gpu_of(each) not in lost}
        if missing or offered.keys() - wanted:
            return f"the slices lack {sorted(missing)} and have {sorted(offered.keys() - wanted)}"
        for device, taints in offered.items():
            gpu = claim_model.gpu_of(device)
            required = _TAINTS.get(self.present[gpu], set()) if gpu in self.present else set()
            if not taints >= required or (taints > required and not self._may_linger(gpu)):
                return f"{device} has the taints {sorted(taints)}, not {sorted(required)}"
        return ""

    def _may_linger(self, gpu: str) -> bool:
        """Whether taints of an earlier incident need not have gone."""
        if gpu not in self.healed_at:
            return False
        return gpu in self.away or time.monotonic() - self.healed_at[gpu] < LINGERS_S

    def _move_listing(self, gpu: str, *, is_away: bool) -> None:
        """Move what the driver lists of a GPU away, or back."""
        shown = json.loads(self.node.simctl("show", "--json"))["gpus"][int(_index(gpu))]
        listed = self.node.roots.proc / "driver/nvidia/gpus" / shown["bus_id"]
        elsewhere = self.node.kubelet.parent / f"unplugged-{gpu}"
        old, new = (listed, elsewhere) if is_away else (elsewhere, listed)
        old.rename(new)


def _index(gpu: str) -> str:
    return gpu.removeprefix("gpu-")
