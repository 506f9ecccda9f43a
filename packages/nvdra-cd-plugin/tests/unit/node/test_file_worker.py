# SPDX-License-Identifier: Apache-2.0
"""A file that cannot be written or removed is reported to the caller."""

import asyncio
import errno

import pytest
from nvdra_api.errors import Reason, RetryableError
from nvdra_cd_plugin.node.file_worker import FileWorker
from nvdra_cdi.errors import DiscoveryError
from nvdra_runtime.process.worker import Worker


def refuse(number: int) -> None:
    raise OSError(number, "the disk says no", "/somewhere")


def fail_to_discover() -> None:
    raise DiscoveryError("cannot read /dev: the disk says no")


async def test_a_driver_that_cannot_be_read_is_reported_too() -> None:
    async with Worker("files") as worker:
        with pytest.raises(RetryableError, match="the disk says no") as refusal:
            await FileWorker(worker).run(asyncio.get_running_loop().time() + 5, fail_to_discover)
    assert refusal.value.reason is Reason.STATE_UNAVAILABLE


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EIO, errno.EBUSY])
async def test_the_error_has_the_message_of_the_file_system(number: int) -> None:
    async with Worker("files") as worker:
        with pytest.raises(RetryableError, match="the disk says no") as refusal:
            await FileWorker(worker).run(asyncio.get_running_loop().time() + 5, refuse, number)
    assert refusal.value.reason is Reason.STATE_UNAVAILABLE
