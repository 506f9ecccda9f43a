"""Every broken rule with its place in the document (docs/reference/cdi.md §4)."""

from dataclasses import replace
from typing import Any

import pytest
from nvdra_cdi import validation
from nvdra_cdi.errors import ValidationError
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

GOOD = Spec(
    "vendor.com/class",
    (Device("gpu-0", ContainerEdits(device_nodes=(DeviceNode("/dev/a"),))),),
    version="1.1.0",
)


def edited(**edits: Any) -> Spec:
    return replace(GOOD, devices=(Device("gpu-0", ContainerEdits(**edits)),))


def paths(spec: Spec, *, extra: bool) -> list[str]:
    return [each.path for each in validation.problems(spec) if each.is_warning is extra]


STANDARD = {
    "cdiVersion": replace(GOOD, version="2.0"),
    "kind": replace(GOOD, kind="nvidia.com/-"),
    "devices": replace(GOOD, devices=()),
    "devices[0].name": replace(GOOD, devices=(Device("-", ContainerEdits(env=("A=",))),)),
    "devices[0].containerEdits": edited(),
    "devices[0].containerEdits.env[1]": edited(env=("A=b", "=b")),
    "devices[0].containerEdits.deviceNodes[0].path": edited(device_nodes=(DeviceNode(""),)),
    "devices[0].containerEdits.deviceNodes[0].type": edited(
        device_nodes=(DeviceNode("/a", type="x"),)
    ),
    "devices[0].containerEdits.deviceNodes[0].permissions": edited(
        device_nodes=(DeviceNode("/a", permissions="rx"),)
    ),
    "devices[0].containerEdits.hooks[0].hookName": edited(hooks=(Hook("prestop", "/a"),)),
    "devices[0].containerEdits.hooks[0].path": edited(hooks=(Hook("poststop", ""),)),
    "devices[0].containerEdits.hooks[0].env[0]": edited(
        hooks=(Hook("poststop", "/a", (), ("A",)),)
    ),
    "devices[0].containerEdits.mounts[0].hostPath": edited(mounts=(Mount("", "/a"),)),
    "devices[0].containerEdits.mounts[0].containerPath": edited(mounts=(Mount("/a", ""),)),
    "devices[0].containerEdits.intelRdt.closID": edited(intel_rdt=IntelRdt("a/b")),
    "devices[0].containerEdits.netDevices[1].name": edited(
        net_devices=(NetDevice("eth0", "a"), NetDevice("eth1", "a"))
    ),
    "devices[0].containerEdits.netDevices[1].hostInterfaceName": edited(
        net_devices=(NetDevice("eth0", "a"), NetDevice("eth0", "b"))
    ),
    "containerEdits.env[0]": replace(GOOD, container_edits=ContainerEdits(env=("A",))),
}

EXTRA = {
    "kind": replace(GOOD, kind=f"{'v' * 254}/class"),
    "annotations": replace(GOOD, annotations={"a b": "c"}),
    "devices[0].annotations": replace(
        GOOD, devices=(replace(GOOD.devices[0], annotations={"k": "x" * (256 << 10)}),)
    ),
    "devices[0].containerEdits.env[0]": edited(env=("A=b\nC=d",)),
    "devices[0].containerEdits.deviceNodes[0].path": edited(device_nodes=(DeviceNode("dev/a"),)),
    "devices[0].containerEdits.deviceNodes[0].hostPath": edited(
        device_nodes=(DeviceNode("/a", "b"),)
    ),
    "devices[0].containerEdits.deviceNodes[0].major": edited(
        device_nodes=(DeviceNode("/a", type="p", major=1),)
    ),
    "devices[0].containerEdits.deviceNodes[0].minor": edited(
        device_nodes=(DeviceNode("/a", minor=1 << 20),)
    ),
    "devices[0].containerEdits.deviceNodes[0].fileMode": edited(
        device_nodes=(DeviceNode("/a", file_mode=0o10000),)
    ),
    "devices[0].containerEdits.hooks[0].timeout": edited(
        hooks=(Hook("poststop", "/a", timeout=0),)
    ),
    "devices[0].containerEdits.hooks[0].args[1]": edited(
        hooks=(Hook("poststop", "/a", ("a", "b\0")),)
    ),
    "devices[0].containerEdits.mounts[0].hostPath": edited(mounts=(Mount("a", "/a"),)),
    "devices[0].containerEdits.mounts[1].containerPath": edited(
        mounts=(Mount("/a", "/x"), Mount("/b", "/x"))
    ),
    "containerEdits.deviceNodes[1].path": replace(
        GOOD,
        container_edits=ContainerEdits(device_nodes=(DeviceNode("/x"), DeviceNode("/x", "/y"))),
    ),
}


@pytest.mark.parametrize(("path", "spec"), STANDARD.items(), ids=STANDARD.keys())
def test_a_rule_of_the_standard_is_reported_at_its_place(path: str, spec: Spec) -> None:
    assert paths(spec, extra=False) == [path]


@pytest.mark.parametrize("kind", ["v/class", "vendor.com/c"])
def test_a_part_of_one_character_is_read_and_not_written_as_older_runtimes_crash_at_it(
    kind: str,
) -> None:
    spec = replace(GOOD, kind=kind)
    validation.check(spec, strict=False)
    with pytest.raises(
        ValidationError, match="is one character long, which crashes older runtimes"
    ):
        validation.check(spec, strict=True)


@pytest.mark.parametrize(("path", "spec"), EXTRA.items(), ids=EXTRA.keys())
def test_a_rule_of_ours_is_reported_at_its_place_and_only_stops_writers(
    path: str, spec: Spec
) -> None:
    assert paths(spec, extra=True) == [path]
    validation.check(spec, strict=False)
    with pytest.raises(ValidationError):
        validation.check(spec, strict=True)


@pytest.mark.parametrize(
    "spec",
    [
        edited(device_nodes=(DeviceNode("/a", type="p", permissions="none"),)),
        edited(device_nodes=(DeviceNode("/a", permissions="rrw"),)),
        edited(intel_rdt=IntelRdt("/")),
        edited(intel_rdt=IntelRdt("")),
        edited(additional_gids=(0,)),
        edited(mounts=(Mount("tmpfs", "/a", type="tmpfs"),)),
        replace(GOOD, annotations={"example.com/Some.Key": "any value"}),
        replace(GOOD, container_edits=GOOD.devices[0].container_edits),
    ],
)
def test_what_the_rules_allow_has_no_problem(spec: Spec) -> None:
    assert validation.problems(spec) == ()


def test_all_problems_come_at_once_in_the_order_of_the_document() -> None:
    spec = Spec(
        "class",
        (
            Device("a", ContainerEdits(env=("X",), mounts=(Mount("", "/a"),))),
            Device("a", ContainerEdits(env=("A=b",))),
        ),
        version="0.3.0",
    )
    assert [(problem.path, problem.device) for problem in validation.problems(spec)] == [
        ("kind", ""),
        ("devices[0].containerEdits.env[0]", "a"),
        ("devices[0].containerEdits.mounts[0].hostPath", "a"),
        ("devices[1].name", "a"),
    ]


def test_the_error_names_file_device_place_and_value() -> None:
    with pytest.raises(ValidationError) as caught:
        validation.check(edited(env=("NOVALUE",)), source="/etc/cdi/x.yaml")
    for fact in ("/etc/cdi/x.yaml", "gpu-0", "devices[0].containerEdits.env[0]", "NOVALUE"):
        assert fact in str(caught.value)
    assert caught.value.source == "/etc/cdi/x.yaml"
