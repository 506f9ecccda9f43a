# SPDX-License-Identifier: Apache-2.0
"""Check the rules of a CDI document and report every problem with its path.

A document that breaks a rule of the CDI specification is invalid. Additional rules
(`Problem.is_warning`) find what the reference library accepts but makes container runtimes fail.
nvdra-cdi reads documents that break an additional rule, but never writes one.

A model can hold what no document can: a number that is too large, text that is not Unicode, more
values than readers accept. These are errors, too, so that what is written can be read.

Source: docs/reference/cdi.md §4.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice

from nvdra_cdi import names, version
from nvdra_cdi.encoding import size
from nvdra_cdi.encoding.fields import INT64, UINT32, Integer, is_unicode
from nvdra_cdi.encoding.yaml_nodes import MAX_NODES, SPLIT_REMEDY, too_many_message
from nvdra_cdi.errors import MAX_PROBLEMS, InvalidNameError, Problem, ValidationError
from nvdra_cdi.model import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec

HOOK_NAMES = frozenset(
    ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
)
_NODE_TYPES = frozenset(("", "b", "c", "u", "p"))
_MAX_VENDOR = 253  # characters, as the CDI specification says, from DNS
_MAX_CLASS = 63
_MAX_CLOS_ID = 4096  # bytes, exclusive: PATH_MAX
_MAX_ANNOTATION_BYTES = 256 * 1024  # bytes over all keys and values, as in Kubernetes objects
_MAX_MAJOR = (1 << 12) - 1  # the kernel's dev_t
_MAX_MINOR = (1 << 20) - 1
_MAX_MODE = 0o7777
_CONTROL = re.compile("[\0\n]")
_ANNOTATION_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,61}[a-z0-9])?", re.ASCII)
_KEEP_ONE = "keep one: containers get the last"
_DNS_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_ANNOTATION_PREFIX = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*", re.ASCII)


def check(spec: Spec, *, strict: bool = True, source: str = "") -> None:
    """Reject a document that breaks a rule.

    Args:
        spec: The document.
        strict: Whether warnings count as errors: yes when writing, no when reading.
        source: The file that the document was read from or would be written to.

    Raises:
        ValidationError: The document breaks rules. The error contains all problems that count, up
            to `MAX_PROBLEMS`.
    """
    if strict:
        counting: Iterator[Problem] = chain(_rules(spec), _size(spec))
    else:  # a reader has limited the size already
        counting = (problem for problem in _rules(spec) if not problem.is_warning)
    found = tuple(islice(counting, MAX_PROBLEMS))
    if found:
        raise ValidationError(found, source)


def problems(spec: Spec) -> tuple[Problem, ...]:
    """All problems, including warnings, in the order of the document.

    Of more than `MAX_PROBLEMS` errors or warnings, only the first are reported.
    """
    return tuple(_first_of_each_severity(chain(_rules(spec), _size(spec))))


def _first_of_each_severity(found: Iterable[Problem]) -> Iterator[Problem]:
    counts = {True: 0, False: 0}
    for problem in found:
        counts[problem.is_warning] += 1
        if counts[problem.is_warning] <= MAX_PROBLEMS:
            yield problem


def _rules(spec: Spec) -> Iterator[Problem]:
    common = spec.container_edits
    return chain(
        _header(spec),
        _edits(common, "containerEdits"),
        _conflicts({}, {}, common, "containerEdits"),
        _devices(spec),
    )


def _size(spec: Spec) -> Iterator[Problem]:
    if size.values(spec) > MAX_NODES:
        yield Problem("", too_many_message(), remedy=SPLIT_REMEDY)


def _header(spec: Spec) -> Iterator[Problem]:
    if (message := version.problem(spec)) is not None:
        yield Problem("cdiVersion", message, remedy=_version_remedy(spec))
    vendor, class_ = names.parse_qualifier(spec.kind)
    for part, value, rule, longest in (
        ("vendor", vendor, names.validate_vendor, _MAX_VENDOR),
        ("class", class_, names.validate_class, _MAX_CLASS),
    ):
        try:
            rule(value)
        except InvalidNameError as error:
            yield Problem("kind", str(error), remedy="write kind: vendor.com/class")
        if len(value) > longest:
            message = f'{part} "{value}" is longer than {longest} characters'
            yield Problem("kind", message, is_warning=True, remedy="shorten it")
        if len(value) == 1:  # §3: the CDI library 1.1.0 and older, which runtimes contain
            message = f'{part} "{value}" is one character long, which crashes older runtimes'
            yield Problem("kind", message, is_warning=True, remedy="lengthen it")
    yield from _annotations(spec.annotations, "annotations")


def _version_remedy(spec: Spec) -> str:
    minimum = version.minimum_required(spec)
    return f"write cdiVersion: {minimum}" if spec.version != minimum else "remove the old fields"


def _devices(spec: Spec) -> Iterator[Problem]:
    seen: set[str] = set()
    nodes = {node.path: node for node in spec.container_edits.device_nodes}
    mounts = {mount.container_path: mount for mount in spec.container_edits.mounts}
    for index, device in enumerate(spec.devices):
        path = f"devices[{index}]"
        for found in chain(
            _device_name(device.name, f"{path}.name"),
            _annotations(device.annotations, f"{path}.annotations"),
            _device_edits(device.container_edits, f"{path}.containerEdits"),
            _conflicts(nodes, mounts, device.container_edits, f"{path}.containerEdits"),
        ):
            yield replace(found, device=device.name)
        if device.name in seen:
            message = f'another device has the name "{device.name}"'
            yield Problem(f"{path}.name", message, device.name, remedy="rename one of them")
        seen.add(device.name)
    if not spec.devices:
        remedy = "add devices: [{name: …, containerEdits: {…}}]"
        yield Problem("devices", "a spec needs at least one device", remedy=remedy)


def _device_name(name: str, path: str) -> Iterator[Problem]:
    try:
        names.validate_device(name)
    except InvalidNameError as error:
        yield Problem(path, str(error), remedy="write a name such as gpu-0")


def _device_edits(edits: ContainerEdits, path: str) -> Iterator[Problem]:
    if not edits:
        yield Problem(path, "a device needs at least one edit", remedy="add one, for example env")
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
    for index, group in enumerate(edits.additional_gids):
        yield from _number(group, UINT32, f"{path}.additionalGids[{index}]")


def _env(env: tuple[str, ...], path: str) -> Iterator[Problem]:
    for index, entry in enumerate(env):
        if entry.find("=") < 1:
            message = f'"{entry}" is not NAME=value'
            yield Problem(f"{path}[{index}]", message, remedy="put a name and = before the value")
        yield from _text(entry, f"{path}[{index}]")


def _device_node(node: DeviceNode, path: str) -> Iterator[Problem]:
    yield from _path(node.path, f"{path}.path")
    if node.host_path:
        yield from _path(node.host_path, f"{path}.hostPath")
    if node.type not in _NODE_TYPES:
        message = f'"{node.type}" is not one of b, c, u, p'
        remedy = "remove it, and the runtime looks the type up on the host"
        yield Problem(f"{path}.type", message, remedy=remedy)
    if node.permissions != "none" and set(node.permissions) - set("rwm"):
        message = f'"{node.permissions}" is neither letters of rwm nor none'
        yield Problem(f"{path}.permissions", message, remedy="write rwm, or some of its letters")
    for field, value, highest in (
        ("major", node.major, _MAX_MAJOR),
        ("minor", node.minor, _MAX_MINOR),
        ("fileMode", node.file_mode or 0, _MAX_MODE),
    ):
        if not 0 <= value <= highest:
            message = f"{value} is not between 0 and {highest}"
            yield Problem(f"{path}.{field}", message, is_warning=True, remedy="correct the number")
    if node.type == "p" and node.major:
        message = f"{node.major}: a FIFO has no major number"
        yield Problem(f"{path}.major", message, is_warning=True, remedy="remove it")
    yield from _number(node.uid, UINT32, f"{path}.uid")
    yield from _number(node.gid, UINT32, f"{path}.gid")


def _hook(hook: Hook, path: str) -> Iterator[Problem]:
    if hook.hook_name not in HOOK_NAMES:
        known = ", ".join(sorted(HOOK_NAMES))
        message = f'"{hook.hook_name}" is not one of {known}'
        yield Problem(f"{path}.hookName", message, remedy="name the point where the hook runs")
    yield from _path(hook.path, f"{path}.path")
    for index, argument in enumerate(hook.args):
        yield from _text(argument, f"{path}.args[{index}]")
    yield from _env(hook.env, f"{path}.env")
    if hook.timeout is not None and hook.timeout <= 0:
        message = f"{hook.timeout} is not positive"
        yield Problem(
            f"{path}.timeout", message, is_warning=True, remedy="remove it to have no timeout"
        )
    yield from _number(hook.timeout, INT64, f"{path}.timeout")


def _mount(mount: Mount, path: str) -> Iterator[Problem]:
    if mount.type in ("", "bind"):
        yield from _path(mount.host_path, f"{path}.hostPath")
    elif not mount.host_path:
        yield Problem(f"{path}.hostPath", "is empty", remedy="write the path to mount")
    else:
        yield from _unicode(mount.host_path, f"{path}.hostPath")
    yield from _path(mount.container_path, f"{path}.containerPath")
    for index, option in enumerate((*mount.options, mount.type)):
        field = "type" if index == len(mount.options) else f"options[{index}]"
        yield from _text(option, f"{path}.{field}")


def _intel_rdt(rdt: IntelRdt, path: str) -> Iterator[Problem]:
    for index, schema in enumerate(rdt.schemata or ()):
        yield from _unicode(schema, f"{path}.schemata[{index}]")
    for field, value in (
        ("closID", rdt.clos_id),
        ("l3CacheSchema", rdt.l3_cache_schema),
        ("memBwSchema", rdt.mem_bw_schema),
    ):
        yield from _unicode(value, f"{path}.{field}")
    clos = rdt.clos_id
    if clos == "/":
        return
    if _bytes(clos) >= _MAX_CLOS_ID:
        message = f"is not shorter than {_MAX_CLOS_ID} bytes"
        yield Problem(f"{path}.closID", message, remedy="shorten it")
    elif clos in (".", "..") or "/" in clos or "\n" in clos:
        remedy = "write one name of a directory in resctrl"
        yield Problem(f"{path}.closID", f"{clos!r} is not a class name", remedy=remedy)


def _net_devices(devices: tuple[NetDevice, ...], path: str) -> Iterator[Problem]:
    hosts: set[str] = set()
    inside: set[str] = set()
    for index, device in enumerate(devices):
        for field, value, seen in (
            ("hostInterfaceName", device.host_interface_name, hosts),
            ("name", device.name, inside),
        ):
            if not value:
                yield Problem(f"{path}[{index}].{field}", "is empty", remedy="name the interface")
            elif value in seen:
                message = f'"{value}" is used twice'
                yield Problem(f"{path}[{index}].{field}", message, remedy="remove one of them")
            yield from _text(value, f"{path}[{index}].{field}")
            seen.add(value)


def _annotations(annotations: Mapping[str, str], path: str) -> Iterator[Problem]:
    """The rules of Kubernetes for annotations. The reference library does not apply them."""
    for key, value in annotations.items():
        yield from _unicode(value, f"{path}.{key}")
        prefix, slash, name = key.lower().rpartition("/")
        well_prefixed = not slash or (len(prefix) <= 253 and _ANNOTATION_PREFIX.fullmatch(prefix))
        if not well_prefixed or not _ANNOTATION_NAME.fullmatch(name):
            message = f'"{key}" is not a valid annotation key'
            remedy = (
                "use a Kubernetes key: letters, digits and -_. with letters or digits at the ends"
            )
            yield Problem(path, message, is_warning=True, remedy=remedy)
    total = sum(_bytes(key) + _bytes(value) for key, value in annotations.items())
    if total > _MAX_ANNOTATION_BYTES:
        message = f"{total} bytes exceed the limit of {_MAX_ANNOTATION_BYTES}"
        yield Problem(path, message, is_warning=True, remedy="shorten them")


def _conflicts(
    common_nodes: Mapping[str, DeviceNode],
    common_mounts: Mapping[str, Mount],
    own: ContainerEdits,
    path: str,
) -> Iterator[Problem]:
    """Different nodes or mounts with the same path in the container. Repetition is harmless."""
    nodes: dict[str, DeviceNode] = {}
    for index, node in enumerate(own.device_nodes):
        if (common_nodes.get(node.path) or nodes.setdefault(node.path, node)) != node:
            where = f"{path}.deviceNodes[{index}].path"
            message = f'"{node.path}" is defined twice, differently'
            yield Problem(where, message, is_warning=True, remedy=_KEEP_ONE)
    mounts: dict[str, Mount] = {}
    for index, mount in enumerate(own.mounts):
        target = mount.container_path
        if (common_mounts.get(target) or mounts.setdefault(target, mount)) != mount:
            where = f"{path}.mounts[{index}].containerPath"
            message = f'"{target}" is defined twice, differently'
            yield Problem(where, message, is_warning=True, remedy=_KEEP_ONE)


def _path(value: str, path: str) -> Iterator[Problem]:
    if not value:
        yield Problem(path, "is empty", remedy="write an absolute path")
    elif not value.startswith("/"):
        message = f'"{value}" is not absolute'
        yield Problem(path, message, is_warning=True, remedy="write a path that starts with /")
    yield from _text(value, path)


def _text(value: str, path: str) -> Iterator[Problem]:
    if value.isprintable():  # the quickest test, and nearly all texts pass it
        return
    if _CONTROL.search(value):
        message = f"{value!r} contains a NUL or a line break"
        yield Problem(path, message, is_warning=True, remedy="remove it")
    yield from _unicode(value, path)


def _unicode(value: str, path: str) -> Iterator[Problem]:
    if not is_unicode(value):
        yield Problem(path, f"{value!r} is not valid Unicode", remedy="correct the escape in it")


def _number(value: int | None, kind: Integer, path: str) -> Iterator[Problem]:
    if value is not None and not kind.lowest <= value <= kind.highest:
        message = f"{value} is not in {kind.lowest}…{kind.highest}"
        yield Problem(path, message, remedy="correct the number")


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))
