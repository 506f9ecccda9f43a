# SPDX-License-Identifier: Apache-2.0
"""What the preparation of a claim does to hardware, as values in the claim's record.

Each step can be done, undone, and done again after a reboot; it says by itself what is to be there.
The record is `started` before the first step has an effect, so that a successor finds what to undo.
"""

from typing import Annotated, ClassVar, Literal

from nvdra_api.ids import DeviceName, GpuUUID, MigUUID, PciAddress
from nvdra_api.v1beta1.sharing import Interval
from nvdra_runtime.claims.records import Change
from pydantic import BaseModel, ConfigDict, Field

from nvdra_gpu_plugin.devices.mig_profiles import Placement


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class MadeInstance(_Frozen):
    """The instances of NVML that a MIG device consists of. Their ids are used again for others."""

    gpu_instance: int
    compute_instance: int
    uuid: MigUUID


class GpuChange(Change):
    """A change of one GPU, or of a part of it."""

    gpu: GpuUUID

    @property
    def place(self) -> str:
        """The GPU."""
        return self.gpu


class MakeMigDevice(GpuChange):
    """Make a MIG device, and switch MIG mode on if it is off. Its inverse destroys the device."""

    FOUND: ClassVar[frozenset[str]] = frozenset({"keeps_mode", "made_instance", "made"})

    step: Literal["make-mig-device"] = "make-mig-device"
    profile_index: int
    """NVML's index of the GPU instance's profile."""
    profile_id: int
    compute_slices: int
    start: int
    size: int
    """First memory slice of the GPU instance, and how many it has."""
    is_graphics: bool = False
    keeps_mode: bool = False
    """MIG mode was on before the claims of this GPU, and stays on after them."""
    made_instance: int | None = None
    """The id of the GPU instance that was made for the device, while `made` is not known yet."""
    made: MadeInstance | None = None
    """What was made; None while the device is being made, in the boot that the record names."""

    @property
    def has_made(self) -> bool:
        """Whether the device was made."""
        return self.made is not None

    @property
    def placement(self) -> Placement:
        """The memory slices that it takes."""
        return Placement(self.start, self.size)

    def begun(self) -> "MakeMigDevice":
        """The step before it is done again: what it has made is its own if it is still there."""
        instance = self.made.gpu_instance if self.made else self.made_instance
        return self.model_copy(update={"made_instance": instance, "made": None})

    def anew(self) -> "MakeMigDevice":
        """The step as if it had made nothing."""
        return self.model_copy(update={"made_instance": None, "made": None})


class DisableMigMode(GpuChange):
    """Switch MIG mode off, so that the whole GPU can be used. It has no inverse."""

    step: Literal["disable-mig-mode"] = "disable-mig-mode"

    @property
    def plan(self) -> None:
        """Whether MIG mode must go first depends on the moment."""


class LeaveMigMode(GpuChange):
    """Leave MIG mode, which claims have switched on: all that is left to undo of a claim.

    It stands in records of claims that have ended, and only its inverse has an effect.
    """

    step: Literal["leave-mig-mode"] = "leave-mig-mode"
    pci: PciAddress
    """Of the GPU, whose lock undoing it needs."""

    @property
    def plan(self) -> None:
        """No claim needs it."""


class GpuSharing(_Frozen):
    """How a GPU divides its time among processes.

    Attributes:
        interval: How long a process computes before another one has its turn; None if the driver
            does not say.
        compute_mode: `nvmlComputeMode_t`: 0 lets several processes use the GPU.
    """

    interval: Interval | None
    compute_mode: int


class ShareByTime(GpuChange):
    """Let processes take turns on a GPU. Its inverse restores how it was shared before."""

    FOUND: ClassVar[frozenset[str]] = frozenset({"former"})

    step: Literal["share-by-time"] = "share-by-time"
    interval: Interval
    former: GpuSharing | None = None
    """As it was in this boot before the claim was prepared; None until it was looked at."""


