# SPDX-License-Identifier: Apache-2.0
"""Documents rewritten: another root, no repetitions, a device that is all.

Source: docs/reference/cdi.md §§18, 19.
"""

from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvdra_cdi import transforms, version
from nvdra_cdi.errors import InvalidNameError, TransformError
from nvdra_cdi.model import ContainerEdits, Device, DeviceNode, Hook, Mount, Spec


def spec(**edits: Any) -> Spec:
    return Spec("v.com/c", (Device("a", ContainerEdits(**edits)),))


def moved(
    source: str = "/driver",
    target: str = "/run/d",
    *,
    to: Literal["host", "container"] = "host",
    **edits: Any,
) -> ContainerEdits:
    return transforms.reroot(spec(**edits), source, target, to).devices[0].container_edits


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/driver", "/run/d"),
        ("/driver/lib/x", "/run/d/lib/x"),
        ("/driver//lib/../x", "/run/d/x"),
        ("/driver-backup/x", "/driver-backup/x"),
        ("/other/driver/x", "/other/driver/x"),
        ("--x=/driver/y", "--x=/driver/y"),
    ],
)
def test_a_path_moves_at_a_boundary_between_its_parts(path: str, expected: str) -> None:
    assert moved(mounts=(Mount(path, "/c"),)).mounts[0].host_path == expected


@pytest.mark.parametrize(
    ("source", "target", "path", "expected"),
    [
        ("/", "/root", "/dev/x", "/root/dev/x"),
        ("/root", "/", "/root/dev/x", "/dev/x"),
        ("/root/", "/new/", "/root/x", "/new/x"),
        ("/same", "/same/", "/same//x", "/same//x"),
    ],
)
def test_a_root_may_be_the_top_and_may_end_in_a_slash(
    source: str, target: str, path: str, expected: str
) -> None:
    assert moved(source, target, mounts=(Mount(path, "/c"),)).mounts[0].host_path == expected


@pytest.mark.parametrize(
    ("node", "host_path"),
    [
        (DeviceNode("/driver/dev/a"), "/run/d/dev/a"),
        (DeviceNode("/dev/a", "/driver/dev/a"), "/run/d/dev/a"),
        (DeviceNode("/run/d/dev/a", "/driver/dev/a"), ""),
        (DeviceNode("/dev/a"), ""),
    ],
)
def test_a_node_names_its_path_on_the_host_only_where_it_differs(
    node: DeviceNode, host_path: str
) -> None:
    assert moved(device_nodes=(node,)).device_nodes == (replace(node, host_path=host_path),)


def test_a_filled_in_host_path_raises_the_version() -> None:
    made = transforms.reroot(spec(device_nodes=(DeviceNode("/driver/dev/a"),)), "/driver", "/d")
    assert version.with_minimum(made).version == "0.5.0"


@pytest.mark.parametrize(
    ("name", "to", "path", "argument"),
    [
        ("createContainer", "host", True, False),
        ("createContainer", "container", False, True),
        ("startContainer", "host", False, False),
        ("startContainer", "container", True, True),
        ("prestart", "host", True, True),
        ("prestart", "container", False, False),
    ],
)
def test_a_hooks_paths_belong_to_where_it_runs(
    name: str, to: Literal["host", "container"], path: bool, argument: bool
) -> None:
    hook = Hook(
        name, "/driver/hook", ("hook", "/driver/a::/driver/b::/driver/c", "../x::/driver/y")
    )
    (found,) = moved(to=to, hooks=(hook,)).hooks
    args = ("hook", "/run/d/a::/run/d/b::/driver/c", "../x::/run/d/y")
    assert found.path == ("/run/d/hook" if path else hook.path)
    assert found.args == (args if argument else hook.args)


def test_relative_to_the_container_only_its_paths_move() -> None:
    edits = moved(
        to="container",
        device_nodes=(DeviceNode("/driver/a", "/driver/b"),),
        mounts=(Mount("/driver/a", "/driver/b"),),
    )
    assert edits.device_nodes == (DeviceNode("/run/d/a", "/driver/b"),)
    assert edits.mounts == (Mount("/driver/a", "/run/d/b"),)


def test_the_specs_own_edits_move_too() -> None:
    given_one = Spec("v.com/c", (), ContainerEdits(mounts=(Mount("/driver/a", "/b"),)))
    made = transforms.reroot(given_one, "/driver", "/d")
    assert made.container_edits.mounts == (Mount("/d/a", "/b"),)


def test_a_merged_device_has_all_edits_once_and_none_of_the_specs() -> None:
    common = ContainerEdits(env=("A=1",))
    devices = (
        Device("b", ContainerEdits(env=("B=1", "A=1"), additional_gids=(5, 4))),
        Device("c", ContainerEdits(env=("B=1", "C=1"), additional_gids=(4,))),
    )
    made = transforms.merge(Spec("v.com/c", devices, common))
    assert [device.name for device in made.devices] == ["all", "b", "c"]
    assert made.devices[0].container_edits == ContainerEdits(
        env=("B=1", "C=1"), additional_gids=(4, 5)
    )


def test_a_taken_name_is_an_error_or_left_alone() -> None:
    given_one = spec(env=("A=b",))
    with pytest.raises(TransformError, match='"a"'):
        transforms.merge(given_one, "a")
    assert transforms.merge(given_one, "a", skip_existing=True) == given_one


_paths = st.sampled_from(("/a", "/b", "/a/b", "/a/b/c", "/ab", "/c/d/e/f"))
_edits = st.builds(
    ContainerEdits,
    env=st.lists(st.sampled_from(["A=1", "A=2", "B=1"]), max_size=3).map(tuple),
    device_nodes=st.lists(st.builds(DeviceNode, _paths), max_size=3).map(tuple),
    mounts=st.lists(st.builds(Mount, _paths, _paths), max_size=3).map(tuple),
    additional_gids=st.lists(st.integers(0, 5), max_size=3).map(tuple),
)
_specs = st.builds(
    Spec,
    kind=st.just("v.com/c"),
    devices=st.lists(
        st.builds(Device, st.sampled_from("abcd"), _edits),
        max_size=3,
        unique_by=lambda device: device.name,
    ).map(tuple),
    container_edits=_edits,
)


@given(_specs)
def test_tidying_twice_is_tidying_once(given_one: Spec) -> None:
    def tidy(spec: Spec) -> Spec:
        return transforms.order(transforms.simplify(transforms.deduplicate(spec)))

    assert tidy(tidy(given_one)) == tidy(given_one)


@given(_specs)
def test_there_and_back_again_is_where_it_was(given_one: Spec) -> None:
    there = transforms.reroot(given_one, "/", "/somewhere/else")
    back = transforms.reroot(there, "/somewhere/else", "/")
    assert back == given_one


@pytest.mark.parametrize("name", [".-bad", "", "a b", "-"])
@pytest.mark.parametrize("skip_existing", [False, True])
def test_a_merged_device_needs_a_valid_name(name: str, skip_existing: bool) -> None:
    with pytest.raises(InvalidNameError):
        transforms.merge(spec(env=("A=b",)), name, skip_existing=skip_existing)
