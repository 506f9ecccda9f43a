# SPDX-License-Identifier: Apache-2.0
"""GPUs that can be divided, below NVML's Python functions and without a library, for unit tests.

They follow the rules that the drivers' own code relies on: ids are used again, instances do not
overlap, a GPU instance with compute instances is in use. Component tests use the simulated library.
"""

from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any, Final

from nvdra_api.ids import GpuUUID
from nvdra_runtime.node.nvml import DeviceHandle, Nvml, ReturnCode

SIZES: Final = {0: 1, 1: 2, 2: 4, 4: 8}
"""Memory slices of some profiles of an H100, by NVML's index."""

_IDS: Final = {0: 19, 1: 14, 2: 9, 4: 0}
_FIRST_ID: Final = {1: 7, 2: 3, 4: 1, 8: 0}
_COMPUTE_SLICES: Final = {0: 1, 1: 2, 2: 3, 4: 7}
_SLICES_OF_PROFILE: Final = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}

_READING: Final = ("Get", "Init", "Shutdown")


class NVMLError(Exception):
    """As that of pynvml."""

    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class _Instance:
    def __init__(self, gpu: "DivisibleGpu", number: int, index: int, start: int) -> None:
        self.gpu = gpu
        self.number = number
        self.index = index
        self.start = start
        self.size = SIZES[index]
        self.computes: dict[int, _Compute] = {}


class _Compute:
    def __init__(self, instance: _Instance, number: int) -> None:
        self.instance = instance
        self.number = number
        self.uuid = f"MIG-{instance.gpu.uuid}-{instance.number}-{number}"


class DivisibleGpu:
    """One GPU.

    Attributes:
        mode: Whether it is in MIG mode.
        architecture: NVML's number; 9 is Hopper, 8 Ampere.
        activation: What is answered when the mode is switched; unless 0, it is not switched.
        instances: The GPU instances, by id.
    """

    def __init__(self, uuid: str = "GPU-0") -> None:
        self.uuid = GpuUUID(uuid)
        self.mode = False
        self.architecture = 9
        self.activation = 0
        self.instances: dict[int, _Instance] = {}

    @property
    def handle(self) -> DeviceHandle:
        """NVML's handle."""
        return DeviceHandle(self.uuid, self)

    def add(self, index: int, start: int, computes: int = 1) -> _Instance:
        """Make an instance as an administrator does."""
        self.mode = True
        number = _FIRST_ID[SIZES[index]] + start // SIZES[index]
        instance = self.instances[number] = _Instance(self, number, index, start)
        for compute in range(computes):
            instance.computes[compute] = _Compute(instance, compute)
        return instance

    @property
    def places(self) -> list[tuple[int, int, int]]:
        """Profile index, first slice and number of compute instances of all GPU instances."""
        found = [(each.index, each.start, len(each.computes)) for each in self.instances.values()]
        return sorted(found)


