# SPDX-License-Identifier: Apache-2.0
"""Rules of ours beyond the standard, docs/reference/cdi.md §4: such documents are read, and not
written.
"""

from collections.abc import Callable

from cdi_corpus import documents
from cdi_corpus.documents import Tree
from cdi_corpus.generators import Generators, Random

made = Generators()

_BAD_KEYS = (
    "", "-a", "a-", "a b", "a/b/c", "/a", "a/", "ü", "x" * 64, "a_b/c", "-a/b", "y" * 254 + "/a",
    "a..b/c",
)  # fmt: skip
_RELATIVE = ("a", "./a", "../a", "dev/x", "~/a", "C:/a", " /a")
_CLEAN = ("a\tb", "tab\t", "\r", "bell\a")
_DIRTY = ("a\nb", "\n", "a\0", "\0b")
_PATHS = ("/a", "/usr/lib/ü", "/a b", "/")

made.value("absolute hook path", "Hook.path", _PATHS, _RELATIVE)
made.value("absolute mount path", "Mount.hostPath containerPath", _PATHS, _RELATIVE)
made.value("absolute node path", "DeviceNode.path hostPath", _PATHS, _RELATIVE)
made.value("positive timeout", "Hook.timeout", (1, 2, 30, 1 << 40, None), (0, -1, -100))
made.value("fileMode range", "DeviceNode.fileMode", (0, 0o444, 0o7777, None), (0o10000, 0o100666))
made.value("major range", "DeviceNode.major", (1, 195, 4095), (4096, -1, 1 << 40))
made.value("minor range", "DeviceNode.minor", (0, 255, 1048575, None), (1048576, -1, 1 << 40))


@made.of("spec annotations")
def _spec_annotations(rng: Random, tree: Tree, keeps: bool) -> None:
    tree["annotations"] = _annotations(rng, keeps)


@made.of("device annotations")
def _device_annotations(rng: Random, tree: Tree, keeps: bool) -> None:
    documents.any_device(rng, tree)["annotations"] = _annotations(rng, keeps)


def _annotations(rng: Random, keeps: bool) -> dict[str, str]:
    made = documents.annotations(rng)
    if keeps:
        return made | {rng.choice(("A.B/C", "x" * 63, "y" * 60 + "." + "y" * 60 + "/a")): "fits"}
    if rng.random() < 0.15:
        return {"a": "ü" * 131072, "b": ""}
    return made | {rng.choice(_BAD_KEYS): "x"}


@made.of("vendor length")
def _vendor_length(rng: Random, tree: Tree, keeps: bool) -> None:
    tree["kind"] = f"{'v' * (rng.randint(2, 253) if keeps else rng.randint(254, 400))}/gpu"


@made.of("class length")
def _class_length(rng: Random, tree: Tree, keeps: bool) -> None:
    tree["kind"] = f"nvidia.com/{'c' * (rng.randint(2, 63) if keeps else rng.randint(64, 200))}"


@made.of("one-character vendor")
def _short_vendor(rng: Random, tree: Tree, keeps: bool) -> None:
    tree["kind"] = f"{rng.choice(('ab', 'v.com') if keeps else ('a', 'Z'))}/gpu"


@made.of("one-character class")
def _short_class(rng: Random, tree: Tree, keeps: bool) -> None:
    tree["kind"] = f"nvidia.com/{rng.choice(('ab', 'gpu') if keeps else ('a', 'Z'))}"


@made.of("no control characters")
def _no_control(rng: Random, tree: Tree, keeps: bool) -> None:
    places = (("Hook", "args"), ("Mount", "options"), ("Hook", "env"), ("ContainerEdits", "env"))
    text, (owner, key) = rng.choice(_CLEAN if keeps else _DIRTY), rng.choice(places)
    documents.any_object(rng, tree, owner)[key] = [f"A={text}" if key == "env" else text]


@made.of("FIFO without major")
def _fifo(rng: Random, tree: Tree, keeps: bool) -> None:
    node = documents.any_object(rng, tree, "DeviceNode")
    node["type"] = "p"
    if keeps:
        node.pop("major", None)
    else:
        node["major"] = rng.randint(1, 4095)


def _apart(name: str, key: str, place: str, make: Callable[[Random], Tree]) -> None:
    @made.of(name)
    def generator(rng: Random, tree: Tree, keeps: bool) -> None:
        first, second = make(rng), make(rng)
        if not keeps:
            second[place] = first[place]
        device = documents.any_device(rng, tree)
        if rng.random() < 0.5:
            documents.present(device, "containerEdits", {})[key] = [first, second]
        else:
            tree["containerEdits"] = {key: [first]}
            documents.present(device, "containerEdits", {})[key] = [second]


_apart("one node per path", "deviceNodes", "path", documents.node)
_apart("one mount per path", "mounts", "containerPath", documents.mount)
