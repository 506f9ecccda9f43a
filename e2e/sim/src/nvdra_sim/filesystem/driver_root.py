# SPDX-License-Identifier: Apache-2.0
"""The files of an installed driver: libraries, programs, firmware, configuration.

Source: docs/reference/nvml-simulator.md §14.1.
"""

from __future__ import annotations

import json
from platform import machine

from nvdra_sim.description import Layout, NodeDescription
from nvdra_sim.filesystem.trees import Copy, Entry, File, Link, Socket, Tree, text
from nvdra_sim.native.programs import Programs

MULTIARCH = f"{machine()}-linux-gnu"
# The directories of libraries and programs, by layout.
LIBRARIES: dict[Layout, str] = {
    "debian": f"usr/lib/{MULTIARCH}",
    "rhel": "usr/lib64",
    "cos": "lib64",
    "talos": "lib",  # below /usr/local; siderolabs/extensions, nvidia-pkgs/production/pkg.yaml
}
BINARIES: dict[Layout, str] = {
    "debian": "usr/bin",
    "rhel": "usr/bin",
    "cos": "bin",
    "talos": "bin",
}
STATE_FILE = "gsp_nvdra_sim.bin"
PERSISTENCED_SOCKET = "run/nvidia-persistenced/socket"


def tree(node: NodeDescription, programs: Programs) -> Tree:
    """All files below the driver root except the state file; see `state_path`."""
    return {
        **_libraries(node, programs),
        **_programs(node, programs),
        **_firmware(node),
        **_configuration(),
        **_sockets(node),
        **_c_library(programs),
    }


def imex(node: NodeDescription, programs: Programs) -> dict[str, Entry]:
    """The programs of IMEX, which are in a separate package of real drivers."""
    directory = program_directory(node)
    return {
        f"{directory}/nvidia-imex": Copy(programs.imex, 0o755),
        f"{directory}/nvidia-imex-ctl": Copy(programs.imex_ctl, 0o755),
    }


def library_directory(node: NodeDescription) -> str:
    """The directory of the driver's libraries, relative to the driver root."""
    return LIBRARIES[node.render.layout]


def program_directory(node: NodeDescription) -> str:
    """The directory of the driver's programs, relative to the driver root."""
    return BINARIES[node.render.layout]


def state_path(node: NodeDescription) -> str:
    """The path of the state file, relative to the driver root. CDI specs mount it as firmware."""
    return f"lib/firmware/nvidia/{node.driver.version}/{STATE_FILE}"


def _libraries(node: NodeDescription, programs: Programs) -> dict[str, Entry]:
    directory, version = library_directory(node), node.driver.version
    entries: dict[str, Entry] = {}
    for stem, link, source in (
        ("libnvidia-ml.so", "1", programs.nvml),
        ("libcuda.so", "1", programs.cuda),
    ):
        entries[f"{directory}/{stem}.{version}"] = Copy(source)
        entries[f"{directory}/{stem}.{link}"] = Link(f"{stem}.{version}")
        entries[f"{directory}/{stem}"] = Link(f"{stem}.{link}")
    for soname, source in programs.placeholders.items():
        stem, _, number = soname.rpartition(".so.")
        if stem == "libnvidia-egl-gbm":  # released apart from the driver
            entries[f"{directory}/{stem}.so.1.1.2"] = Copy(source)
            entries[f"{directory}/{soname}"] = Link(f"{stem}.so.1.1.2")
        elif stem == "libvdpau_nvidia":
            entries[f"{directory}/vdpau/{stem}.so.{version}"] = Copy(source)
        else:
            entries[f"{directory}/{stem}.so.{version}"] = Copy(source)
            entries[f"{directory}/{stem}.so.{number}"] = Link(f"{stem}.so.{version}")
    entries[f"{directory}/gbm/nvidia-drm_gbm.so"] = Link("../libnvidia-allocator.so.1")
    return entries


def _programs(node: NodeDescription, programs: Programs) -> dict[str, Entry]:
    directory = program_directory(node)
    always: dict[str, Entry] = {
        f"{directory}/nvidia-smi": Copy(programs.smi, 0o755),
        f"{directory}/nvidia-cuda-mps-control": Copy(programs.mps_control, 0o755),
        f"{directory}/nvidia-cuda-mps-server": Copy(programs.mps_server, 0o755),
        f"{directory}/nvidia-persistenced": Copy(programs.persistenced, 0o755),
    }
    return {**always, **imex(node, programs)} if node.imex.installed else always


def _firmware(node: NodeDescription) -> dict[str, Entry]:
    directory = f"lib/firmware/nvidia/{node.driver.version}"
    return {
        f"{directory}/{name}": File(f"simulated {name}\n".encode())
        for name in ("gsp_ga10x.bin", "gsp_tu10x.bin")
    }


def _configuration() -> dict[str, Entry]:
    vulkan = {"library_path": "libGLX_nvidia.so.0", "api_version": "1.4.312"}
    files = {
        "etc/vulkan/icd.d/nvidia_icd.json": {"file_format_version": "1.0.1", "ICD": vulkan},
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json": {
            "file_format_version": "1.0.0",
            "ICD": {"library_path": "libEGL_nvidia.so.0"},
        },
        "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json": {
            "file_format_version": "1.0.0",
            "ICD": {"library_path": "libnvidia-egl-gbm.so.1"},
        },
    }
    return {
        **{path: text(json.dumps(content, indent=4)) for path, content in files.items()},
        "etc/OpenCL/vendors/nvidia.icd": text("libnvidia-opencl.so.1"),
        "usr/share/nvidia/nvoptix.bin": File(b"simulated nvoptix.bin\n"),
    }


def _sockets(node: NodeDescription) -> dict[str, Entry]:
    sockets: dict[str, Entry] = {PERSISTENCED_SOCKET: Socket()}
    if node.nvswitches or node.nvlink_managers:
        sockets["run/nvidia-fabricmanager/socket"] = Socket()
    return sockets


def _c_library(programs: Programs) -> dict[str, Entry]:
    """The files that programs need after `chroot`, as in the image of a driver container."""
    return {
        str(programs.loader.path).lstrip("/"): Copy(programs.loader.source, 0o755),
        f"lib/{MULTIARCH}/libc.so.6": Copy(programs.c_library, 0o755),
    }