class SetComputeMode(GpuChange):
    """Let one process alone use a GPU: the MPS server of its clients. Its inverse restores it."""

    EXCLUSIVE: ClassVar[int] = 3
    """`NVML_COMPUTEMODE_EXCLUSIVE_PROCESS`."""

    FOUND: ClassVar[frozenset[str]] = frozenset({"former"})

    step: Literal["set-compute-mode"] = "set-compute-mode"
    mode: int
    """`nvmlComputeMode_t`."""
    former: int | None = None
    """As it was in this boot before the claim was prepared; None until it was looked at."""


class ShareByMps(GpuChange):
    """Run an MPS control daemon for devices of a claim. Its inverse stops the daemon.

    Attributes:
        gpu: The GPU of the first device.
        device: The first device.
        devices: All devices that share the daemon.
        thread_percentage: Share of a GPU's threads that each client may use; None for all.
        default_limit: Memory limit of each client on each device, a Kubernetes quantity; empty for
            none.
        device_limits: The same for single devices, by UUID or index in the sorted UUIDs.
        is_multi_user: Whether clients of several users may use it.
        run: The daemon runs only for who knows this: one of an earlier attempt does not start
            again. Empty until the first attempt.
        directory: The daemon's directory on the node. Empty until the devices' UUIDs, of which its
            name is made, are known.
    """

    FOUND: ClassVar[frozenset[str]] = frozenset({"run", "directory"})

    step: Literal["share-by-mps"] = "share-by-mps"
    devices: tuple[DeviceName, ...]
    thread_percentage: int | None = None
    default_limit: str = ""
    device_limits: dict[str, str] = Field(default_factory=dict)
    is_multi_user: bool = False
    run: str = ""
    directory: str = ""


class BoundFunction(_Frozen):
    """A PCI function that a claim binds to vfio, and what it had before.

    Attributes:
        pci: Its address.
        vfio_driver: The vfio driver, by its name in `/sys/bus/pci/drivers`.
        former_driver: The driver that it had; None if it had none.
        former_override: Its `driver_override`; None if none was set.
    """

    pci: PciAddress
    vfio_driver: str
    former_driver: str | None = None
    former_override: str | None = None


Persistence = Literal["off", "driver", "daemon"]
"""What keeps a GPU running without clients: nothing, the kernel module or nvidia-persistenced."""


class BindVfio(Change):
    """Bind a GPU to vfio, for a virtual machine. Its inverse gives it the former driver back.

    Attributes:
        pci: The GPU. Nothing else names it while it is on vfio.
        gpu: The same, if its UUID is known; changes of one GPU follow one another.
        module: The module of the vfio driver.
        backend_policy: Which nodes the claim's containers get, as in a `VfioDeviceConfig`.
        enable_api_device: Whether they get the control node, too.
        functions: The GPU, first, and the further functions of its board, with what they had in
            this boot before the claim was prepared; empty until they were looked at.
        former_persistence: What kept the GPU running before; None if that is not known, and
            nothing is restored.
        was_drained: Whether the driver took no new clients of it before; None if it does not say
            it, and is not asked for it.
    """

    FOUND: ClassVar[frozenset[str]] = frozenset({"functions", "former_persistence", "was_drained"})

    step: Literal["bind-vfio"] = "bind-vfio"
    pci: PciAddress
    gpu: GpuUUID = GpuUUID("")
    module: str
    backend_policy: str = ""
    enable_api_device: bool = False
    functions: tuple[BoundFunction, ...] = ()
    former_persistence: Persistence | None = None
    was_drained: bool | None = None

    @property
    def place(self) -> str:
        """The GPU."""
        return self.gpu or self.pci

    @property
    def is_prebound(self) -> bool:
        """Whether the GPU was on vfio before the claim, and stays there after it."""
        return bool(self.functions) and (
            self.functions[0].former_driver == self.functions[0].vfio_driver
        )


Step = Annotated[
    MakeMigDevice
    | DisableMigMode
    | LeaveMigMode
    | BindVfio
    | ShareByTime
    | SetComputeMode
    | ShareByMps,
    Field(discriminator="step"),
]
"""One step. A record has its steps in the order in which they are done: those of MPS are last."""
