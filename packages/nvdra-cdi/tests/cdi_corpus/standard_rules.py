# SPDX-License-Identifier: Apache-2.0
"""Rules about names and entities, docs/reference/cdi.md §§3 and 4."""

from typing import Any

from cdi_corpus import documents
from cdi_corpus.documents import ENTRIES, HOOKS, Tree
from cdi_corpus.generators import Generators, Random

made = Generators()

_QUALIFIERS = ("a", "Z", "a1", "nvidia.com", "a_b", "a-b", "a..b", "x" * 63, "Ab9", "a-_.b")
_BAD_QUALIFIERS = (
    "1a", "-a", ".a", "_a", "a-", "a.", "a_", "a b", "ü", "aüb", "bü", "a:b", "a=b", "1",
    "a\nb", "a\n", "٣",
)  # fmt: skip
_NAMES = ("a", "0", "9z", "0:1", "a:b", "a..b", "a-_.:b", "Z", "x" * 300, "5f0b-gpu-0")
_BAD_NAMES = (
    "", "-a", ".a", ":a", "_a", "a-", "a:", "a.", "a_", "a b", "a=b", "a/b",
    "ü", "aüb", "bü", "a\nb", "a\n", "٣", "²x",
)  # fmt: skip
_PATHS = ("/dev/a", "/dev/ü", "/", "/a b")
_BAD_ENTRIES = ("", "A", "=", "=b", "==", "no equals sign", "🙂")
_BAD_HOOKS = ("", None, "Prestart", "preStart", "createruntime", "stop", "prestart ")
_PERMISSIONS = ("", "r", "w", "m", "rw", "rwm", "mrw", "rrr", "none", None)
_BAD_PERMISSIONS = ("x", "rwx", "NONE", "none ", "R", "r,w", "nonerwm", "rw m", "7", " ")
_LONG_CLASSES = ("a" * 4096, "ü" * 2048, "🙂" * 1024, "a" * 9999)
_BAD_CLASSES = (".", "..", "a/b", "//", "/a", "a/", "a\nb", "\n")
_OPTIONAL = {
    "Spec": ("annotations", "containerEdits"),
    "Device": ("annotations",),
    "ContainerEdits": ("netDevices", "intelRdt", "additionalGids"),
    "DeviceNode": ("hostPath", "minor", "fileMode", "permissions", "uid", "gid"),
    "Hook": ("args", "env", "timeout"),
    "Mount": ("options", "type"),
    "IntelRdt": ("closID", "l3CacheSchema", "schemata", "enableMonitoring"),
}

made.value("device node path", "DeviceNode.path", _PATHS, ("", None))
made.value("device node type", "DeviceNode.type", ("", *"bcu", None), ("x", "C", "char", "cc", "d"))
made.value("device node permissions", "DeviceNode.permissions", _PERMISSIONS, _BAD_PERMISSIONS)
made.value("hook name", "Hook.hookName", HOOKS, _BAD_HOOKS)
made.value("hook path", "Hook.path", _PATHS, ("", None))
made.value("mount hostPath", "Mount.hostPath", _PATHS, ("", None))
made.value("mount containerPath", "Mount.containerPath", _PATHS, ("", None))
made.value("closID length", "IntelRdt.closID", ("a" * 4095, "ü" * 2047, "", "a"), _LONG_CLASSES)
made.value("closID name", "IntelRdt.closID", ("/", "a", "...", ".a", "a b", ""), _BAD_CLASSES)


@made.of("vendor")
def _vendor(rng: Random, tree: Tree, keeps: bool) -> None:
    class_ = rng.choice(documents.CLASSES)
    tree["kind"] = f"{rng.choice(_QUALIFIERS if keeps else ('', *_BAD_QUALIFIERS))}/{class_}"
    if not keeps and rng.random() < 0.2:
        tree["kind"] = rng.choice((class_, "", "nvidia.com", "nvidia.com/"))


@made.of("class")
def _class(rng: Random, tree: Tree, keeps: bool) -> None:
    bad = (*_BAD_QUALIFIERS, "a/b", "/a", "a/", "/")
    tree["kind"] = f"{rng.choice(documents.VENDORS)}/{rng.choice(_QUALIFIERS if keeps else bad)}"


@made.of("device name")
def _device_name(rng: Random, tree: Tree, keeps: bool) -> None:
    device = documents.any_device(rng, tree)
    device["name"] = rng.choice(_NAMES if keeps else _BAD_NAMES)
    tree["devices"] = [device]  # another one could have this name


@made.of("device name unique")
def _unique(rng: Random, tree: Tree, keeps: bool) -> None:
    name = rng.choice(documents.NAMES)
    count = rng.randint(2, 6)
    names = [f"{name}{index}" for index in range(count)] if keeps else [name, "b1", name]
    tree["devices"] = [{"name": each, "containerEdits": documents.edits(rng)} for each in names]


