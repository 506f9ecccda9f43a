# SPDX-License-Identifier: Apache-2.0
"""CDI edits applied to an OCI runtime specification, in the reference's order.

Source: docs/reference/cdi.md §8.
"""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_cdi import files, oci
from nvdra_cdi.cache import Cache
from nvdra_cdi.errors import InjectionError, UnresolvedDevicesError
from nvdra_cdi.model import (
    ContainerEdits,
    Device,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    Spec,
)
from nvdra_cdi.rooted_files import RootedFiles

NULL = {"path": "/dev/x", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666}
RULE = {"allow": True, "type": "c", "major": 1, "minor": 3, "access": "rwm"}


def applied(config: dict[str, Any] | None = None, **edits: Any) -> dict[str, Any]:
    return oci.apply_edits(config or {}, ContainerEdits(**edits))


def node(path: str = "/dev/x", host_path: str = "/dev/null", **rest: Any) -> Any:
    return applied(device_nodes=(DeviceNode(path, host_path, **rest),))["linux"]


def test_no_edits_make_no_difference_and_nothing_empty() -> None:
    config = {"process": {"env": None}, "linux": None, "unknown": [1]}
    assert applied(config) == config


def test_a_variable_replaces_its_namesake_in_place_the_last_if_there_are_several() -> None:
    config = {"process": {"env": ["A=0", "B=0", "A=1", "C"]}}
    assert applied(config, env=("A=2", "D=", "D=x=y", "C=3"))["process"]["env"] == [
        *("A=0", "B=0", "A=2", "C=3", "D=x=y")
    ]


def test_a_container_without_a_process_gets_one_for_its_variables() -> None:
    assert applied(env=("A=b",)) == {"process": {"env": ["A=b"]}}


def test_what_a_node_leaves_open_comes_from_the_host() -> None:
    assert node() == {"devices": [NULL], "resources": {"devices": [RULE]}}


def test_a_node_without_a_host_path_is_looked_up_at_its_own() -> None:
    assert node("/dev/null", "")["devices"] == [{**NULL, "path": "/dev/null"}]


def test_a_zero_major_takes_both_numbers_of_the_host() -> None:
    assert node(type="c", minor=9)["devices"] == [NULL]


def test_given_numbers_are_kept_when_only_the_type_is_missing() -> None:
    assert node(major=9, minor=8)["devices"] == [{**NULL, "major": 9, "minor": 8}]


def test_a_complete_node_is_not_compared_with_the_host_and_only_lends_its_mode() -> None:
    linux = node(type="b", major=7, minor=0)
    assert linux["devices"] == [{**NULL, "type": "b", "major": 7, "minor": 0}]
    assert linux["resources"]["devices"] == [{**RULE, "type": "b", "major": 7, "minor": 0}]


def test_a_complete_node_need_not_be_on_the_host() -> None:
    linux = node(host_path="/dev/nowhere", type="c", major=505)
    assert linux["devices"] == [{"path": "/dev/x", "type": "c", "major": 505, "minor": 0}]
    assert linux["resources"]["devices"] == [{**RULE, "major": 505, "minor": 0}]


def test_a_mode_is_kept_even_when_it_is_zero() -> None:
    assert node(file_mode=0)["devices"] == [{**NULL, "fileMode": 0}]


@pytest.mark.parametrize(
    ("permissions", "rule"),
    [
        ("", RULE),
        ("r", {**RULE, "access": "r"}),
        ("none", {key: value for key, value in RULE.items() if key != "access"}),
    ],
)
def test_the_cgroup_allows_what_the_node_permits(permissions: str, rule: dict[str, Any]) -> None:
    assert node(permissions=permissions)["resources"]["devices"] == [rule]


