# SPDX-License-Identifier: Apache-2.0
"""Compile the simulated `libnvidia-ml.so.1`. Results are cached by the hash of their sources.

The sources are `e2e/sim/lib` and three generated files: `layout.h` (the state file), `functions.h`
(the list of functions) and `stubs.c` (the functions that return NOT_SUPPORTED).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from nvdra_sim.native import nvml_functions
from nvdra_sim.state_file import layout

SONAME = "libnvidia-ml.so.1"
PERSISTENCED = nvml_functions.SOURCES.parent / "persistenced"
"""The sources of `nvidia-persistenced`; NVML has those of its protocol, too."""
WARNINGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror")
HARDENING = ("-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-Wl,-z,now,-z,relro")
SHARED = ("-fPIC", "-fvisibility=hidden", "-shared", f"-Wl,-soname,{SONAME}", "-pthread")


class BuildError(Exception):
    """The C compiler is missing or failed. The message contains its output."""


def build() -> Path:
    """Compiles the library if it is not in the cache, and returns its path.

    Raises:
        BuildError: `gcc` is missing or failed.
    """
    directories = (nvml_functions.SOURCES, PERSISTENCED)
    sources = {
        path.name: path.read_text()
        for directory in directories
        for path in sorted(directory.glob("*.[ch]"))
    }
    rendered = {"layout.h": layout.c_header(), "functions.h": functions_h(), "stubs.c": stubs_c()}
    return compile_cached(SONAME, {**sources, **rendered}, (*WARNINGS, *HARDENING, *SHARED))


def compile_cached(output: str, sources: Mapping[str, str], flags: Sequence[str]) -> Path:
    """Compiles sources with gcc if the result is not in the cache, and returns its path.

    Results are added to the cache by rename, so concurrent and killed builds do no harm.

    Args:
        output: The name of the result.
        sources: File name → text. Files that end in `.c` are compiled; others can be included.
        flags: The flags of gcc.

    Raises:
        BuildError: `gcc` is missing or failed.
    """
    home = cache_home()
    home.mkdir(parents=True, exist_ok=True)
    target = home / _digest(output, sources, flags)
    if not (target / output).exists():
        scratch = Path(mkdtemp(prefix=".building-", dir=home))
        try:
            _compile(scratch, output, sources, flags)
            _publish(scratch, target)
        finally:
            rmtree(scratch, ignore_errors=True)
    return target / output


def cache_home() -> Path:
    """The directory of the cache: `${XDG_CACHE_HOME:-~/.cache}/nvdra/sim`."""
    cache = os.getenv("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "nvdra" / "sim"


def functions_h() -> str:
    """`functions.h`: an enumerator for each function, its name and its driver branch."""
    functions = nvml_functions.functions()
    enumerators = ", ".join(f"F_{one.name}" for one in functions)
    return "\n".join(
        (
            "/* Generated from names.txt. */",
            "#pragma once",
            f"enum function {{ {enumerators}, FUNCTION_COUNT }};",
            f"#define FUNCTION_NAMES {{ {', '.join(_quoted(one.name) for one in functions)} }}",
            f"#define FUNCTION_SINCE {{ {', '.join(str(one.since) for one in functions)} }}",
            "",
        )
    )


def stubs_c() -> str:
    """`stubs.c`: all functions of tier C. Their calls are counted and delayed like all others."""
    return "\n".join(
        (
            "/* Generated from names.txt. */",
            '#include "sim.h"',
            "#define STUB(name) \\",
            "    EXPORT nvml_code name(void) { CALL(name); NODE(); RETURN(NVML_NOT_SUPPORTED); }",
            *(f"STUB({one.name})" for one in nvml_functions.functions() if one.tier == "C"),
            "",
        )
    )


def _quoted(text: str) -> str:
    return f'"{text}"'


def _digest(output: str, sources: Mapping[str, str], flags: Sequence[str]) -> str:
    hash_ = hashlib.sha256(repr((output, tuple(flags), os.uname().machine)).encode())
    for name, text in sorted(sources.items()):
        hash_.update(repr((name, text)).encode())
    return hash_.hexdigest()[:24]


def _compile(
    directory: Path, output: str, sources: Mapping[str, str], flags: Sequence[str]
) -> None:
    for name, text in sources.items():
        (directory / name).write_text(text)
    command = ["gcc", *(name for name in sorted(sources) if name.endswith(".c"))]
    command += ["-o", output, *flags]
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BuildError("gcc is not installed; on Debian: apt-get install gcc libc6-dev") from None
    if done.returncode != 0:
        raise BuildError(f"gcc could not build {output}:\n{done.stderr}")


def _publish(scratch: Path, target: Path) -> None:
    """Adds the finished directory to the cache, unless another process has done so."""
    scratch.chmod(0o755)
    try:
        scratch.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def exported_names(path: Path) -> Iterator[str]:
    """The names that a shared library exports, according to `nm`."""
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", str(path)], capture_output=True, text=True, check=True
    )
    for line in listing.stdout.splitlines():
        yield line.split()[-1]
