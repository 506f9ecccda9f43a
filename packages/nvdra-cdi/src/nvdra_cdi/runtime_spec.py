"""Edits applied to an OCI runtime specification, as JSON data (spec/cdi.md §8).

Device nodes must be complete: `oci` asks the host. What is edited is copied, everything else is
shared with the given document, known to us or not, and nothing that was given changes.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from nvdra_cdi import paths
from nvdra_cdi.errors import InjectionError
from nvdra_cdi.model import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice

Json = dict[str, Any]

_ID_MAPPED = ("idmap", "ridmap")


def edited(config: Mapping[str, Any], edits: ContainerEdits) -> Json:
    """The configuration of a container, with the edits in the order of the reference library.

    Raises:
        InjectionError: What has to be edited is not what an OCI runtime specification has there.
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
    again = _drop_first(devices, "path", node.path)  # a path was there twice: the second's place
    devices.insert(
        len(devices) if again is None else again,
        _present(
            path=node.path,
            type=node.type,
            major=node.major,
            minor=node.minor,
            fileMode=node.file_mode,
            uid=_of_user(document, "uid") if node.uid is None else node.uid,
            gid=_of_user(document, "gid") if node.gid is None else node.gid,
        ),
    )
    if node.type in ("b", "c"):
        access = "" if node.permissions == "none" else node.permissions or "rwm"
        rule = {"allow": True, "type": node.type, "major": node.major, "minor": node.minor}
        rules = _list(_object(linux, "resources"), "devices")
        rules.append({**rule, "access": access} if access else rule)


def _of_user(document: Json, key: str) -> int | None:
    """The container's user or group, which owns nodes that name no owner; None for root."""
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
    there = _objects(document, "mounts")
    has_user_namespace = _has_user_namespace(document)
    for mount in mounts:
        _drop_first(there, "destination", mount.container_path)
        options = _id_mapped(mount) if has_user_namespace else mount.options
        there.append(
            _present(
                destination=mount.container_path,
                type=mount.type or None,
                source=mount.host_path,
                options=list(options) or None,
            )
        )
    there.sort(key=lambda mount: paths.depth(str(mount.get("destination") or "")))


def _has_user_namespace(document: Json) -> bool:
    if not document.get("linux"):
        return False
    looked_at = dict(_object(document, "linux"))
    return any(each.get("type") == "user" for each in _objects(looked_at, "namespaces"))


def _id_mapped(mount: Mount) -> tuple[str, ...]:
    """A bind mount's options, with its owners mapped into the user namespace."""
    if any(option in _ID_MAPPED for option in mount.options):
        return mount.options
    binds = [option for option in mount.options if option in ("bind", "rbind")]
    if binds:
        return (*mount.options, "ridmap" if binds[-1] == "rbind" else "idmap")
    return (*mount.options, "idmap") if mount.type == "bind" else mount.options


def _hook(hook: Hook) -> Json:
    return _present(
        path=hook.path,
        args=list(hook.args) or None,
        env=list(hook.env) or None,
        timeout=hook.timeout,
    )


def _intel_rdt(rdt: IntelRdt) -> Json:
    return _present(
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
    there = _list(_object(_object(document, "process"), "user"), "additionalGids")
    there.extend(group for group in dict.fromkeys(wanted) if group not in there)


def _present(**fields: Any) -> Json:
    return {key: value for key, value in fields.items() if value is not None}


def _object(parent: Json, key: str) -> Json:
    """The object under a key, copied, made where it is missing."""
    found = parent.get(key)
    if not isinstance(found, dict | None):
        raise InjectionError(f"no OCI runtime specification: {key} is no object")
    child: Json = dict(found or {})
    parent[key] = child
    return child


def _list(parent: Json, key: str) -> list[Any]:
    """The list under a key, copied, made where it is missing."""
    found = parent.get(key)
    if not isinstance(found, list | None):
        raise InjectionError(f"no OCI runtime specification: {key} is no list")
    child = list(found or [])
    parent[key] = child
    return child


def _objects(parent: Json, key: str) -> list[Json]:
    """The list of objects under a key, copied, made where it is missing."""
    items = _list(parent, key)
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise InjectionError(f"no OCI runtime specification: {key}[{index}] is no object")
    return items


def _drop_first(items: list[Json], key: str, value: str) -> int | None:
    """Where the first was that has this value; None when there is none."""
    for index, item in enumerate(items):
        if item.get(key) == value:
            del items[index]
            return index
    return None
