# SPDX-License-Identifier: Apache-2.0
"""Turn a node file into a `NodeDescription`: apply defaults and profiles, and check everything.

Callers use `load` and `from_profile`. An invalid file raises `ConfigError`, which contains all
problems of one stage with their paths in the file. Source: docs/reference/nvml-simulator.md §12.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nvdra_sim import return_codes
from nvdra_sim.configuration import file_reader, hardware_catalog
from nvdra_sim.configuration import gpus as boards
from nvdra_sim.configuration.file_schema import (
    API_VERSION,
    LATENCY_CLASSES,
    DriverSection,
    FaultEntry,
    ImexSection,
    IommuSection,
    LatencySection,
    NodeFile,
    NodeSection,
    ProfileFile,
    VfioSection,
)
from nvdra_sim.description import (
    CONTROL_MINOR,
    DeviceNumber,
    Driver,
    FabricBehaviour,
    Fault,
    Gpu,
    Imex,
    MigBehaviour,
    NodeDescription,
    Render,
)
from nvdra_sim.errors import ConfigError, Problem, duplicates
from nvdra_sim.kernel_description import Iommu, Majors, VfioModules

__all__ = ["ConfigError", "NodeDescription", "from_profile", "load"]

MAX_GPUS = 16  # records in the state file

# First driver branch with a CUDA version → that version (nvml-simulator.md §6.1).
CUDA_BY_BRANCH = {
    535: 12020,
    550: 12040,
    560: 12060,
    565: 12070,
    570: 12080,
    575: 12090,
    580: 13000,
    590: 13010,
    595: 13020,
}
# Milliseconds. A handle by UUID takes up to 10 s on a loaded machine; this is a quiet one.
REALISTIC_LATENCY_MS = {
    "handle_by_uuid": 100,
    "gi_create": 300,
    "gi_destroy": 1000,
    "mig_mode": 2000,
    "init": 500,
    "other": 0,
}


def load(source: file_reader.Source) -> NodeDescription:
    """Describes the node of a YAML or JSON file, or of a mapping with the same content.

    Raises:
        ConfigError: The content is invalid.
        OSError: The file cannot be read.
    """
    return _describe(file_reader.read(NodeFile, source))


def from_profile(
    profile: str | None, node_name: str, overrides: Mapping[str, Any] | None = None
) -> NodeDescription:
    """Describes a node with a profile.

    Args:
        profile: One of `hardware_catalog.profile_names()`; none if `overrides` has the `gpus`.
        node_name: The name of the node. UUIDs are derived from it.
        overrides: More top-level keys of the node file: `driver`, `overrides`, `faults`, …

    Raises:
        ConfigError: The profile is unknown, or the overrides are invalid.
    """
    head = {"apiVersion": API_VERSION, "kind": "Node", "metadata": {"name": node_name}}
    return load({**head, "profile": profile, **(overrides or {})})


def _describe(file: NodeFile) -> NodeDescription:
    profile = _profile(file)
    gpus = boards.resolve(file, profile)
    ConfigError.raise_for(_check(gpus, file))
    boot_id_is_host = file.node.boot_id == "host"
    return NodeDescription(
        name=file.metadata.name,
        profile=file.profile,
        driver=_driver(file.driver),
        boot_id=_boot_id(file.node),
        boot_id_is_host=boot_id_is_host,
        seed=file.node.seed,
        init_without_gpus=file.node.init_without_gpus,
        privilege=file.node.privilege,
        visibility=file.node.visibility,
        privilege_queries=file.node.privilege_queries,
        persistence_blocks_reset=file.node.persistence_blocks_reset,
        unbind_ends_drain=file.node.unbind_ends_drain,
        iommu=_iommu(file.node.iommu),
        vfio=_vfio_modules(file.node.vfio, gpus),
        imex=_imex(file.node.imex),
        majors=Majors(**file.node.majors.model_dump()),
        control_node=_control_node(file),
        nvswitches=profile.nvswitches,
        nvlink_managers=profile.nvlink_managers,
        gpus=gpus,
        fabric=FabricBehaviour(
            call=file.fabric.call,
            bring_up_ms=file.fabric.bring_up_ms,
            follow_fm=file.fabric.follow_fm,
        ),
        mig=MigBehaviour(**file.mig.model_dump()),
        event_early_timeout_probability=file.events.early_timeout_probability,
        gpu_lost_wait=file.gpu_lost.wait,
        latency_ms=_latency(file.latency),
        faults=tuple(_fault(entry, place, gpus) for place, entry in enumerate(file.faults)),
        render=Render(**file.render.model_dump()),
    )


def _profile(file: NodeFile) -> ProfileFile:
    if (file.profile is None) == (file.gpus is None):
        raise ConfigError([Problem("profile", "set either profile or gpus")])
    if file.profile is None:
        return ProfileFile(gpus=file.gpus or ())
    try:
        return hardware_catalog.profile(file.profile)
    except KeyError:
        known = ", ".join(hardware_catalog.profile_names())
        raise ConfigError(
            [Problem("profile", f"{file.profile!r} is unknown; known are {known}")]
        ) from None


def _check(gpus: tuple[Gpu, ...], file: NodeFile) -> list[Problem]:
    """Checks conditions across all GPUs of the node."""
    problems = []
    if len(gpus) > MAX_GPUS:
        problems.append(
            Problem("gpus", f"{len(gpus)} GPUs, but the state file has room for {MAX_GPUS}")
        )
    places = range(len(gpus))
    problems += duplicates("gpus.{}.uuid", [gpu.uuid for gpu in gpus], places)
    problems += duplicates("gpus.{}.bus_id", [gpu.bus_id for gpu in gpus], places)
    problems += duplicates("gpus.{}.minor", [gpu.minor for gpu in gpus], places)
    majors = list(file.node.majors.model_dump().values())
    problems += duplicates("node.majors.{}", majors, file.node.majors.model_dump())
    return problems


def _driver(section: DriverSection) -> Driver:
    major = int(section.version.split(".")[0])
    if section.cuda is not None:
        cuda_major, cuda_minor = (int(part) for part in section.cuda.split("."))
        cuda = 1000 * cuda_major + 10 * cuda_minor
    else:
        known = [cuda for branch, cuda in CUDA_BY_BRANCH.items() if branch <= major]
        if not known:
            oldest = min(CUDA_BY_BRANCH)
            raise ConfigError(
                [
                    Problem(
                        "driver.version",
                        f"{section.version} is older than {oldest}; give driver.cuda",
                    )
                ]
            )
        cuda = max(known)
    return Driver(
        version=section.version,
        cuda_version=cuda,
        branch=section.branch or "r{}_{}".format(*section.version.split(".")[:2]),
        module_loaded=section.module_loaded,
        uvm_loaded=section.module_loaded and section.uvm_loaded,
        api_level=section.api_level or major,
    )


def _boot_id(section: NodeSection) -> str:
    if section.boot_id == "host":
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return str(section.boot_id)


def _imex(section: ImexSection) -> Imex:
    made = int(section.create_channel0) if section.channel_nodes is None else section.channel_nodes
    if made > section.channel_count:
        problem = f"{made} device nodes for {section.channel_count} channels"
        raise ConfigError([Problem("node.imex.channel_nodes", problem)])
    return Imex(**{**section.model_dump(), "channel_nodes": made})


def _control_node(file: NodeFile) -> DeviceNumber:
    if file.render.nodes == "openable":
        return boards.OPENABLE_CONTROL
    return DeviceNumber(major=file.node.majors.nvidia, minor=CONTROL_MINOR)


def _iommu(section: IommuSection) -> Iommu:
    cdev = section.iommufd if section.cdev is None else section.cdev
    if cdev and not section.iommufd:
        raise ConfigError([Problem("node.iommu.cdev", "device nodes require iommufd")])
    return Iommu(enabled=section.enabled, iommufd=section.iommufd, cdev=cdev, acs=section.acs)


def _vfio_modules(section: VfioSection, gpus: tuple[Gpu, ...]) -> VfioModules:
    in_use = any(gpu.bound_driver not in (None, "nvidia") for gpu in gpus)
    loaded = in_use if section.loaded is None else section.loaded
    if (in_use and not loaded) or (loaded and "vfio_pci" in section.missing):
        problem = "a GPU is bound to a driver of vfio" if in_use else "they are loaded"
        raise ConfigError([Problem("node.vfio", f"the modules cannot be absent: {problem}")])
    return VfioModules(loaded=loaded, missing=section.missing, d3cold=section.d3cold)


def _latency(section: LatencySection) -> dict[str, int]:
    preset = REALISTIC_LATENCY_MS if section.preset == "realistic" else {}
    given = section.model_dump(exclude={"preset"}, exclude_none=True)
    return {name: given.get(name, preset.get(name, 0)) for name in LATENCY_CLASSES}


def _fault(entry: FaultEntry, place: int, gpus: tuple[Gpu, ...]) -> Fault:
    return Fault(
        function=entry.match.function,
        gpu=_fault_gpu(entry.match.gpu, f"faults.{place}.match.gpu", gpus),
        result=_code(entry.result, f"faults.{place}.result"),
        activation_status=_code(entry.activation_status, f"faults.{place}.activation_status"),
        **entry.model_dump(exclude={"match", "result", "activation_status"}),
    )


def _fault_gpu(selector: int | str, path: str, gpus: tuple[Gpu, ...]) -> int | None:
    if selector == "*":
        return None
    for gpu in gpus:
        if selector in (gpu.index, gpu.uuid):
            return gpu.index
    raise ConfigError([Problem(path, f"the node has no GPU {selector}")])


def _code(value: str | int | None, path: str) -> int | None:
    """Parses an NVML return code, a number or a name."""
    if value is None or isinstance(value, int):
        return value
    try:
        return return_codes.number(value)
    except ValueError as error:
        raise ConfigError([Problem(path, str(error))]) from None
