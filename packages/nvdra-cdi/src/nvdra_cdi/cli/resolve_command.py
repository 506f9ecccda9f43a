# SPDX-License-Identifier: Apache-2.0
"""`nvdra-cdi resolve`: show the edits of a device, or explain why its name cannot be resolved."""

import argparse
from collections.abc import Iterator, Sequence

from nvdra_cdi import codec, names
from nvdra_cdi.cache import Cache
from nvdra_cdi.cli import name_patterns
from nvdra_cdi.cli.output import (
    EXIT_FAILURE,
    CommandOutput,
    serialize,
    spec_error_data,
    spec_error_lines,
)
from nvdra_cdi.encoding.yaml_writer import PlainData
from nvdra_cdi.errors import CDIError, ConflictError, InvalidNameError, one_line
from nvdra_cdi.index import CachedDevice
from nvdra_cdi.model import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount

_WIDTH = 14


def run(arguments: argparse.Namespace) -> CommandOutput:
    """Show the edits of each device, and report all names that cannot be resolved."""
    cache = Cache(arguments.spec_dir, auto_refresh=False)
    wanted = {name: cache.get_device(name) for name in arguments.names}
    found = {name: device for name, device in wanted.items() if device is not None}
    missing = [name for name in wanted if name not in found]
    remarks = tuple(f"error: {line}" for line in unresolved_reasons(cache, missing))
    code = EXIT_FAILURE if missing else 0
    if arguments.output in ("json", "yaml"):
        answer: dict[str, PlainData] = {
            "devices": [_as_data(name, device) for name, device in found.items()],
            "unresolved": list(missing),
            "errors": spec_error_data(cache.get_errors()),
        }
        return CommandOutput(serialize(answer, arguments.output), exit_code=code)
    lines = [line for name, device in found.items() for line in _text_lines(name, device)]
    broken = spec_error_lines(cache.get_errors()) if missing else ()
    return CommandOutput("\n".join(lines), (*broken, *remarks), code)


def unresolved_reasons(cache: Cache, missing: Sequence[str]) -> list[str]:
    """The reasons why these names cannot be resolved, one line each."""
    errors = [error for found in cache.get_errors().values() for error in found]
    return [one_line(f"{name}: {_reason(cache, errors, name)}") for name in missing]


def _reason(cache: Cache, errors: Sequence[CDIError], name: str) -> str:
    if name_patterns.is_pattern(name):
        return "no device matches this pattern"
    try:
        vendor, class_, _ = names.parse_qualified_name(name)
    except InvalidNameError as error:
        return str(error)
    for conflict in errors:
        if isinstance(conflict, ConflictError) and f'"{name}"' in str(conflict):
            return str(conflict)
    kind = f"{vendor}/{class_}"
    known = [device for device in cache.list_devices() if device.startswith(f"{kind}=")]
    if known:
        return f"no spec defines it; {kind} has {', '.join(known[:8])}" + (
            f" and {len(known) - 8} more" if len(known) > 8 else ""
        )
    return f"no valid spec of {kind} in {', '.join(cache.get_spec_dirs())}; see nvdra-cdi validate"


def _as_data(name: str, found: CachedDevice) -> PlainData:
    return {
        "name": name,
        "spec": found.spec.path,
        "priority": found.spec.priority,
        "version": found.spec.spec.version,
        "annotations": dict(sorted(found.device.annotations.items())),
        "specEdits": codec.as_data(found.spec.spec.container_edits),
        "deviceEdits": codec.as_data(found.device.container_edits),
    }


def _text_lines(name: str, found: CachedDevice) -> Iterator[str]:
    spec = found.spec
    yield one_line(name)
    yield f"  {'spec':{_WIDTH}} {one_line(spec.path)}, version {spec.spec.version}"
    for key, value in sorted(found.device.annotations.items()):
        yield f"  {'annotation':{_WIDTH}} {one_line(f'{key}: {value}')}"
    yield from _edits("the spec, for all its devices", spec.spec.container_edits)
    yield from _edits("this device", found.device.container_edits)


def _edits(whose: str, edits: ContainerEdits) -> Iterator[str]:
    if not edits:
        return
    yield f"  edits of {whose}:"
    for what, items in (
        ("variable", edits.env),
        ("device node", map(_node, edits.device_nodes)),
        ("interface", (f"{net.host_interface_name} as {net.name}" for net in edits.net_devices)),
        ("mount", map(_mount, edits.mounts)),
        ("hook", map(_hook, edits.hooks)),
        ("intelRdt", [] if edits.intel_rdt is None else [_rdt(edits.intel_rdt)]),
        ("group", map(str, edits.additional_gids)),
    ):
        for item in items:
            yield f"    {what:{_WIDTH - 2}} {one_line(item)}"


def _node(node: DeviceNode) -> str:
    number = f" {node.major}:{node.minor}" if node.major else ""
    source = f", on the host {node.host_path}" if node.host_path else ""
    mode = "" if node.file_mode is None else f", mode {node.file_mode:04o}"
    return (
        f"{node.path} {node.type}{number}".rstrip() + f" {node.permissions or 'rwm'}{mode}{source}"
    )


def _mount(mount: Mount) -> str:
    options = f" ({','.join(mount.options)})" if mount.options else ""
    source = mount.host_path
    return (
        f"{source}{options}"
        if source == mount.container_path
        else (f"{source} at {mount.container_path}{options}")
    )


def _hook(hook: Hook) -> str:
    return " ".join((f"{hook.hook_name}:", hook.path, *hook.args[1:]))


def _rdt(rdt: IntelRdt) -> str:
    return f"class {rdt.clos_id or 'of the container'}"