def test_a_fifo_gets_neither_numbers_nor_a_rule(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    linux = node("/x", str(tmp_path / "fifo"))
    assert linux == {
        "devices": [{"path": "/x", "type": "p", "major": 0, "minor": 0, "fileMode": 0o600}]
    }
    assert node("/x", "/nowhere", type="p")["devices"] == [
        {"path": "/x", "type": "p", "major": 0, "minor": 0}
    ]


def test_an_unbuffered_device_gets_no_rule() -> None:
    assert "resources" not in node(type="u", major=1, minor=3)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (DeviceNode("/dev/nowhere"), "/dev/nowhere does not exist on the host"),
        (DeviceNode("/x", "/etc/passwd"), "/etc/passwd on the host is not a device node"),
        (DeviceNode("/x", "/dev/null", type="b"), 'type "b", but /dev/null .* has "c"'),
        (DeviceNode("/x", "/dev/null", type="u"), 'has type "u"'),
        (DeviceNode("/x", "dev/null"), "must be absolute"),
        (DeviceNode("/x", "/proc/self/fd/0/x"), "does not exist on the host"),
    ],
)
def test_a_node_that_the_host_cannot_complete_is_an_error_that_says_so(
    found: DeviceNode, message: str
) -> None:
    with pytest.raises(InjectionError, match=message):
        applied(device_nodes=(found,))