class DivisiblePynvml:
    """What `Nvml` asks of pynvml.

    Attributes:
        failures: Codes that the next calls of a function fail with, by its name; 0 succeeds.
        changes: The calls that have changed something, in their order.
        count: How often each function was called.
        processes: The GPU instances with a process that computes, by UUID of the GPU and id.
    """

    NVMLError = NVMLError

    def __init__(self) -> None:
        self.failures: defaultdict[str, list[int]] = defaultdict(list)
        self.changes: list[str] = []
        self.count: Counter[str] = Counter()
        self.processes: set[tuple[GpuUUID, int]] = set()

    def __getattr__(self, name: str) -> Any:
        function = getattr(type(self), f"_{name}")

        def call(*arguments: Any) -> Any:
            self.count[name] += 1
            code = self.failures[name].pop(0) if self.failures[name] else 0
            if code:
                raise NVMLError(code)
            if not any(word in name for word in _READING):
                self.changes.append(name)
            return function(self, *arguments)

        return call

    def _nvmlDeviceGetMemoryInfo(self, gpu: DivisibleGpu) -> Any:
        return SimpleNamespace(total=80 << 30, gpu=gpu)

    def _nvmlDeviceGetArchitecture(self, gpu: DivisibleGpu) -> int:
        return gpu.architecture

    def _nvmlDeviceGetMigMode(self, gpu: DivisibleGpu) -> list[int]:
        return [int(gpu.mode), int(gpu.mode)]

    def _nvmlDeviceSetMigMode(self, gpu: DivisibleGpu, mode: int) -> int:
        if gpu.instances and not mode:
            raise NVMLError(ReturnCode.IN_USE)
        if not gpu.activation:
            gpu.mode = bool(mode)
        return gpu.activation

    def _nvmlDeviceGetGpuInstanceProfileInfo(
        self, gpu: DivisibleGpu, index: int, version: int
    ) -> Any:
        del gpu, version
        if index > 17:
            raise NVMLError(ReturnCode.INVALID_ARGUMENT)
        if index not in _IDS:
            raise NVMLError(ReturnCode.NOT_SUPPORTED)
        return SimpleNamespace(id=_IDS[index])

    def _nvmlDeviceCreateGpuInstanceWithPlacement(
        self, gpu: DivisibleGpu, profile: int, placement: Any
    ) -> _Instance:
        start, size = placement._obj.start, placement._obj.size
        index = next(each for each, found in _IDS.items() if found == profile)
        assert SIZES[index] == size
        for each in gpu.instances.values():
            if each.start < start + size and start < each.start + each.size:
                raise NVMLError(ReturnCode.INSUFFICIENT_RESOURCES)
        if not gpu.mode:
            raise NVMLError(ReturnCode.NOT_SUPPORTED)
        return gpu.add(index, start, computes=0)

    def _nvmlDeviceGetGpuInstances(
        self, gpu: DivisibleGpu, profile: int, found: Any, count: Any
    ) -> None:
        instances = [each for each in gpu.instances.values() if _IDS[each.index] == profile]
        for at, each in enumerate(instances):
            found[at] = _pointer(each)
        count._obj.value = len(instances)

    def _nvmlDeviceGetGpuInstanceById(self, gpu: DivisibleGpu, number: int) -> Any:
        if number not in gpu.instances:
            raise NVMLError(ReturnCode.NOT_FOUND)
        return gpu.instances[number]

    def _nvmlGpuInstanceGetInfo(self, pointer: Any) -> Any:
        instance = _object(pointer)
        return SimpleNamespace(
            id=instance.number,
            profileId=_IDS[instance.index],
            placement=SimpleNamespace(start=instance.start, size=instance.size),
        )

    def _nvmlGpuInstanceGetComputeInstanceProfileInfo(
        self, pointer: Any, index: int, engines: int, version: int
    ) -> Any:
        del engines, version
        slices = _COMPUTE_SLICES[_object(pointer).index]
        if _SLICES_OF_PROFILE.get(index, 99) > slices:
            raise NVMLError(ReturnCode.NOT_SUPPORTED)
        return SimpleNamespace(id=index)

    def _nvmlGpuInstanceCreateComputeInstance(self, pointer: Any, profile: int) -> "_Compute":
        instance = _object(pointer)
        assert _SLICES_OF_PROFILE[profile] == _COMPUTE_SLICES[instance.index]
        compute = instance.computes[0] = _Compute(instance, 0)
        return compute

    def _nvmlGpuInstanceGetComputeInstances(
        self, pointer: Any, profile: int, found: Any, count: Any
    ) -> None:
        instance = _object(pointer)
        is_covering = _SLICES_OF_PROFILE[profile] == _COMPUTE_SLICES[instance.index]
        computes = list(instance.computes.values()) if is_covering else []
        for at, each in enumerate(computes):
            found[at] = _pointer(each)
        count._obj.value = len(computes)

    def _nvmlGpuInstanceGetComputeInstanceById(self, pointer: Any, number: int) -> "_Compute":
        found: _Compute | None = _object(pointer).computes.get(number)
        if found is None:
            raise NVMLError(ReturnCode.NOT_FOUND)
        return found

    def _nvmlComputeInstanceGetInfo_v2(self, pointer: Any) -> Any:
        compute = _object(pointer)
        return SimpleNamespace(id=compute.number, device=compute)

    def _nvmlDeviceGetUUID(self, device: Any) -> str:
        return str(device.uuid)

    def _nvmlComputeInstanceDestroy(self, pointer: Any) -> None:
        compute = _object(pointer)
        del compute.instance.computes[compute.number]

    def _nvmlGpuInstanceDestroy(self, pointer: Any) -> None:
        instance = _object(pointer)
        if instance.computes:
            raise NVMLError(ReturnCode.IN_USE)
        del instance.gpu.instances[instance.number]

    def _nvmlDeviceGetComputeRunningProcesses(self, gpu: DivisibleGpu) -> list[Any]:
        return [
            SimpleNamespace(pid=4711, gpuInstanceId=instance)
            for uuid, instance in sorted(self.processes)
            if uuid == gpu.uuid
        ]

    def _nvmlDeviceGetGraphicsRunningProcesses(self, gpu: DivisibleGpu) -> list[Any]:
        del gpu
        return []

    def _nvmlDeviceGetMPSComputeRunningProcesses(self, gpu: DivisibleGpu) -> list[Any]:
        del gpu
        return []


_OBJECTS: Final[dict[int, Any]] = {}


def _pointer(target: Any) -> int:
    _OBJECTS[id(target)] = target
    return id(target)


def _object(pointer: Any) -> Any:
    value = getattr(pointer, "value", None)
    return pointer if value is None else _OBJECTS[value]


def session(pynvml: DivisiblePynvml) -> Nvml:
    """An open session."""
    module: Any = pynvml
    return Nvml(module, lambda *_: None)
