# SPDX-License-Identifier: Apache-2.0
"""Describe the GPUs of a node, from profile, overrides and the columns of the GPU model.

`node_config` describes the rest of the node. Each error contains its path in the node file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import NAMESPACE_DNS, UUID, uuid5

from pydantic import ValidationError

from nvdra_sim.configuration import hardware_catalog, mig_instances
from nvdra_sim.configuration.file_schema import (
    FabricEntry,
    GpuEntry,
    GpuModel,
    NodeFile,
    ProfileFile,
)
from nvdra_sim.description import (
    BusAddress,
    DeviceNumber,
    Fabric,
    Gpu,
    Mig,
    MigTable,
    Platform,
)
from nvdra_sim.errors import ConfigError, Problem

# Substitutes that can be opened, from the kernel's "mem" driver: /dev/null and /dev/zero.
OPENABLE_GPU = DeviceNumber(major=1, minor=3)
OPENABLE_CONTROL = DeviceNumber(major=1, minor=5)

FIRST_GPU_GROUP = 17  # of IOMMU groups; the numbers below are those of root ports

NIL_UUID = UUID(int=0)
ARCHITECTURES = {
    "kepler": (2, "Kepler"),
    "maxwell": (3, "Maxwell"),
    "pascal": (4, "Pascal"),
    "volta": (5, "Volta"),
    "turing": (6, "Turing"),
    "ampere": (7, "Ampere"),
    "ada": (8, "Ada Lovelace"),
    "hopper": (9, "Hopper"),
    "blackwell": (10, "Blackwell"),
}
ADDRESSING = {"none": 0, "hmm": 1, "ats": 2, "unsupported": None}
C2C = {"absent": None, "disabled": False, "enabled": True}
FABRIC_STATES = {"not_supported": 0, "not_started": 1, "in_progress": 2, "completed": 3}
PEER_TYPES = {"direct": 0, "switch": 1}
# Single and double bit ECC, P-state, critical Xid. GPUs with MIG also report MIG changes (§8).
EVENTS = 0x1 | 0x2 | 0x4 | 0x8
EVENT_MIG_CHANGE = 0x100
ALL_EVENTS = 0xFF9F
"""What Hopper and newer GPUs say with a driver of branch 580 or newer: all types of NVML."""

ALL_EVENTS_SINCE = 580


@dataclass(frozen=True)
class LocatedGpuEntry:
    """The entry of a GPU with its overrides, and its path in the node file, for errors."""

    path: str
    entry: GpuEntry


def resolve(file: NodeFile, profile: ProfileFile) -> tuple[Gpu, ...]:
    """All GPUs of the node, in bus order. Raises `ConfigError`."""
    models = hardware_catalog.gpu_models()
    tables = hardware_catalog.mig_tables()
    entries = _in_bus_order(_entries(file, profile))
    gpus = tuple(
        _Resolver(file, profile, item, index).gpu(models, tables)
        for index, item in enumerate(entries)
    )
    return gpus if file.node.iommu.acs else tuple(_without_acs(gpu, gpus) for gpu in gpus)


def default_uuid(prefix: str, index: int) -> UUID:
    """The version 5 UUID of `<prefix>/<index>`. By default, the prefix is the node's name."""
    return uuid5(NAMESPACE_DNS, f"{prefix}/{index}")


def _entries(file: NodeFile, profile: ProfileFile) -> list[LocatedGpuEntry]:
    base = list(profile.gpus)
    count = file.overrides.gpu_count
    if count is not None and count > len(base):
        raise ConfigError([Problem("overrides.gpu_count", f"the profile has {len(base)} GPUs")])
    written = "gpus" if file.profile is None else f"profile {file.profile}: gpus"
    entries = [
        LocatedGpuEntry(f"{written}.{place}", entry) for place, entry in enumerate(base[:count])
    ]
    for place, override in enumerate(file.overrides.gpus):
        path = f"overrides.gpus.{place}"
        if override.index >= len(entries):
            problem = Problem(f"{path}.index", f"the node has {len(entries)} GPUs, from 0")
            raise ConfigError([problem])
        changes = override.model_dump(exclude={"index"}, exclude_unset=True)
        below = entries[override.index].entry.model_dump(exclude_unset=True)
        entries[override.index] = LocatedGpuEntry(
            path, GpuEntry.model_validate({**below, **changes})
        )
    return entries


