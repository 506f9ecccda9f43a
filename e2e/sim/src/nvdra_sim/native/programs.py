# SPDX-License-Identifier: Apache-2.0
"""Compile the programs and libraries of a simulated driver, which `driver_root` copies."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from platform import machine

from nvdra_sim.native import nvml_functions, nvml_library
from nvdra_sim.state_file import layout

SIM_DIRECTORY = nvml_functions.SOURCES.parent
LOADERS = {
    "x86_64": Path("/lib64/ld-linux-x86-64.so.2"),
    "aarch64": Path("/lib/ld-linux-aarch64.so.1"),
}
# Statically linked programs run in any container and after chroot.
STATIC = (*nvml_library.HARDENING, "-fPIE", "-static-pie", "-s")
# Programs that load NVML at run time need the C library of the container or of the driver root.
DYNAMIC = (
    *nvml_library.WARNINGS,
    *nvml_library.HARDENING,
    *("-fPIE", "-pie", "-ldl"),
)
# Libraries that are injected but never called. They only need the right soname.
PLACEHOLDERS = (
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-opticalflow.so.1",
    "libnvidia-allocator.so.1",
    "libGLX_nvidia.so.0",
    "libnvidia-cfg.so.1",
    "libnvidia-egl-gbm.so.1",
    "libvdpau_nvidia.so.1",
)


@dataclass(frozen=True)
class Loader:
    """The dynamic loader: the path that programs use, and the actual file."""

    path: Path
    source: Path


@dataclass(frozen=True)
class Programs:
    """The compiled files in the cache, and files of this machine's C library."""

    nvml: Path
    smi: Path
    imex: Path
    imex_ctl: Path
    mps_control: Path
    mps_server: Path
    persistenced: Path
    cuda: Path
    placeholders: dict[str, Path]  # by soname
    loader: Loader
    c_library: Path


@functools.cache
def build() -> Programs:
    """Compiles all parts that are not in the cache; a process looks for them once.

    Raises:
        nvml_library.BuildError: `gcc` is missing or failed.
    """
    loader = LOADERS[machine()]
    return Programs(
        nvml=nvml_library.build(),
        smi=_smi(),
        imex=imex(),
        imex_ctl=imex_ctl(),
        mps_control=_mps("control"),
        mps_server=_mps("server"),
        persistenced=persistenced(),
        cuda=_cuda(),
        placeholders={soname: _placeholder(soname) for soname in PLACEHOLDERS},
        loader=Loader(loader, loader.resolve(strict=True)),
        c_library=_c_library(),
    )


def _smi() -> Path:
    sources = {**_sources(SIM_DIRECTORY / "smi"), **_nvml_client()}
    return nvml_library.compile_cached("nvidia-smi", sources, DYNAMIC)


def _mps(program: str) -> Path:
    """`nvidia-cuda-mps-control` or `nvidia-cuda-mps-server`."""
    sources = {
        **_sources(SIM_DIRECTORY / "mps"),
        **_sources(SIM_DIRECTORY / "mps" / program),
        **_nvml_client(),
    }
    return nvml_library.compile_cached(f"nvidia-cuda-mps-{program}", sources, DYNAMIC)


def _nvml_client() -> dict[str, str]:
    """What programs need to load NVML, which is beside them in their driver root."""
    return {**_sources(SIM_DIRECTORY / "loading"), **_nvml_interface()}


def _nvml_interface() -> dict[str, str]:
    return {
        name: (nvml_functions.SOURCES / name).read_text(encoding="utf-8")
        for name in ("nvml_abi.h", "private_table.h")
    }


def imex(flags: Sequence[str] = STATIC) -> Path:
    """Compiles `nvidia-imex` with these additional flags. Raises like `build`."""
    flags = (*nvml_library.WARNINGS, "-pthread", *flags)
    return nvml_library.compile_cached("nvidia-imex", _imex_sources("daemon"), flags)


def imex_ctl(flags: Sequence[str] = STATIC) -> Path:
    """Compiles `nvidia-imex-ctl` with these additional flags. Raises like `build`."""
    flags = (*nvml_library.WARNINGS, "-pthread", *flags)
    return nvml_library.compile_cached("nvidia-imex-ctl", _imex_sources("ctl"), flags)


def persistenced() -> Path:
    """Compiles `nvidia-persistenced`. Raises like `build`."""
    sources = {
        **_sources(nvml_library.PERSISTENCED),
        **_sources(nvml_library.PERSISTENCED / "daemon"),
        "snapshot.h": (nvml_functions.SOURCES / "snapshot.h").read_text(encoding="utf-8"),
        "layout.h": layout.c_header(),
    }
    flags = (*nvml_library.WARNINGS, *STATIC)
    return nvml_library.compile_cached("nvidia-persistenced", sources, flags)


def vmm() -> Path:
    """Compiles `nvdra-sim-vmm`, which no driver installs. Raises like `build`."""
    flags = (*nvml_library.WARNINGS, *STATIC)
    return nvml_library.compile_cached("nvdra-sim-vmm", _sources(SIM_DIRECTORY / "vmm"), flags)


def kmod(name: str) -> Path:
    """Compiles `modprobe` or `rmmod`, which no driver installs. Raises like `build`."""
    flags = (*nvml_library.WARNINGS, *STATIC)
    return nvml_library.compile_cached(name, _sources(SIM_DIRECTORY / "kmod"), flags)


def _imex_sources(program: str) -> dict[str, str]:
    """The shared sources, those of one program, and what reads the state file."""
    return {
        **_sources(SIM_DIRECTORY / "imex"),
        **_sources(SIM_DIRECTORY / "imex" / program),
        "snapshot.h": (nvml_functions.SOURCES / "snapshot.h").read_text(encoding="utf-8"),
        "layout.h": layout.c_header(),
    }


def _cuda() -> Path:
    shared = ("-fPIC", "-fvisibility=hidden", "-shared", "-Wl,-soname,libcuda.so.1", "-ldl")
    flags = (*nvml_library.WARNINGS, *nvml_library.HARDENING, *shared, "-pthread")
    mps = _sources(SIM_DIRECTORY / "mps")
    client = {name: mps[name] for name in ("mps.h", "messages.c", "devices.c")}
    sources = {**_sources(SIM_DIRECTORY / "cuda"), **client, **_nvml_interface()}
    return nvml_library.compile_cached("libcuda.so.1", sources, flags)


def _placeholder(soname: str) -> Path:
    flags = ("-shared", "-nostdlib", f"-Wl,-soname,{soname}")
    return nvml_library.compile_cached(soname, {"empty.c": ""}, flags)


def _sources(directory: Path) -> dict[str, str]:
    return {
        path.name: path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.[ch]"))
    }


def _c_library() -> Path:
    done = subprocess.run(
        ["gcc", "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip()).resolve(strict=True)
