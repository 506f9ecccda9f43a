# SPDX-License-Identifier: Apache-2.0
"""What devices are injected into, and spec directories to inject them from.

Container configurations are combined from sections as runtimes and people leave them: absent, null,
empty, filled. Documents use few names and places, so that they meet what is there, and each other.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdi_corpus import documents, text
from cdi_corpus.documents import Tree

Random = random.Random

_ABSENT = object()
_ENV = ["A=1", "PATH=/usr/bin", "A=2", "NO_EQUALS_SIGN", "B="]
_HOOK = {"path": "/bin/there", "args": ["there"], "env": ["X=1"], "timeout": 5}
_RULE = {"allow": False, "access": "rwm"}
_USER = {"uid": 1000, "gid": 2000, "additionalGids": [44, 7, 44]}
_NODES = [
    {"path": "/dev/a", "type": "c", "major": 1, "minor": 3, "fileMode": 438, "uid": 0, "gid": 0},
    {"path": "/dev/b", "type": "b", "major": 7, "minor": 1},
    {"path": "/dev/a", "type": "p"},
]
_MOUNTS = [
    {"destination": "/", "source": "/r", "type": "none", "options": ["rbind"]},
    {"destination": "/usr/lib/x", "source": "/s"},
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/a/b", "source": "/one", "options": ["ro"]},
    {"destination": "/a", "source": "/two"},
    {"destination": "/a/b", "source": "/three"},
    {"destination": "/a/", "source": "/four"},
    {"destination": "//x/../y//z", "source": "/five"},
    {"destination": "", "source": "/six"},
    {"destination": "relative/path", "source": "/seven"},
]
_SECTIONS: dict[str, tuple[Any, ...]] = {
    "process": (
        _ABSENT,
        None,
        {},
        {"cwd": "/", "user": {"uid": 0, "gid": 0}, "env": None},
        {"cwd": "/", "user": {"uid": 1000, "gid": 0}, "env": []},
        {"cwd": "/", "user": _USER, "env": _ENV, "args": ["sleep", "1"]},
        {"cwd": "/x", "user": {"additionalGids": None}, "env": ["B=1"], "noNewPrivileges": True},
        {"cwd": "/", "user": None},
    ),
    "mounts": (_ABSENT, None, [], _MOUNTS, list(reversed(_MOUNTS)), _MOUNTS[2:5]),
    "hooks": (
        _ABSENT,
        None,
        {},
        {"prestart": [_HOOK], "createContainer": [_HOOK, _HOOK]},
        {"poststop": None, "createRuntime": [], "startContainer": [{"path": "/bin/y"}]},
    ),
    "linux": (
        _ABSENT,
        None,
        {},
        {"devices": None, "resources": None, "netDevices": None, "namespaces": None},
        {"devices": _NODES, "resources": {"devices": [_RULE], "memory": {"limit": 1}}},
        {"devices": [], "resources": {}, "netDevices": {}, "namespaces": [{"type": "user"}]},
        {
            "namespaces": [{"type": "pid"}, {"type": "user", "path": "/proc/1/ns/user"}],
            "netDevices": {"eth0": {"name": "other"}, "eth9": {}},
            "intelRdt": {"closID": "there", "enableMonitoring": True},
            "resources": {"devices": None},
            "cgroupsPath": "/x",
        },
    ),
    "annotations": (_ABSENT, None, {"a": "b"}),
}

_KINDS = ("v.com/a", "v.com/b", "w.com/a", "nvidia.com/gpu.x")
_DEVICES = ("0", "gpu-0", "a", "b")
_CONTAINER_PATHS = (
    "/",
    "/a",
    "/a/b",
    "/a/b/c",
    "/usr/lib/x",
    "/proc",
    "/a/",
    "relative/path",
    "/x/../y",
)
_VARIABLES = ("A=3", "B=4", "PATH=/opt:/bin", "C=", "NO_EQUALS_SIGN=1", "A=a=b")
_MOUNT_OPTIONS = ("ro", "bind", "rbind", "idmap", "ridmap", "nosuid", "rprivate")


@dataclass(frozen=True)
class Directories:
    """Spec directories, the lowest first, and what may be asked for.

    Attributes:
        paths: The directories.
        definitions: For each qualified name how many files of each directory define it.
    """

    paths: tuple[str, ...]
    definitions: dict[str, tuple[int, ...]]


def configurations(rng: Random, count: int) -> list[Tree]:
    """That many configurations, each section as one of its kinds."""
    return [
        {"ociVersion": "1.3.0", "hostname": "h"}
        | {
            key: chosen
            for key, kinds in _SECTIONS.items()
            if (chosen := rng.choice(kinds)) is not _ABSENT
        }
        for _ in range(count)
    ]


def every_section() -> list[Tree]:
    """For each kind of each section a configuration with nothing else."""
    alone = [
        {key: kind} for key, kinds in _SECTIONS.items() for kind in kinds if kind is not _ABSENT
    ]
    return [{}, {"ociVersion": "1.3.0"}, *alone]


def host(top: Path) -> dict[str, str]:
    """Paths on the host for device nodes: real ones, others, and one that is not there."""
    top.mkdir(parents=True)
    os.mkfifo(top / "fifo", 0o640)
    (top / "file").touch()
    (top / "link").symlink_to("/dev/null")
    names = ("fifo", "file", "link", "missing")
    return {name: str(top / name) for name in names} | {"null": "/dev/null", "zero": "/dev/zero"}


def directories(rng: Random, top: Path, nodes: dict[str, str]) -> Directories:
    """Directories with specs, some of which define the same devices, and with other files."""
    folders = [top / name for name in ("static", "dynamic", "last")[: rng.randint(1, 3)]]
    found = [Counter(_filled(rng, folder, nodes)) for folder in folders]
    if rng.random() < 0.2:
        place = rng.randint(0, len(folders))
        folders.insert(place, top / "not-there")
        found.insert(place, Counter())
    names = sorted({name for each in found for name in each})
    definitions = {name: tuple(each[name] for each in found) for name in names}
    return Directories(tuple(map(str, folders)), definitions)


def _filled(rng: Random, folder: Path, nodes: dict[str, str]) -> Iterator[str]:
    """Fill a directory; the names that its specs define."""
    folder.mkdir(parents=True)
    for index in range(rng.randint(0, 3)):
        tree = document(rng, nodes)
        (folder / f"{index}{rng.choice(('.yaml', '.json'))}").write_bytes(text.written(tree, rng))
        yield from (f"{tree['kind']}={device['name']}" for device in tree["devices"])
    for disturb in rng.sample(_DISTURBANCES, rng.randint(0, 3)):
        disturb(folder)


def document(rng: Random, nodes: dict[str, str]) -> Tree:
    """A valid spec with any edits."""
    made: Tree = {
        "cdiVersion": "1.1.0",
        "kind": rng.choice(_KINDS),
        "devices": [
            {"name": name, "containerEdits": _edits(rng, nodes, least=1)}
            for name in documents.some(rng, _DEVICES, least=1)
        ],
    }
    if rng.random() < 0.6:
        made["containerEdits"] = _edits(rng, nodes, least=0)
    return made


def _edits(rng: Random, nodes: dict[str, str], least: int) -> Tree:
    makers: dict[str, Callable[[], Any]] = {
        "env": lambda: documents.some(rng, _VARIABLES, least=1),
        "deviceNodes": lambda: [_node(rng, nodes) for _ in range(rng.randint(1, 3))],
        "netDevices": lambda: [{"hostInterfaceName": rng.choice(("eth0", "eth1")), "name": "n"}],
        "hooks": lambda: [documents.hook(rng) for _ in range(rng.randint(1, 3))],
        "mounts": lambda: [_mount(rng) for _ in range(rng.randint(1, 4))],
        "intelRdt": lambda: _intel_rdt(rng),
        "additionalGids": lambda: [rng.choice((0, 7, 44, 45, 45)) for _ in range(3)],
    }
    return {key: makers[key]() for key in documents.some(rng, tuple(makers), least=least, most=4)}


def _node(rng: Random, nodes: dict[str, str]) -> Tree:
    made: Tree = {"path": rng.choice(("/dev/a", "/dev/b", "/dev/c"))}
    if rng.random() < 0.85:  # enough is said, the host need not have it
        made |= {"type": rng.choice("bcu"), "major": rng.randint(1, 255)}
        made["hostPath"] = rng.choice(tuple(nodes.values()))
    else:
        where = rng.choice(("null", "zero", "fifo", "null", "zero", "fifo", *nodes))
        made["hostPath"] = nodes[where]
        fitting = "p" if where == "fifo" else "c"
        made["type"] = rng.choice(("", "", fitting, fitting, "b", "u"))
    optional: Tree = {
        "minor": rng.randint(1, 9),
        "fileMode": rng.choice((0, 0o600, 0o4755)),
        "permissions": rng.choice(("", "r", "rwm", "wr", "none")),
        "uid": rng.choice((0, 5)),
        "gid": rng.choice((0, 5)),
    }
    return made | {key: value for key, value in optional.items() if rng.random() < 0.35}


def _mount(rng: Random) -> Tree:
    made: Tree = {"hostPath": documents.path(rng), "containerPath": rng.choice(_CONTAINER_PATHS)}
    if rng.random() < 0.7:
        made["options"] = documents.some(rng, _MOUNT_OPTIONS, most=4)
    if rng.random() < 0.4:
        made["type"] = rng.choice(("", "bind", "tmpfs"))
    return made


def _intel_rdt(rng: Random) -> Tree:
    whole: Tree = {
        "closID": rng.choice(("/", "x")),
        "l3CacheSchema": "L3:0=f",
        "memBwSchema": "MB:0=20",
        "schemata": rng.choice(([], ["L3:0=f"])),
        "enableMonitoring": rng.random() < 0.5,
    }
    return {key: whole[key] for key in documents.some(rng, tuple(whole), most=5)}


def _broken(folder: Path) -> None:
    (folder / "broken.yaml").write_text("kind: [")


def _invalid(folder: Path) -> None:
    (folder / "invalid.json").write_text(
        '{"cdiVersion": "0.3.0", "kind": "v.com/a", "devices": []}'
    )


def _not_specs(folder: Path) -> None:
    for name in ("x.yml", "spec.1.tmp", "x.yaml.bak", "yaml", "README"):
        (folder / name).write_text("kind: [")


def _subfolder(folder: Path) -> None:
    (folder / "d.yaml").mkdir()
    (folder / "d.yaml" / "broken.yaml").write_text("kind: [")


def _dangling(folder: Path) -> None:
    (folder / "dangling.yaml").symlink_to(folder / "nothing")


def _link_to_folder(folder: Path) -> None:
    (folder / "folder.json").symlink_to(folder)


def _link_to_file(folder: Path) -> None:
    target = folder.parent / "linked"
    target.write_text(
        '{"cdiVersion": "0.3.0", "kind": "x.com/linked",'
        ' "devices": [{"name": "a", "containerEdits": {"env": ["L=1"]}}]}'
    )
    (folder / "linked.json").symlink_to(target)


_DISTURBANCES = (
    _broken,
    _invalid,
    _not_specs,
    _subfolder,
    _dangling,
    _link_to_folder,
    _link_to_file,
)
