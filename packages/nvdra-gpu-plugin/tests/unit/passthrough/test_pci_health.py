# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from nvdra_api.ids import PciAddress
from nvdra_gpu_plugin.passthrough import pci_health
from nvdra_gpu_plugin.passthrough.pci_health import PciLook
from nvdra_testing.node.pci_tree import GPU, SysfsTree

PCI = PciAddress(GPU)
ERRORS = "Undefined 0\nDLP 3\nUnsupReq 0\nTOTAL_ERR_FATAL 2"
LINK = {"current_link_width": "8", "max_link_width": "16"}
ANSWERS, SILENT = b"\xde\x10\x30\x23", b"\xff\xff\xff\xff"


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path)


def add(tree: SysfsTree, config: bytes = ANSWERS, **files: str) -> Path:
    """A GPU on vfio. `files` without a text are left out."""
    wanted = {"power_state": "D0", "aer_dev_fatal": ERRORS, **LINK, **files}
    present = {name: text for name, text in wanted.items() if text}
    directory = tree.add(GPU, 0x10DE, 0x030200, "vfio-pci", 17, **present)
    (directory / "config").write_bytes(config)
    return directory


@pytest.mark.parametrize(
    ("power", "may_wake", "expected"),
    [
        ("D0", False, PciLook(False, 8, 16, 2)),
        ("D1", False, PciLook(False, None, None, 2)),
        ("D2", False, PciLook(False, None, None, 2)),
        ("D3hot", False, PciLook(False, None, None, 2)),
        ("D3cold", False, PciLook(None, None, None, 2)),
        ("D3cold", True, PciLook(False, None, None, 2)),
        ("unknown", False, PciLook(False, None, None, 2)),
        ("error", False, PciLook(False, None, None, 2)),
        ("a state of a later kernel", False, PciLook(False, None, None, 2)),
        ("", False, PciLook(False, 8, 16, 2)),
    ],
)
def test_what_is_asked_follows_from_the_power_state(
    tree: SysfsTree, power: str, expected: PciLook, *, may_wake: bool
) -> None:
    add(tree, power_state=power)
    assert pci_health.read(tree.host, PCI, may_wake=may_wake) == expected


def test_a_configuration_space_of_ones_is_no_answer_and_its_link_says_nothing(
    tree: SysfsTree,
) -> None:
    add(tree, SILENT, current_link_width="4", max_link_width="16")
    assert pci_health.read(tree.host, PCI) == PciLook(True, None, None, 2)


def test_only_the_vendor_counts(tree: SysfsTree) -> None:
    directory = add(tree, b"\xff\x10\xff\xff")
    assert pci_health.read(tree.host, PCI).is_silent is False
    (directory / "config").write_bytes(b"\xff\xff\x30\x23")
    assert pci_health.read(tree.host, PCI).is_silent is True


@pytest.mark.parametrize(
    ("port", "lanes"), [(None, 16), ("16", 16), ("8", 8), ("32", 16), ("63", 16), ("0", 16)]
)
def test_a_link_can_have_the_lanes_that_both_of_its_ends_have(
    tree: SysfsTree, port: str | None, lanes: int
) -> None:
    directory = add(tree)
    if port is not None:
        (directory.parent / "max_link_width").write_text(f"{port}\n")
    look = pci_health.read(tree.host, PCI)
    assert (look.lanes, look.full_lanes) == (8, lanes)


@pytest.mark.parametrize(
    ("now", "most"), [("63", "63"), ("63", "16"), ("0", "16"), ("8", "63"), ("Unknown", "16"),
                      ("", "16"), ("8", ""), ("-8", "16"), ("8", "16 lanes")],
)  # fmt: skip
def test_a_width_that_no_link_has_is_not_known(tree: SysfsTree, now: str, most: str) -> None:
    add(tree, current_link_width=now, max_link_width=most)
    assert pci_health.read(tree.host, PCI) == PciLook(False, None, None, 2)


def test_a_width_that_cannot_be_read_is_not_known(tree: SysfsTree) -> None:
    directory = add(tree, current_link_width="")
    (directory / "current_link_width").mkdir()  # as EINVAL
    assert pci_health.read(tree.host, PCI) == PciLook(False, None, None, 2)


@pytest.mark.parametrize("text", ["", "Undefined 0\nDLP 3", "TOTAL_ERR_NONFATAL 7"])
def test_a_kernel_that_counts_no_fatal_errors(tree: SysfsTree, text: str) -> None:
    add(tree, aer_dev_fatal=text)
    assert pci_health.read(tree.host, PCI) == PciLook(False, 8, 16, None)


def test_a_counter_that_is_no_number_is_an_error(tree: SysfsTree) -> None:
    add(tree, aer_dev_fatal="TOTAL_ERR_FATAL many")
    look = pci_health.read(tree.host, PCI)
    assert look._replace(error="") == PciLook()
    assert "'many'" in look.error


def test_a_function_that_has_left_the_bus_does_not_answer(tree: SysfsTree) -> None:
    assert pci_health.read(tree.host, PCI) == PciLook(is_silent=True)


def test_a_function_whose_configuration_cannot_be_opened_is_not_known(tree: SysfsTree) -> None:
    config = add(tree) / "config"
    config.unlink()
    look = pci_health.read(tree.host, PCI)
    assert look._replace(error="") == PciLook()
    assert f"{GPU}/config" in look.error
