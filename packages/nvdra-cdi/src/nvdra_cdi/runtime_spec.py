# SPDX-License-Identifier: Apache-2.0
"""Apply edits to an OCI runtime specification in JSON form (docs/reference/cdi.md §8).

Device nodes must be complete: `oci` looks missing values up on the host. The input is not modified.
The result shares all unmodified parts with it, including parts that this module does not know.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from nvdra_cdi import paths
from nvdra_cdi.errors import InjectionError
from nvdra_cdi.model import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice

Json = dict[str, Any]

_ID_MAPPED = ("idmap", "ridmap")


def with_edits(config: Mapping[str, Any], edits: ContainerEdits) -> Json:
    """The configuration with the edits, applied in the order of the reference library.

    Raises:
        InjectionError: A field has a type that the OCI runtime specification does not allow.
    """
    document = dict(config)
    _set_variables(document, edits.env)
    for node in edits.device_nodes:
        _add_device(document, node)
    for interface in edits.net_devices:
        _add_net_device(document, interface)
    _add_mounts(document, edits.mounts)
    for hook in edits.hooks:
        _list(_object(document, "hooks"), hook.hook_name).append(_hook(hook))
    if edits.intel_rdt is not None:
        _object(document, "linux")["intelRdt"] = _intel_rdt(edits.intel_rdt)
    _add_groups(document, edits.additional_gids)
    return document


def _set_variables(document: Json, entries: Iterable[str]) -> None:
    if not entries:
        return
    env = _list(_object(document, "process"), "env")
    places = {str(entry).partition("=")[0]: place for place, entry in enumerate(env)}
    for entry in entries:
        name = entry.partition("=")[0]
        if name in places:
            env[places[name]] = entry
        else:
            places[name] = len(env)
            env.append(entry)


def _add_device(document: Json, node: DeviceNode) -> None:
    linux = _object(document, "linux")
    devices = _objects(linux, "devices")
    _drop_first(devices, "path", node.path)
    again = _drop_first(devices, "path", node.path)  # a duplicate: the node takes its place
    devices.insert(
        len(devices) if again is None else again,
        _without_none(
            path=node.path,
            type=node.type,
            major=node.major,
            minor=node.minor,
            fileMode=node.file_mode,
            uid=_process_user_id(document, "uid") if node.uid is None else node.uid,
            gid=_process_user_id(document, "gid") if node.gid is None else node.gid,
        ),
    )
    if node.type in ("b", "c"):
        access = "" if node.permissions == "none" else node.permissions or "rwm"
        rule = {"allow": True, "type": node.type, "major": node.major, "minor": node.minor}
        rules = _list(_object(linux, "resources"), "devices")
        rules.append({**rule, "access": access} if access else rule)


def _process_user_id(document: Json, key: str) -> int | None:
    """The container's user or group, the default owner of device nodes. None means root."""
    process = document.get("process")
    user = process.get("user") if isinstance(process, dict) else None
    found = user.get(key) if isinstance(user, dict) else None
    return found if isinstance(found, int) and found > 0 else None


def _add_net_device(document: Json, device: NetDevice) -> None:
    linux = _object(document, "linux")
    _object(linux, "netDevices")[device.host_interface_name] = {"name": device.name}


def _add_mounts(document: Json, mounts: Iterable[Mount]) -> None:
    if not mounts:
        return
    existing = _objects(document, "mounts")
    has_user_namespace = _has_user_namespace(document)
    for mount in mounts:
        _drop_first(existing, "destination", mount.container_path)
        options = _id_mapped(mount) if has_user_namespace else mount.options
        existing.append(
            _without_none(
                destination=mount.container_path,
                type=mount.type or None,
                source=mount.host_path,
                options=list(options) or None,
            )
        )
    existing.sort(key=lambda mount: paths.depth(str(mount.get("destination") or "")))


def _has_user_namespace(document: Json) -> bool:
    if not document.get("linux"):
        return False
    looked_at = dict(_object(document, "linux"))
    return any(each.get("type") == "user" for each in _objects(looked_at, "namespaces"))


def _id_mapped(mount: Mount) -> tuple[str, ...]:
    """The mount's options, with id mapping into the user namespace for bind mounts."""
    if any(option in _ID_MAPPED for option in mount.options):
        return mount.options
    binds = [option for option in mount.options if option in ("bind", "rbind")]
    if binds:
        return (*mount.options, "ridmap" if binds[-1] == "rbind" else "idmap")
    return (*mount.options, "idmap") if mount.type == "bind" else mount.options


def _hook(hook: Hook) -> Json:
    return _without_none(
        path=hook.path,
        args=list(hook.args) or None,
        env=list(hook.env) or None,
        timeout=hook.timeout,
    )


def _intel_rdt(rdt: IntelRdt) -> Json:
    return _without_none(
        closID=rdt.clos_id or None,
        schemata=list(rdt.schemata or ()) or None,
        l3CacheSchema=rdt.l3_cache_schema or None,
        memBwSchema=rdt.mem_bw_schema or None,
        enableMonitoring=rdt.enable_monitoring or None,
        enableCMT=rdt.enable_cmt or None,
        enableMBM=rdt.enable_mbm or None,
    )


def _add_groups(document: Json, groups: Iterable[int]) -> None:
    wanted = [group for group in groups if group != 0]
    if not wanted:
        return
    existing = _list(_object(_object(document, "process"), "user"), "additionalGids")
    existing.extend(group for group in dict.fromkeys(wanted) if group not in existing)


def _without_none(**fields: Any) -> Json:
    return {key: value for key, value in fields.items() if value is not None}


def _object(parent: Json, key: str) -> Json:
    """A copy of the object under a key, stored in the parent. A missing object is created."""
    found = parent.get(key)
    if not isinstance(found, dict | None):
        raise InjectionError(f"not an OCI runtime specification: {key} is not an object")
    child: Json = dict(found or {})
    parent[key] = child
    return child


def _list(parent: Json, key: str) -> list[Any]:
    """A copy of the list under a key, stored in the parent. A missing list is created."""
    found = parent.get(key)
    if not isinstance(found, list | None):
        raise InjectionError(f"not an OCI runtime specification: {key} is not a list")
    child = list(found or [])
    parent[key] = child
    return child


def _objects(parent: Json, key: str) -> list[Json]:
    """A copy of the list of objects under a key. See `_list`."""
    items = _list(parent, key)
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise InjectionError(
                f"not an OCI runtime specification: {key}[{index}] is not an object"
            )
    return items


def _drop_first(items: list[Json], key: str, value: str) -> int | None:
    """Remove the first item with this value and return its index, or None."""
    for index, item in enumerate(items):
        if item.get(key) == value:
            del items[index]
            return index
    return None