def test_a_link_counts_as_no_device(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(InjectionError, match="not a device node"):
        node(host_path=str(tmp_path / "link"))


def test_the_host_may_be_another_root(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.mkfifo(tmp_path / "real" / "fifo", 0o644)
    (tmp_path / "dev").symlink_to("/real")
    edits = ContainerEdits(device_nodes=(DeviceNode("/dev/fifo"),))
    linux = oci.apply_edits({}, edits, RootedFiles(str(tmp_path)))["linux"]
    assert linux["devices"][0]["fileMode"] == 0o644


def test_a_node_replaces_the_first_of_its_path_and_moves_to_the_end() -> None:
    there = {"path": "/dev/x", "type": "c", "major": 9, "minor": 9}
    other = {"path": "/dev/y", "type": "c", "major": 9, "minor": 9}
    config = {"linux": {"devices": [there, other], "resources": {"devices": [{"allow": False}]}}}
    linux = applied(config, device_nodes=(DeviceNode("/dev/x", "/dev/null"),))["linux"]
    assert linux == {
        "devices": [other, NULL],
        "resources": {"devices": [{"allow": False}, RULE]},
    }


@pytest.mark.parametrize(
    ("user", "own", "owner"),
    [
        ({"uid": 1000, "gid": 100}, {}, {"uid": 1000, "gid": 100}),
        ({"uid": 0, "gid": 0}, {}, {}),
        ({"uid": 1000, "gid": 100}, {"uid": 0, "gid": 5}, {"uid": 0, "gid": 5}),
        ({}, {}, {}),
    ],
)
def test_a_node_without_an_owner_is_the_containers_users(
    user: dict[str, int], own: dict[str, Any], owner: dict[str, int]
) -> None:
    config = {"process": {"user": user}}
    found = applied(config, device_nodes=(DeviceNode("/dev/x", "/dev/null", **own),))
    assert found["linux"]["devices"] == [{**NULL, **owner}]


def test_network_interfaces_are_set_by_their_name_on_the_host() -> None:
    config = {"linux": {"netDevices": {"eth0": {"name": "old"}, "eth1": {"name": "b"}}}}
    found = applied(config, net_devices=(NetDevice("eth0", "a"), NetDevice("eth2", "c")))
    assert found["linux"]["netDevices"] == {
        "eth0": {"name": "a"},
        "eth1": {"name": "b"},
        "eth2": {"name": "c"},
    }


def test_mounts_are_sorted_by_depth_and_stay_in_order_among_equals() -> None:
    there = [{"destination": "/a/b/c"}, {"destination": "/proc"}, {"destination": "/"}]
    found = applied({"mounts": there}, mounts=(Mount("/h", "/a/b"), Mount("/h", "/x//y/..")))
    order = [mount["destination"] for mount in found["mounts"]]
    assert order == ["/proc", "/", "/x//y/..", "/a/b", "/a/b/c"]


def test_mounts_stay_unsorted_when_no_edit_mounts_anything() -> None:
    there = [{"destination": "/a/b/c"}, {"destination": "/"}]
    assert applied({"mounts": there}, env=("A=b",))["mounts"] == there


def test_a_mount_replaces_the_first_at_its_destination() -> None:
    there = [{"destination": "/a"}, {"destination": "/a/"}, {"destination": "/a", "type": "x"}]
    found = applied({"mounts": there}, mounts=(Mount("/h", "/a", ("ro",), "bind"),))
    assert found["mounts"] == [
        {"destination": "/a/"},
        {"destination": "/a", "type": "x"},
        {"destination": "/a", "type": "bind", "source": "/h", "options": ["ro"]},
    ]


@pytest.mark.parametrize(
    ("options", "type_", "expected"),
    [
        (("ro", "rbind"), "", ["ro", "rbind", "ridmap"]),
        (("bind",), "", ["bind", "idmap"]),
        (("rbind", "bind"), "", ["rbind", "bind", "idmap"]),
        ((), "bind", ["idmap"]),
        (("rbind",), "bind", ["rbind", "ridmap"]),
        (("idmap", "rbind"), "", ["idmap", "rbind"]),
        (("ro",), "tmpfs", ["ro"]),
    ],
)
def test_bind_mounts_are_id_mapped_in_a_user_namespace(
    options: tuple[str, ...], type_: str, expected: list[str]
) -> None:
    config = {"linux": {"namespaces": [{"type": "mount"}, {"type": "user"}]}}
    mounts = (Mount("/h", "/a", options, type_),)
    assert applied(config, mounts=mounts)["mounts"][0]["options"] == expected
    assert applied(mounts=mounts)["mounts"][0].get("options", []) == list(options)


def test_hooks_are_appended_under_their_names() -> None:
    config = {"hooks": {"prestart": [{"path": "/old"}]}}
    hooks = (
        Hook("prestart", "/a", ("a", "b"), ("C=d",), 5),
        Hook("createContainer", "/b"),
        Hook("createContainer", "/b"),
    )
    assert applied(config, hooks=hooks)["hooks"] == {
        "prestart": [
            {"path": "/old"},
            {"path": "/a", "args": ["a", "b"], "env": ["C=d"], "timeout": 5},
        ],
        "createContainer": [{"path": "/b"}, {"path": "/b"}],
    }


def test_a_cache_class_replaces_the_containers() -> None:
    config = {"linux": {"intelRdt": {"closID": "old", "memBwSchema": "MB:0=1"}}}
    rdt = IntelRdt("new", "L3:0=f", "", ("a",), enable_monitoring=True, enable_cmt=True)
    assert applied(config, intel_rdt=rdt)["linux"]["intelRdt"] == {
        "closID": "new",
        "schemata": ["a"],
        "l3CacheSchema": "L3:0=f",
        "enableMonitoring": True,
        "enableCMT": True,
    }
    assert applied(intel_rdt=IntelRdt())["linux"] == {"intelRdt": {}}


def test_groups_are_added_once_and_roots_never() -> None:
    config = {"process": {"user": {"additionalGids": [44]}}}
    found = applied(config, additional_gids=(0, 5, 44, 5))
    assert found["process"]["user"]["additionalGids"] == [44, 5]
    assert applied(additional_gids=(0,)) == {}


@pytest.mark.parametrize(
    "config",
    [
        {"process": []},
        {"process": {"env": "A=b"}},
        {"linux": 1},
        {"linux": {"devices": {}}},
        {"linux": {"devices": [1]}},
        {"linux": {"resources": []}},
        {"mounts": {"destination": "/a"}},
        {"mounts": ["/a"]},
        {"hooks": [1]},
        {"process": {"user": "root"}},
    ],
)
def test_what_is_no_oci_specification_is_refused_with_the_place(config: dict[str, Any]) -> None:
    with pytest.raises(InjectionError, match=r"not an OCI runtime specification: [a-z]+"):
        oci.apply_edits(config, FULL)


FULL = ContainerEdits(
    env=("A=b",),
    device_nodes=(DeviceNode("/dev/x", "/dev/null"),),
    net_devices=(NetDevice("eth0", "a"),),
    hooks=(Hook("prestart", "/a"),),
    mounts=(Mount("/h", "/a"),),
    intel_rdt=IntelRdt("a"),
    additional_gids=(5,),
)
_KEYS = (
    *("process", "env", "user", "uid", "additionalGids", "hooks", "mounts", "destination", "x"),
    *("linux", "devices", "path", "type", "resources", "namespaces"),
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(_KEYS),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["process", "linux", "mounts", "hooks", "x"]), _json))
def test_any_configuration_is_edited_or_refused_and_never_changed_in_place(
    config: dict[str, Any],
) -> None:
    before = copy.deepcopy(config)
    try:
        found = oci.apply_edits(config, FULL)
    except InjectionError:
        pass
    else:
        json.dumps(found)
        assert found.get("x") == before.get("x")
    assert config == before


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    devices = tuple(
        Device(name, ContainerEdits(env=(f"{name}=1",), hooks=(Hook("prestart", f"/{name}"),)))
        for name in ("a", "b")
    )
    common = ContainerEdits(env=("SPEC=1",), hooks=(Hook("prestart", "/spec"),))
    files.write(Spec("vendor.com/class", devices, common), tmp_path / "x.yaml")
    return Cache([tmp_path])


