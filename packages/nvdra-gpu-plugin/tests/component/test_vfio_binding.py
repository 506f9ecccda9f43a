# SPDX-License-Identifier: Apache-2.0
"""A GPU goes to vfio for a claim and comes back, on a simulated kernel and its own NVML."""

from pathlib import Path

import pytest
from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.ids import PciAddress
from nvdra_testing.node import vfio_binding_node
from nvdra_testing.node.vfio_binding_node import CLAIM, held, keep
from nvdra_testing.polling import wait_until


async def test_a_gpu_goes_to_vfio_and_everything_is_as_before_after_the_claim(
    tmp_path: Path,
) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        all_gpus, pci = made.gpus(), made.node.address(1)
        change = await made.kind.inspect(CLAIM, made.change(1))
        assert made.driver(1) == "nvidia", "to look changes nothing"
        change = await made.kind.apply(CLAIM, change, keep)
        assert (made.driver(1), made.override(1)) == ("vfio-pci", "vfio-pci")
        assert await made.kind.is_in_force(CLAIM, change)
        await wait_until(lambda: made.gpus() == all_gpus - {pci})

        again = await made.kind.apply(CLAIM, change, keep)
        assert again == change

        await made.kind.revert(CLAIM, change)
        assert (made.driver(1), made.override(1)) == ("nvidia", "(null)")
        await wait_until(lambda: made.gpus() == all_gpus)


async def test_a_process_that_has_the_gpu_open_is_named_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        with held(made.holding(1)) as holder:
            with pytest.raises(RetryableError) as caught:
                await made.kind.inspect(CLAIM, made.change(1))
            assert caught.value.reason is Reason.VFIO_DEVICE_BUSY
            assert f"(pid {holder.pid})" in caught.value.message
        assert (made.driver(1), made.override(1)) == ("nvidia", "(null)")
        assert len(made.gpus()) == 4


async def test_a_process_that_comes_between_the_look_and_the_unbind_is_not_unbound(
    tmp_path: Path,
) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        change = await made.kind.inspect(CLAIM, made.change(1))
        with held(made.holding(1)):
            with pytest.raises(RetryableError) as caught:
                await made.kind.apply(CLAIM, change, keep)
            assert caught.value.reason is Reason.VFIO_DEVICE_BUSY
            await made.kind.revert(CLAIM, change)
            assert (made.driver(1), made.override(1)) == ("nvidia", "(null)")
            assert len(made.monitor.probes) == 4
            await wait_until(lambda: len(made.gpus()) == 4)


async def test_a_virtual_machine_that_still_has_the_gpu_keeps_it(tmp_path: Path) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        change = await made.kind.inspect(CLAIM, made.change(1))
        change = await made.kind.apply(CLAIM, change, keep)
        group = (made.node.device(1) / "iommu_group").readlink().name
        with held((*made.node.vmm, "device", group, change.pci)) as holder:
            with pytest.raises(RetryableError) as caught:
                await made.kind.revert(CLAIM, change)
            assert caught.value.reason is Reason.VFIO_DEVICE_BUSY
            assert f"(pid {holder.pid})" in caught.value.message
            assert made.driver(1) == "vfio-pci"
        await made.kind.revert(CLAIM, change)
        assert (made.driver(1), made.override(1)) == ("nvidia", "(null)")


async def test_a_gpu_that_was_on_vfio_before_stays_there(tmp_path: Path) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        first = await made.kind.inspect(CLAIM, made.change(1))
        await made.kind.apply(CLAIM, first, keep)
        change = await made.kind.inspect(CLAIM, made.change(1))
        assert change.is_prebound
        assert await made.kind.is_in_force(CLAIM, change)
        await made.kind.revert(CLAIM, change)
        assert made.driver(1) == "vfio-pci"
        await made.kind.revert(CLAIM, first)


async def test_a_gpu_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    async with vfio_binding_node.opened(tmp_path) as made:
        change = made.change(1).model_copy(update={"pci": PciAddress("0000:77:00.0")})
        with pytest.raises(PermanentError) as caught:
            await made.kind.inspect(CLAIM, change)
        assert caught.value.reason is Reason.VFIO_NOT_POSSIBLE
        await made.kind.revert(CLAIM, change)