def _in_bus_order(entries: list[LocatedGpuEntry]) -> list[LocatedGpuEntry]:
    return sorted(entries, key=lambda item: _bus(item).sort_key)


def _without_acs(gpu: Gpu, gpus: tuple[Gpu, ...]) -> Gpu:
    """The GPU in the group of all that are below its switch, which does not isolate its ports."""
    if len(gpu.bridges) == 1 or gpu.iommu_group is None:
        return gpu
    below = [other.iommu_group for other in gpus if other.bridges[0] == gpu.bridges[0]]
    return gpu.model_copy(
        update={"iommu_group": min(group for group in below if group is not None)}
    )


def _bus(item: LocatedGpuEntry) -> BusAddress:
    if item.entry.bus_id is None:
        raise ConfigError([Problem(f"{item.path}.bus_id", "a GPU requires a PCI address")])
    try:
        return BusAddress.parse(item.entry.bus_id)
    except ValueError as error:
        raise ConfigError([Problem(f"{item.path}.bus_id", str(error))]) from None


@dataclass(frozen=True)
class _Resolver:
    """Creates a `Gpu` from its entry."""

    file: NodeFile
    profile: ProfileFile
    item: LocatedGpuEntry
    index: int

    def gpu(self, models: Mapping[str, GpuModel], tables: Mapping[str, MigTable]) -> Gpu:
        entry, bus = self.item.entry, _bus(self.item)
        model = self._model(models)
        uuid = self._uuid()
        root = entry.pcie_root or f"pci{bus.domain:04x}:{max(bus.bus - 1, 0):02x}"
        minor = self.index if entry.minor is None else entry.minor
        bound = entry.bound_driver or "nvidia"
        architecture, architecture_name = ARCHITECTURES[model.architecture]
        fabric = self._fabric()
        mig = self._mig(model, tables, uuid)
        cc_major, cc_minor = (int(part) for part in model.compute_capability.split("."))
        return Gpu(
            index=self.index,
            model=str(entry.model),
            name=model.name,
            uuid=uuid,
            serial=self._serial(uuid),
            minor=minor,
            node=self._node(minor),
            module_id=1 if entry.module_id is None else entry.module_id,
            bus=bus,
            pcie_root=root,
            numa_node=0 if entry.numa_node is None else entry.numa_node,
            memory_numa_node=entry.memory_numa_node,
            bound_driver=None if bound == "none" else bound,
            excluded=entry.excluded,
            initialisation_ms=entry.initialisation_ms,
            iommu_group=self._iommu_group(),
            bridges=entry.bridges or (f"{root.removeprefix('pci')}:{self.index % 31 + 1:02x}.0",),
            companions=entry.companions,
            architecture=architecture,
            architecture_name=architecture_name,
            compute_capability=(cc_major, cc_minor),
            memory_nvml=entry.memory is None or entry.memory.nvml == "supported",
            addressing=ADDRESSING[model.addressing],
            c2c=C2C[model.c2c],
            clock_video_mhz=model.clock_video_mhz or model.clock_graphics_mhz,
            supported_events=self._events(model, mig),
            mig=mig,
            fabric=fabric,
            platform=self._platform(uuid, fabric),
            **model.model_dump(
                exclude={
                    "name",
                    "architecture",
                    "compute_capability",
                    "addressing",
                    "c2c",
                    "clock_video_mhz",
                    "supported_events",
                    "mig_table",
                }
            ),
        )

    def _model(self, models: Mapping[str, GpuModel]) -> GpuModel:
        key = self.item.entry.model
        if key is None or key not in models:
            known = ", ".join(models)
            raise ConfigError(
                [Problem(f"{self.item.path}.model", f"{key!r} is not one of {known}")]
            )
        try:
            return GpuModel.model_validate({**models[key].model_dump(), **self.item.entry.columns})
        except ValidationError as error:
            raise ConfigError.from_validation(error, self.item.path) from error

    def _uuid(self) -> str:
        prefix = self.file.overrides.uuid_prefix or self.file.metadata.name
        return self.item.entry.uuid or f"GPU-{default_uuid(prefix, self.index)}"

    def _serial(self, uuid: str) -> str | None:
        if "serial" in self.item.entry.model_fields_set:
            return self.item.entry.serial
        return f"165{UUID(uuid.removeprefix('GPU-')).int % 10**10:010d}"

    def _node(self, minor: int) -> DeviceNumber:
        if self.file.render.nodes == "openable":
            return OPENABLE_GPU
        return DeviceNumber(major=self.file.node.majors.nvidia, minor=minor)

    def _iommu_group(self) -> int | None:
        written = self.item.entry.iommu_group
        if written == "none" or not self.file.node.iommu.enabled:
            return None
        return self.index + FIRST_GPU_GROUP if written is None else written

    def _events(self, model: GpuModel, mig: Mig | None) -> int:
        if model.supported_events is not None:
            return model.supported_events
        branch = int(self.file.driver.version.split(".")[0])
        is_new = ARCHITECTURES[model.architecture] >= ARCHITECTURES["hopper"]
        if is_new and branch >= ALL_EVENTS_SINCE:
            return ALL_EVENTS
        return EVENTS | (EVENT_MIG_CHANGE if mig else 0)

    def _fabric(self) -> Fabric:
        """The fabric from profile, node and GPU. A value of the GPU takes precedence."""
        levels: dict[str, object] = {}
        for level in (self.profile.fabric, self.file.fabric, self.item.entry.fabric):
            if level is not None:
                fields = set(FabricEntry.model_fields)
                levels |= level.model_dump(include=fields, exclude_none=True)
        entry = FabricEntry.model_validate(levels)
        cluster = entry.cluster_uuid or NIL_UUID
        if entry.domain == "nvl" and cluster == NIL_UUID:
            raise ConfigError([Problem("fabric.cluster_uuid", "an NVL domain requires one")])
        return Fabric(
            state=FABRIC_STATES[entry.state or "not_supported"],
            status=entry.status or 0,
            cluster_uuid=cluster,
            clique_id=entry.clique or 0,
            health_mask=entry.health_mask or 0,
            health_summary=entry.health_summary or 0,
        )

    def _platform(self, uuid: str, fabric: Fabric) -> Platform | None:
        written = self.item.entry.platform or self.profile.platform
        if written is None:
            return None
        override = self.file.overrides.platform
        if override is not None:
            written = written.model_copy(update=override.model_dump(exclude_none=True))
        return Platform(
            ib_guid=uuid5(UUID(uuid.removeprefix("GPU-")), "ib"),
            rack_guid=fabric.cluster_uuid,
            peer_type=PEER_TYPES[written.peer_type],
            **written.model_dump(exclude={"peer_type"}),
        )

    def _mig(self, model: GpuModel, tables: Mapping[str, MigTable], uuid: str) -> Mig | None:
        entry, path = self.item.entry.mig, f"{self.item.path}.mig"
        if model.mig_table is None:
            if entry is not None and (entry.mode or entry.instances):
                raise ConfigError([Problem(path, f"{model.name} has no MIG")])
            return None
        if model.mig_table not in tables:
            problem = Problem(
                f"{self.item.path}.mig_table", f"{model.mig_table!r} is not a MIG table"
            )
            raise ConfigError([problem])
        table = tables[model.mig_table]
        if entry is None:
            return Mig(table=table)
        gpu_uuid = UUID(uuid.removeprefix("GPU-"))
        instances = mig_instances.resolve(entry, table, self.file.mig, gpu_uuid, path)
        return Mig(table=table, enabled=entry.mode, instances=instances)