def test_devices_are_injected_by_name_and_a_specs_edits_once(cache: Cache) -> None:
    names = ["vendor.com/class=b", "vendor.com/class=a", "vendor.com/class=b"]
    found = oci.inject({"ociVersion": "1.2.0", "x-unknown": {"a": None}}, cache, names)
    assert found == {
        "ociVersion": "1.2.0",
        "x-unknown": {"a": None},
        "process": {"env": ["SPEC=1", "b=1", "a=1"]},
        "hooks": {"prestart": [{"path": path} for path in ("/spec", "/b", "/a", "/b")]},
    }


def test_an_unknown_name_applies_nothing_and_names_only_the_unknown(cache: Cache) -> None:
    with pytest.raises(UnresolvedDevicesError, match=r"^unresolvable CDI devices x/y=z, q$"):
        oci.inject({}, cache, ["vendor.com/class=a", "x/y=z", "q"])


def test_a_path_that_a_container_has_twice_gets_the_node_in_the_seconds_place() -> None:
    there = [{"path": path, "type": "p"} for path in ("/x", "/a", "/x", "/b")]
    edits = ContainerEdits(device_nodes=(DeviceNode("/x", type="c", major=1, minor=3),))
    edited = oci.apply_edits({"linux": {"devices": there}}, edits)
    devices = edited["linux"]["devices"]
    assert [device["path"] for device in devices] == ["/a", "/x", "/b"]
    assert devices[1]["major"] == 1


def test_what_was_looked_up_on_the_host_is_not_remembered(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    edits = ContainerEdits(device_nodes=(DeviceNode("/x", str(fifo)),))
    files.write(Spec("v.com/class", (Device("a", edits),)), tmp_path / "x.yaml")
    cache = Cache([tmp_path])
    for mode in (0o600, 0o644):
        os.mkfifo(fifo, mode)
        found = oci.inject({}, cache, ["v.com/class=a"])
        assert found["linux"]["devices"][0]["fileMode"] == mode
        fifo.unlink()


def test_a_node_whose_path_no_file_can_have_does_not_exist() -> None:
    with pytest.raises(InjectionError, match="does not exist on the host"):
        node(host_path="/dev/\0")
