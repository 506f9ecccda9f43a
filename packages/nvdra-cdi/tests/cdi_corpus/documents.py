# SPDX-License-Identifier: Apache-2.0
"""Valid pieces of documents, drawn from a random source, and places in a document to put them.

Everything here is a plain dictionary or list in a document's own words, free to be broken by the
caller. A source may be Python's or Hypothesis'.
"""

import random
from dataclasses import dataclass
from typing import Any

from cdi_corpus.table import VERSIONS

Tree = dict[str, Any]

HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
VENDORS = ("nvidia.com", "k8s.gpu.nvidia.com", "vv", "Vendor-1_x.example", "a9")
CLASSES = ("gpu", "claim", "c0", "imex-channel", "Device_2")
NAMES = ("a", "gpu-0", "all", "claim-5f0b", "x.y:z_1", "B", "mig-1g")
TEXTS = (
    "x",
    "yes",
    "0",
    "1.5",
    "null",
    "~",
    "a: b",
    "# no comment",
    "ü",
    "🙂",
    "<&>",
    "a b",
    "{}",
    "'",
    '"',
    "\\",
)
ENTRIES = (
    "A=b",
    "A=",
    "PATH=/bin:/usr/bin",
    "A=b=c",
    "LONG_NAME_1=with blanks",
    "ü=🙂",
    "a-b=1",
    " =x",
)
OPTIONS = (
    "ro",
    "rw",
    "nosuid",
    "nodev",
    "rbind",
    "rprivate",
    "bind",
    "noexec",
    "size=1m",
    "ridmap",
)

_OWNERS = {
    "DeviceNode": "deviceNodes",
    "NetDevice": "netDevices",
    "Hook": "hooks",
    "Mount": "mounts",
}


@dataclass(frozen=True)
class Case:
    """One document.

    Attributes:
        subject: The rule or field it is for.
        is_valid: Whether a reader must take it, by docs/reference/cdi.md.
        tree: What it says.
        is_writable: Whether a writer must take it too; `None`: our extra rules are not its subject.
    """

    subject: str
    is_valid: bool
    tree: Any
    is_writable: bool | None = None


def some(rng: random.Random, choices: tuple[str, ...], least: int = 0, most: int = 3) -> list[str]:
    """A few of the choices, each at most once."""
    return rng.sample(choices, rng.randint(least, most))


def path(rng: random.Random) -> str:
    """An absolute path; two draws are never equal in practice."""
    return f"/{rng.choice(('dev', 'usr/lib', 'opt/ü', 'a b'))}/x{rng.randrange(10**9)}"


def node(rng: random.Random) -> Tree:
    """A device node that need not be on the host."""
    made: Tree = {"path": path(rng), "type": rng.choice("bcu"), "major": rng.randint(1, 4095)}
    optional: Tree = {
        "minor": rng.randint(0, 1048575),
        "fileMode": rng.choice((0, 0o600, 0o666, 0o7777)),
        "permissions": rng.choice(("", "r", "rw", "rwm", "mwr", "rr", "none")),
        "uid": rng.choice((0, 1000, 4294967295)),
        "gid": rng.choice((0, 44, 4294967295)),
    }
    return made | {key: value for key, value in optional.items() if rng.random() < 0.4}


def net_device(rng: random.Random) -> Tree:
    """An interface; two draws are never equal in practice."""
    return {"hostInterfaceName": f"eth{rng.randrange(10**9)}", "name": f"net{rng.randrange(10**9)}"}


def hook(rng: random.Random) -> Tree:
    """A hook with or without arguments, environment and timeout."""
    made: Tree = {"hookName": rng.choice(HOOKS), "path": path(rng)}
    if rng.random() < 0.5:
        made["args"] = some(rng, TEXTS)
    if rng.random() < 0.3:
        made["env"] = some(rng, ENTRIES)
    if rng.random() < 0.3:
        made["timeout"] = rng.randint(1, 100)
    return made


def mount(rng: random.Random) -> Tree:
    """A mount as every version has it."""
    made: Tree = {"hostPath": path(rng), "containerPath": path(rng)}
    if rng.random() < 0.5:
        made["options"] = some(rng, OPTIONS)
    return made


def annotations(rng: random.Random) -> dict[str, str]:
    """What Kubernetes takes as annotations."""
    keys = ("a", "nvidia.com/gpu", "Example.COM/Key_1", "x.y-z", "1")
    return {key: rng.choice(TEXTS) for key in some(rng, keys, least=1)}


MAKERS = {"DeviceNode": node, "NetDevice": net_device, "Hook": hook, "Mount": mount}


def edits(rng: random.Random) -> Tree:
    """At least one edit, of those that 0.3.0 has."""
    kinds = rng.sample(("env", "deviceNodes", "hooks", "mounts"), rng.randint(1, 3))
    made: Tree = {}
    for kind in kinds:
        if kind == "env":
            made["env"] = some(rng, ENTRIES, least=1)
        else:
            maker = {"deviceNodes": node, "hooks": hook, "mounts": mount}[kind]
            made[kind] = [maker(rng) for _ in range(rng.randint(1, 2))]
    return made


def plain(rng: random.Random, versions: tuple[str, ...] = VERSIONS) -> Tree:
    """A valid document of what 0.3.0 has, with one of the versions."""
    made: Tree = {
        "cdiVersion": rng.choice(("", "v")) + rng.choice(versions),
        "kind": f"{rng.choice(VENDORS)}/{rng.choice(CLASSES)}",
        "devices": [
            {"name": name, "containerEdits": edits(rng)} for name in some(rng, NAMES, least=1)
        ],
    }
    if rng.random() < 0.5:
        made["containerEdits"] = edits(rng)
    return made


def any_device(rng: random.Random, tree: Tree) -> Tree:
    """One of the document's devices."""
    devices: list[Tree] = tree["devices"]
    return rng.choice(devices)


def any_edits(rng: random.Random, tree: Tree) -> Tree:
    """The edits of the document, or of one of its devices."""
    owner = tree if rng.random() < 0.5 else any_device(rng, tree)
    made: Tree = present(owner, "containerEdits", {})
    return made


def any_object(rng: random.Random, tree: Tree, owner: str) -> Tree:
    """An object of that kind in the document, made where there is none yet."""
    if owner == "Spec":
        return tree
    if owner == "Device":
        return any_device(rng, tree)
    if owner == "ContainerEdits":
        return any_edits(rng, tree)
    found = any_edits(rng, tree)
    if owner == "IntelRdt":
        rdt: Tree = present(found, "intelRdt", {})
        return rdt
    made = MAKERS[owner](rng)
    siblings = present(found, _OWNERS[owner], [])
    siblings.insert(rng.randint(0, len(siblings)), made)
    return made


def present(owner: Tree, key: str, empty: Any) -> Any:
    """The value of a field, made where it is absent or null."""
    if owner.get(key) is None:
        owner[key] = empty
    return owner[key]
