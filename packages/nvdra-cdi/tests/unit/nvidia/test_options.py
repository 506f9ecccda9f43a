# SPDX-License-Identifier: Apache-2.0
"""What a caller tells the generator."""

from typing import Any

import pytest
from nvdra_cdi.nvidia.options import (
    NEW_IN_1_20,
    Gpu,
    HookName,
    Options,
    join_root,
    strip_root,
)
from pydantic import ValidationError


def test_everything_defaults_to_a_driver_on_the_host_itself() -> None:
    options = Options()
    assert options.driver_root == options.dev_root == "/"
    assert options.target_driver_root == options.target_dev_root == "/"


def test_nodes_below_the_driver_root_move_with_it() -> None:
    options = Options(driver_root="/driver-root", target_driver_root="/run/nvidia/driver")
    assert options.dev_root == "/driver-root"
    assert options.target_dev_root == "/run/nvidia/driver"


def test_nodes_elsewhere_stay_where_they_are() -> None:
    options = Options(driver_root="/driver-root", target_driver_root="/x", dev_root="/")
    assert options.target_dev_root == "/"


def test_paths_are_tidied() -> None:
    assert Options(driver_root="//driver-root/./").driver_root == "/driver-root"


@pytest.mark.parametrize(
    "wrong",
    [{"driver_root": "relative"}, {"hook_path": ""}, {"disabled_hooks": ["x"]}, {"unknown": 1}],
)
def test_a_wrong_option_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Options(**wrong)


def test_hooks_are_on_except_chmod_and_enabling_wins() -> None:
    assert [hook for hook in HookName if not Options().allows(hook)] == [HookName.CHMOD]
    assert not any(Options(disabled_hooks={"all"}).allows(hook) for hook in HookName)
    off = Options(disabled_hooks=NEW_IN_1_20, enabled_hooks={HookName.CHMOD})
    assert {hook for hook in HookName if not off.allows(hook)} == NEW_IN_1_20
    both = Options(disabled_hooks={"all"}, enabled_hooks={HookName.UPDATE_LDCACHE})
    assert [hook for hook in HookName if both.allows(hook)] == [HookName.UPDATE_LDCACHE]


@pytest.mark.parametrize("bus_id", ["00000000:3B:00.0", "0000:3b:00.0"])
def test_a_pci_address_is_as_sysfs_writes_it(bus_id: str) -> None:
    assert Gpu("GPU-x", 0, bus_id).pci_address == "0000:3b:00.0"


def test_a_wide_pci_domain_keeps_its_digits() -> None:
    assert Gpu("GPU-x", 0, "00010000:3B:00.0").pci_address == "10000:3b:00.0"


@pytest.mark.parametrize(
    ("root", "inside", "outside"),
    [("/", "/dev/a", "/dev/a"), ("/run/driver", "/dev/a", "/run/driver/dev/a")],
)
def test_a_path_goes_into_a_root_and_out_again(root: str, inside: str, outside: str) -> None:
    assert join_root(root, inside) == outside
    assert strip_root(root, outside) == inside


@pytest.mark.parametrize("path", ["/driver-backup/a", "/drive", "/other", "/driver"])
def test_a_path_beside_a_root_is_not_inside_it(path: str) -> None:
    assert strip_root("/driver", path) is None
