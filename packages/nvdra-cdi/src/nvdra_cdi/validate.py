"""The rules of a CDI document: every problem, with its path (spec/cdi.md §4).

The standard's rules make a document invalid. Our extra rules (`Problem.is_extra`) catch what the
reference library lets through and a container runtime then trips over: we never write such a
document, but accept somebody else's.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain

from nvdra_cdi import names, version
from nvdra_cdi.errors import NameError_, Problem, ValidationError
from nvdra_cdi.model import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec

HOOK_NAMES = frozenset(
    ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
)
_NODE_TYPES = frozenset(("", "b", "c", "u", "p"))
_MAX_VENDOR = 253  # characters; the standard's text, from DNS
_MAX_CLASS = 63
_MAX_CLOS_ID = 4096  # bytes, exclusive: PATH_MAX
_MAX_ANNOTATIONS = 256 * 1024  # bytes over all keys and values, as in Kubernetes objects
_MAX_MAJOR = (1 << 12) - 1  # the kernel's dev_t
_MAX_MINOR = (1 << 20) - 1
_MAX_MODE = 0o7777
_CONTROL = re.compile("[\0\n]")
_ANNOTATION_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,61}[a-z0-9])?", re.ASCII)
_DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_ANNOTATION_PREFIX = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*", re.ASCII)


def check(spec: Spec, *, strict: bool = True, source: str = "") -> None:
    """Refuse a document that breaks a rule.

    Args:
        spec: The document.
        strict: Our extra rules count too; on when writing, off when reading.
        source: The file it came from or goes to, for the message.

    Raises:
        ValidationError: With all problems that count.
    """
    found = tuple(problem for problem in problems(spec) if strict or not problem.is_extra)
    if found:
        raise ValidationError(found, source)


def problems(spec: Spec) -> tuple[Problem, ...]:
    """Every problem, those of the standard and our extra ones, in the order of the document."""
    common = spec.container_edits
    return tuple(
        chain(
            _head(spec),
            _edits(common, "containerEdits"),
            _clashes(ContainerEdits(), common, "containerEdits"),
            _devices(spec),
        )
    )


def _head(spec: Spec) -> Iterator[Problem]:
    if (message := version.problem(spec)) is not None:
        yield Problem("cdiVersion", message)
    vendor, class_ = names.parse_qualifier(spec.kind)
    for part, value, rule, longest in (
        ("vendor", vendor, names.validate_vendor, _MAX_VENDOR),
        ("class", class_, names.validate_class, _MAX_CLASS),
    ):
        try:
            rule(value)
        except NameError_ as error:
            yield Problem("kind", str(error))
        if len(value) > longest:
            yield Problem("kind", f'{part} "{value}" is over {longest} characters', is_extra=True)
    yield from _annotations(spec.annotations, "annotations")


def _devices(spec: Spec) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, device in enumerate(spec.devices):
        path = f"devices[{index}]"
        for found in chain(
            _device_name(device.name, f"{path}.name"),
            _annotations(device.annotations, f"{path}.annotations"),
            _device_edits(device.container_edits, f"{path}.containerEdits"),
            _clashes(spec.container_edits, device.container_edits, f"{path}.containerEdits"),
        ):
            yield Problem(found.path, found.message, device.name, found.is_extra)
        if device.name in seen:
            yield Problem(f"{path}.name", "another device has this name", device.name)
        seen.add(device.name)
    if not spec.devices:
        yield Problem("devices", "a spec needs at least one device")


def _device_name(name: str, path: str) -> Iterator[Problem]:
    try:
        names.validate_device(name)
    except NameError_ as error:
        yield Problem(path, str(error))


def _device_edits(edits: ContainerEdits, path: str) -> Iterator[Problem]:
    if not edits:
        yield Problem(path, "a device needs at least one edit")
    yield from _edits(edits, path)


def _edits(edits: ContainerEdits, path: str) -> Iterator[Problem]:
    yield from _env(edits.env, f"{path}.env")
    for index, node in enumerate(edits.device_nodes):
        yield from _device_node(node, f"{path}.deviceNodes[{index}]")
    for index, hook in enumerate(edits.hooks):
        yield from _hook(hook, f"{path}.hooks[{index}]")
    for index, mount in enumerate(edits.mounts):
        yield from _mount(mount, f"{path}.mounts[{index}]")
    if edits.intel_rdt is not None:
        yield from _intel_rdt(edits.intel_rdt, f"{path}.intelRdt")
    yield from _net_devices(edits.net_devices, f"{path}.netDevices")


def _env(env: tuple[str, ...], path: str) -> Iterator[Problem]:
    for index, entry in enumerate(env):
        if entry.find("=") < 1:
            yield Problem(f"{path}[{index}]", f'"{entry}" is not NAME=value')
        yield from _text(entry, f"{path}[{index}]")


def _device_node(node: DeviceNode, path: str) -> Iterator[Problem]:
    yield from _path(node.path, f"{path}.path")
    if node.host_path:
        yield from _path(node.host_path, f"{path}.hostPath")
    if node.type not in _NODE_TYPES:
        yield Problem(f"{path}.type", f'"{node.type}" is none of b, c, u, p')
    if node.permissions != "none" and set(node.permissions) - set("rwm"):
        message = f'"{node.permissions}" is neither letters of rwm nor none'
        yield Problem(f"{path}.permissions", message)
    for field, value, highest in (
        ("major", node.major, _MAX_MAJOR),
        ("minor", node.minor, _MAX_MINOR),
        ("fileMode", node.file_mode or 0, _MAX_MODE),
    ):
        if not 0 <= value <= highest:
            yield Problem(f"{path}.{field}", f"{value} is not in 0…{highest}", is_extra=True)
    if node.type == "p" and node.major:
        yield Problem(f"{path}.major", f"{node.major}: a FIFO has no major number", is_extra=True)


def _hook(hook: Hook, path: str) -> Iterator[Problem]:
    if hook.hook_name not in HOOK_NAMES:
        known = ", ".join(sorted(HOOK_NAMES))
        yield Problem(f"{path}.hookName", f'"{hook.hook_name}" is none of {known}')
    yield from _path(hook.path, f"{path}.path")
    for index, argument in enumerate(hook.args):
        yield from _text(argument, f"{path}.args[{index}]")
    yield from _env(hook.env, f"{path}.env")
    if hook.timeout is not None and hook.timeout <= 0:
        yield Problem(f"{path}.timeout", f"{hook.timeout} is not above 0 s", is_extra=True)


def _mount(mount: Mount, path: str) -> Iterator[Problem]:
    if mount.type in ("", "bind"):
        yield from _path(mount.host_path, f"{path}.hostPath")
    elif not mount.host_path:
        yield Problem(f"{path}.hostPath", "is empty")
    yield from _path(mount.container_path, f"{path}.containerPath")
    for index, option in enumerate((*mount.options, mount.type)):
        field = "type" if index == len(mount.options) else f"options[{index}]"
        yield from _text(option, f"{path}.{field}")


def _intel_rdt(rdt: IntelRdt, path: str) -> Iterator[Problem]:
    clos = rdt.clos_id
    if clos == "/":
        return
    if len(clos.encode()) >= _MAX_CLOS_ID:
        yield Problem(f"{path}.closID", f"is not shorter than {_MAX_CLOS_ID} bytes")
    elif clos in (".", "..") or "/" in clos or "\n" in clos:
        yield Problem(f"{path}.closID", f"{clos!r} is no class name")


def _net_devices(devices: tuple[NetDevice, ...], path: str) -> Iterator[Problem]:
    hosts: set[str] = set()
    inside: set[str] = set()
    for index, device in enumerate(devices):
        for field, value, seen in (
            ("hostInterfaceName", device.host_interface_name, hosts),
            ("name", device.name, inside),
        ):
            if not value:
                yield Problem(f"{path}[{index}].{field}", "is empty")
            elif value in seen:
                yield Problem(f"{path}[{index}].{field}", f'"{value}" is there twice')
            yield from _text(value, f"{path}[{index}].{field}")
            seen.add(value)


def _annotations(annotations: Mapping[str, str], path: str) -> Iterator[Problem]:
    """Kubernetes' rule for annotation keys; extra, as the reference library never applies it."""
    for key in annotations:
        prefix, slash, name = key.lower().rpartition("/")
        well_prefixed = not slash or (len(prefix) <= 253 and _ANNOTATION_PREFIX.fullmatch(prefix))
        if not well_prefixed or not _ANNOTATION_NAME.fullmatch(name):
            yield Problem(path, f'"{key}" is no annotation key', is_extra=True)
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > _MAX_ANNOTATIONS:
        yield Problem(path, f"{size} bytes are over {_MAX_ANNOTATIONS}", is_extra=True)


def _clashes(common: ContainerEdits, own: ContainerEdits, path: str) -> Iterator[Problem]:
    """Two different nodes, or mounts, at one place of the container; repetition does no harm."""
    nodes = {node.path: node for node in common.device_nodes}
    for index, node in enumerate(own.device_nodes):
        if nodes.setdefault(node.path, node) != node:
            where = f"{path}.deviceNodes[{index}].path"
            yield Problem(where, f'"{node.path}" is there twice', is_extra=True)
    mounts = {mount.container_path: mount for mount in common.mounts}
    for index, mount in enumerate(own.mounts):
        if mounts.setdefault(mount.container_path, mount) != mount:
            where = f"{path}.mounts[{index}].containerPath"
            yield Problem(where, f'"{mount.container_path}" is there twice', is_extra=True)


def _path(value: str, path: str) -> Iterator[Problem]:
    if not value:
        yield Problem(path, "is empty")
    elif not value.startswith("/"):
        yield Problem(path, f'"{value}" is not absolute', is_extra=True)
    yield from _text(value, path)


def _text(value: str, path: str) -> Iterator[Problem]:
    if _CONTROL.search(value):
        yield Problem(path, f"{value!r} holds a NUL or a line break", is_extra=True)
