"""Files that cannot be written or removed end nothing: who waits is told why."""

import asyncio
import errno

import pytest
from nvdra_api.runtime.process.worker import Worker
from nvdra_api.types.errors import Reason, RetryableError
from nvdra_cd_plugin.disk import Disk


def refuse(number: int) -> None:
    raise OSError(number, "the disk says no", "/somewhere")


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EIO, errno.EBUSY])
async def test_what_the_disk_says_is_the_reason(number: int) -> None:
    async with Worker("files") as worker:
        with pytest.raises(RetryableError, match="the disk says no") as refusal:
            await Disk(worker).run(asyncio.get_running_loop().time() + 5, refuse, number)
    assert refusal.value.reason is Reason.STATE_UNAVAILABLE
