"""The simulated `libnvidia-ml.so.1`: compiled on first use, cached under the hash of its sources.

The C compiler gets the sources of `e2e/sim/lib` and three rendered files: `layout.h` (the state
file), `functions.h` (the list of names) and `stubs.c` (the functions that answer NOT_SUPPORTED).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from nvdra_sim import layout, names

SONAME = "libnvidia-ml.so.1"
WARNINGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror")
HARDENING = ("-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-Wl,-z,now,-z,relro")
SHARED = ("-fPIC", "-fvisibility=hidden", "-shared", f"-Wl,-soname,{SONAME}", "-pthread")


class BuildError(Exception):
    """The C compiler is missing or refused a source; the message has its words."""


def build() -> Path:
    """Compiles the library unless that has been done, and returns its path.

    Raises:
        BuildError: There is no `gcc`, or it failed.
    """
    sources = {path.name: path.read_text() for path in sorted(names.SOURCES.glob("*.[ch]"))}
    rendered = {"layout.h": layout.c_header(), "functions.h": functions_h(), "stubs.c": stubs_c()}
    return compiled(SONAME, {**sources, **rendered}, (*WARNINGS, *HARDENING, *SHARED))


def compiled(output: str, sources: Mapping[str, str], flags: Sequence[str]) -> Path:
    """The path of what gcc makes of these sources: from the cache, or made now.

    A directory appears in the cache whole, by rename: concurrent or killed builds do no harm.

    Args:
        output: The file's name.
        sources: File name → text; those ending in `.c` are compiled, others are for inclusion.
        flags: Of gcc.

    Raises:
        BuildError: There is no `gcc`, or it failed.
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
    """Where built files are kept: `${XDG_CACHE_HOME:-~/.cache}/nvdra/sim`."""
    cache = os.getenv("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "nvdra" / "sim"


def functions_h() -> str:
    """`functions.h`: an enumerator per name, and each one's name and age."""
    functions = names.functions()
    enumerators = ", ".join(f"F_{one.name}" for one in functions)
    return "\n".join(
        (
            "/* Rendered from names.txt. */",
            "#pragma once",
            f"enum function {{ {enumerators}, FUNCTION_COUNT }};",
            f"#define FUNCTION_NAMES {{ {', '.join(_quoted(one.name) for one in functions)} }}",
            f"#define FUNCTION_SINCE {{ {', '.join(str(one.since) for one in functions)} }}",
            "",
        )
    )


def stubs_c() -> str:
    """`stubs.c`: every name of tier C. Such a call is counted and slowed like any other."""
    return "\n".join(
        (
            "/* Rendered from names.txt. */",
            '#include "sim.h"',
            "#define STUB(name) \\",
            "    EXPORT nvml_code name(void) { CALL(name); NODE(); RETURN(NVML_NOT_SUPPORTED); }",
            *(f"STUB({one.name})" for one in names.functions() if one.tier == "C"),
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
    """Moves the finished directory into place, unless another process was first."""
    scratch.chmod(0o755)
    try:
        scratch.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def exported(path: Path) -> Iterator[str]:
    """The names that a shared library defines for others, by `nm`."""
    listing = subprocess.run(
        ["nm", "--dynamic", "--defined-only", str(path)], capture_output=True, text=True, check=True
    )
    for line in listing.stdout.splitlines():
        yield line.split()[-1]
