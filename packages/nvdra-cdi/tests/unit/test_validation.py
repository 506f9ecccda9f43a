# SPDX-License-Identifier: Apache-2.0
"""Every broken rule with its place in the document (docs/reference/cdi.md §4)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvdra_cdi import codec, validation
from nvdra_cdi.encoding import size
from nvdra_cdi.encoding.fields import FIELDS, Integer, ListOf, String
from nvdra_cdi.errors import MAX_PROBLEMS, ValidationError
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


WHOLE: dict[type, Any] = {
    DeviceNode: DeviceNode("/dev/a", "/dev/b", "c", 1, 2, 0o666, "rwm", 3, 4),
    NetDevice: NetDevice("eth0", "net0"),
    Hook: Hook("poststop", "/bin/h", ("h",), ("A=b",), 5),
    Mount: Mount("/a", "/b", ("ro",), "bind"),
    IntelRdt: IntelRdt("class", "L3:0=f", "MB:0=20", ("L3:0=f",), True),
}
PLACES: dict[type, tuple[str, bool]] = {
    DeviceNode: ("device_nodes", True),
    NetDevice: ("net_devices", True),
    Hook: ("hooks", True),
    Mount: ("mounts", True),
    IntelRdt: ("intel_rdt", False),
}


def with_part(part: Any) -> Spec:
    place, is_list = PLACES[type(part)]
    return edited(**{place: (part,) if is_list else part})


def unreadable() -> list[Any]:
    """A spec for each field that holds a string or a number with a value that no reader takes."""
    broken: list[tuple[str, Spec]] = [
        ("gids", edited(additional_gids=(-1,))),
        ("gids", edited(additional_gids=(1 << 32,))),
        ("env", edited(env=("A=\ud800",))),
        ("kind", replace(GOOD, kind="vendor.com/\ud800")),
        ("name", replace(GOOD, devices=(replace(GOOD.devices[0], name="a\udfffb"),))),
        ("annotations", replace(GOOD, annotations={"a": "\ud800"})),
        ("annotations", replace(GOOD, annotations={"\ud800": "a"})),
        (
            "device annotations",
            replace(GOOD, devices=(replace(GOOD.devices[0], annotations={"a": "\udc00"}),)),
        ),
    ]
    for model, whole in WHOLE.items():
        for field in FIELDS[model]:
            values: list[Any] = []
            if isinstance(field.type, String):
                values = ["/\ud800"]
            elif isinstance(field.type, Integer):
                values = [field.type.lowest - 1, field.type.highest + 1]
            elif isinstance(field.type, ListOf):
                values = [("A=\ud800",)]
            broken += [
                (
                    f"{model.__name__}.{field.key}",
                    with_part(replace(whole, **{field.attribute: value})),
                )
                for value in values
                if not field.last_version
            ]
    return [pytest.param(spec, id=f"{index}-{name}") for index, (name, spec) in enumerate(broken)]


@pytest.mark.parametrize("part", WHOLE.values(), ids=lambda part: type(part).__name__)
def test_the_parts_that_are_broken_below_are_valid(part: Any) -> None:
    assert validation.problems(with_part(part)) == ()


@pytest.mark.parametrize("spec", unreadable())
def test_what_no_reader_takes_is_not_written(spec: Spec) -> None:
    with pytest.raises(ValidationError):
        validation.check(spec, strict=True)


def test_the_number_of_values_is_that_of_the_written_document(golden: Path) -> None:
    everything = codec.loads((golden / "everything.yaml").read_bytes())
    events = yaml.parse(codec.dumps(everything))
    nodes = sum(isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) for event in events)
    assert size.values(everything) == nodes


def test_a_document_with_more_values_than_readers_take_is_not_written() -> None:
    spec = edited(env=("A=b",) * 99_980)
    validation.check(spec)
    with pytest.raises(ValidationError, match="more than 100000 values"):
        validation.check(edited(env=("A=b",) * 100_000))


def test_the_problems_of_one_document_are_limited_but_warnings_hide_no_error() -> None:
    many = MAX_PROBLEMS + 5
    spec = edited(mounts=(Mount("a", "/a", ("\n",)),) * many, net_devices=(NetDevice("", "a"),))
    found = validation.problems(spec)
    assert sum(problem.is_warning for problem in found) == MAX_PROBLEMS
    assert [problem.path for problem in found if not problem.is_warning] == [
        "devices[0].containerEdits.netDevices[0].hostInterfaceName"
    ]
    with pytest.raises(ValidationError) as caught:
        validation.check(edited(env=("NOVALUE",) * many))
    assert len(caught.value.problems) == MAX_PROBLEMS
    assert str(caught.value).endswith(f"; and {MAX_PROBLEMS - 20} more problems")
