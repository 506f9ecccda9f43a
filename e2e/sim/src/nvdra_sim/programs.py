"""The native parts of a simulated driver, compiled on first use and copied by `driverroot`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from platform import machine

from nvdra_sim import layout, library, names

SIM = names.SOURCES.parent
LOADERS = {
    "x86_64": Path("/lib64/ld-linux-x86-64.so.2"),
    "aarch64": Path("/lib/ld-linux-aarch64.so.1"),
}
# Programs that bring their libraries along run in any container and under chroot.
STATIC = (*library.HARDENING, "-fPIE", "-static-pie", "-s")
# Libraries that containers get and nobody calls: they only need the right name inside.
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
    """The dynamic loader: where programs look for it, and the file itself."""

    path: Path
    source: Path


@dataclass(frozen=True)
class Programs:
    """Files of the cache folder and of this machine's C library."""

    nvml: Path
    smi: Path
    imex: Path
    imex_ctl: Path
    cuda: Path
    placeholders: dict[str, Path]  # by soname
    loader: Loader
    c_library: Path


def build() -> Programs:
    """Compiles whatever is not in the cache.

    Raises:
        library.BuildError: There is no `gcc`, or it failed.
    """
    loader = LOADERS[machine()]
    return Programs(
        nvml=library.build(),
        smi=_smi(),
        imex=imex(),
        imex_ctl=imex_ctl(),
        cuda=_cuda(),
        placeholders={soname: _placeholder(soname) for soname in PLACEHOLDERS},
        loader=Loader(loader, loader.resolve(strict=True)),
        c_library=_c_library(),
    )


def _smi() -> Path:
    sources = _sources(SIM / "smi")
    sources["nvml_abi.h"] = (names.SOURCES / "nvml_abi.h").read_text(encoding="utf-8")
    position_independent = ("-fPIE", "-pie", "-ldl")
    flags = (*library.WARNINGS, *library.HARDENING, *position_independent)
    return library.compiled("nvidia-smi", sources, flags)


def imex(flags: Sequence[str] = STATIC) -> Path:
    """`nvidia-imex`, compiled with these flags besides the usual ones; raises like `build`."""
    sources = _imex_sources("daemon")
    sources["snapshot.h"] = (names.SOURCES / "snapshot.h").read_text(encoding="utf-8")
    sources["layout.h"] = layout.c_header()
    return library.compiled("nvidia-imex", sources, (*library.WARNINGS, "-pthread", *flags))


def imex_ctl(flags: Sequence[str] = STATIC) -> Path:
    """`nvidia-imex-ctl`, likewise."""
    flags = (*library.WARNINGS, *flags)
    return library.compiled("nvidia-imex-ctl", _imex_sources("ctl"), flags)


def _imex_sources(program: str) -> dict[str, str]:
    """What both programs share, and what is this one's."""
    return {**_sources(SIM / "imex"), **_sources(SIM / "imex" / program)}


def _cuda() -> Path:
    shared = ("-fPIC", "-fvisibility=hidden", "-shared", "-Wl,-soname,libcuda.so.1", "-ldl")
    flags = (*library.WARNINGS, *library.HARDENING, *shared)
    return library.compiled("libcuda.so.1", _sources(SIM / "cuda"), flags)


def _placeholder(soname: str) -> Path:
    flags = ("-shared", "-nostdlib", f"-Wl,-soname,{soname}")
    return library.compiled(soname, {"empty.c": ""}, flags)


def _sources(directory: Path) -> dict[str, str]:
    return {
        path.name: path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.[ch]"))
    }


def _c_library() -> Path:
    done = subprocess.run(
        ["gcc", "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip()).resolve(strict=True)