@made.of("a device")
def _a_device(rng: Random, tree: Tree, keeps: bool) -> None:
    if keeps:
        tree["devices"] = tree["devices"][:1]
    elif rng.random() < 0.7:
        tree["devices"] = rng.choice(([], None))
    else:
        del tree["devices"]


@made.of("null field")
def _null_field(rng: Random, tree: Tree, keeps: bool) -> None:
    for owner in documents.some(rng, tuple(_OPTIONAL), least=1, most=4):
        documents.any_object(rng, tree, owner)[rng.choice(_OPTIONAL[owner])] = None


@made.of("null entry")
def _null_entry(rng: Random, tree: Tree, keeps: bool) -> None:
    lists: tuple[tuple[str, str, list[Any]], ...] = (
        ("ContainerEdits", "env", ["A=b"]),
        ("ContainerEdits", "deviceNodes", [documents.node(rng)]),
        ("ContainerEdits", "netDevices", [documents.net_device(rng)]),
        ("ContainerEdits", "hooks", [documents.hook(rng)]),
        ("ContainerEdits", "mounts", [documents.mount(rng)]),
        ("ContainerEdits", "additionalGids", [44]),
        ("Mount", "options", ["ro"]),
        ("Hook", "args", ["x"]),
        ("Hook", "env", ["A=b"]),
        ("IntelRdt", "schemata", ["L3:0=f"]),
        ("Spec", "devices", [{"name": "a", "containerEdits": {"env": ["A=b"]}}]),
    )
    owner, key, entries = rng.choice(lists)
    if not keeps:
        entries.insert(rng.randint(0, 1), None)
    documents.any_object(rng, tree, owner)[key] = entries


@made.of("env")
def _env(rng: Random, tree: Tree, keeps: bool) -> None:
    documents.any_edits(rng, tree)["env"] = _entries(rng, keeps)


@made.of("hook env")
def _hook_env(rng: Random, tree: Tree, keeps: bool) -> None:
    documents.any_object(rng, tree, "Hook")["env"] = _entries(rng, keeps)


def _entries(rng: Random, keeps: bool) -> list[str]:
    entries = documents.some(rng, ENTRIES, least=1)
    if not keeps:
        entries.insert(rng.randint(0, len(entries)), rng.choice(_BAD_ENTRIES))
    return entries


@made.of("net device names")
def _net_names(rng: Random, tree: Tree, keeps: bool) -> None:
    device = documents.any_object(rng, tree, "NetDevice")
    if not keeps:
        key = rng.choice(tuple(device))
        del device[key]
        if rng.random() < 0.5:
            device[key] = ""


def _unshared(name: str, key: str) -> None:
    @made.of(name)
    def generator(rng: Random, tree: Tree, keeps: bool) -> None:
        devices = [documents.net_device(rng) for _ in range(rng.randint(2, 4))]
        if keeps:  # the same name in other edits, or in the other field, is fine
            tree["containerEdits"] = {"netDevices": [dict(devices[0])]}
            devices[0]["name"] = devices[1]["hostInterfaceName"]
        else:
            first, second = rng.sample(devices, 2)
            first[key] = second[key]
        device = documents.any_device(rng, tree)
        documents.present(device, "containerEdits", {})["netDevices"] = devices


_unshared("net device hosts unique", "hostInterfaceName")
_unshared("net device names unique", "name")


@made.of("additionalGids")
def _gids(rng: Random, tree: Tree, keeps: bool) -> None:
    gids = [rng.choice((0, 1, 44, 44, 65534, 4294967295)) for _ in range(rng.randint(0, 4))]
    documents.any_edits(rng, tree)["additionalGids"] = gids


@made.of("device edits")
def _device_edits(rng: Random, tree: Tree, keeps: bool) -> None:
    full: dict[str, Any] = {
        "env": ["A=b"],
        "deviceNodes": [documents.node(rng)],
        "netDevices": [documents.net_device(rng)],
        "hooks": [documents.hook(rng)],
        "mounts": [documents.mount(rng)],
        "intelRdt": {},
        "additionalGids": [rng.choice((0, 44))],
    }
    empty: tuple[Tree | None, ...] = (
        {},
        None,
        {"intelRdt": None},
        {"env": []},
        {"mounts": None},
        {"hooks": [], "env": None},
    )
    key = rng.choice(tuple(full))
    device = documents.any_device(rng, tree)
    device["containerEdits"] = {key: full[key]} if keeps else rng.choice(empty)
    if not keeps and rng.random() < 0.2:
        del device["containerEdits"]


@made.of("spec edits")
def _spec_edits(rng: Random, tree: Tree, keeps: bool) -> None:
    tree["containerEdits"] = rng.choice(
        ({}, None, {"env": []}, {"mounts": None}, documents.edits(rng))
    )
    if rng.random() < 0.2:
        del tree["containerEdits"]
