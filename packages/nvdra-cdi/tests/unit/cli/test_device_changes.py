# SPDX-License-Identifier: Apache-2.0
"""What changed between two looks at the spec directories."""

from itertools import pairwise
from pathlib import Path

from nvdra_cdi import files
from nvdra_cdi.cache import Cache
from nvdra_cdi.cli import device_changes
from nvdra_cdi.cli.device_changes import Change, Seen
from nvdra_cdi.model import ContainerEdits, Device, Spec

KIND = "vendor.com/class"


def spec(common: str, **devices: str) -> Spec:
    made = tuple(Device(name, ContainerEdits(env=(f"A={v}",))) for name, v in devices.items())
    return Spec(KIND, made, ContainerEdits(env=(f"C={common}",)))


def test_devices_come_change_and_go_in_the_order_of_their_names(tmp_path: Path) -> None:
    cache = Cache([tmp_path])
    x, y = tmp_path / "x.yaml", tmp_path / "y.yaml"
    states = [device_changes.look(cache)]
    for document in (
        spec("1", b="1", a="1"),
        spec("1", a="2", c="1"),
        spec("2", a="2", c="1"),  # an edit of all devices
    ):
        files.write(document, x)
        states.append(device_changes.look(cache))
    files.write(spec("2", a="2"), y)
    files.remove(x)
    states.append(device_changes.look(cache))
    found = [
        [(change.what, change.name, change.path) for change in device_changes.between(old, new)]
        for old, new in pairwise(states)
    ]
    a, b, c = (f"{KIND}={name}" for name in "abc")
    assert found == [
        [("added", a, str(x)), ("added", b, str(x))],
        [("changed", a, str(x)), ("removed", b, str(x)), ("added", c, str(x))],
        [("changed", a, str(x)), ("changed", c, str(x))],
        [("changed", a, str(y)), ("removed", c, str(x))],
    ]


def test_an_error_comes_once_and_its_end_too(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    cache = Cache([tmp_path])
    path.write_bytes(b"kind: [")
    broken = device_changes.look(cache)
    (change,) = device_changes.between(Seen({}, {}), broken)
    assert (change.what, change.path) == ("error", str(path))
    assert "not valid YAML" in change.text
    assert device_changes.between(broken, broken) == []
    path.unlink()
    assert device_changes.between(broken, device_changes.look(cache)) == [
        Change("fixed", path=str(path))
    ]
