# SPDX-License-Identifier: Apache-2.0
import pytest
from nvdra_sim.testing.real_kernel import kernel_modules

DEPENDENCIES = """\
kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz
kernel/net/9p/9pnet.ko.xz:
kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz
kernel/fs/netfs/netfs.ko.xz: kernel/fs/fscache.ko
kernel/fs/fscache.ko:
"""
BUILTIN = "kernel/drivers/virtio/virtio_pci.ko\n"


def test_modules_are_loaded_after_what_they_need_and_once() -> None:
    assert kernel_modules.load_order(["9pnet_virtio", "9p"], DEPENDENCIES, BUILTIN) == [
        "kernel/net/9p/9pnet.ko.xz",
        "kernel/net/9p/9pnet_virtio.ko.xz",
        "kernel/fs/fscache.ko",
        "kernel/fs/netfs/netfs.ko.xz",
        "kernel/fs/9p/9p.ko.xz",
    ]


def test_parts_of_the_kernel_are_not_loaded() -> None:
    assert kernel_modules.load_order(["virtio-pci"], DEPENDENCIES, BUILTIN) == []


def test_a_module_that_the_kernel_does_not_have_is_named() -> None:
    with pytest.raises(LookupError, match="no module overlay"):
        kernel_modules.load_order(["overlay"], DEPENDENCIES, BUILTIN)
