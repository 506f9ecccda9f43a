# SPDX-License-Identifier: Apache-2.0
"""Asks the IMEX that the host runs itself whether it is READY, by the host's nvidia-imex-ctl.

Used only where the administrator runs nvidia-imex. Source: docs/reference/compute-domain.md,
"Host-managed channel claim", "Races and correctness" (KW-42); docs/design.md, "Settled": only the
word READY counts.
"""

import asyncio
import itertools
import random
from contextlib import suppress
from pathlib import Path
from typing import Final

from nvdra_api.errors import PermanentError, Reason, RetryableError
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims.device_wait_queue import DeviceWaitQueue
from nvdra_runtime.computedomain import imex_ctl
from nvdra_runtime.node import host
from nvdra_runtime.process import backoff
from nvdra_runtime.process.backoff import Backoff

_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where chroot is found. The host's program gets nothing else of the plugin's environment."""
_QUERY_BACKOFF: Final = Backoff(first_s=0.5, ceiling_s=5.0)
"""Between two queries, as this IMEX notifies no one."""
_DIRECTORIES: Final = ("", "opt/bin", "usr/bin", "usr/sbin", "bin", "sbin")


class HostImex:
    """The IMEX of this host."""

    def __init__(self, root: Path, socket: Path) -> None:
        """Create it without any query.

        Args:
            root: The host's root directory; nvidia-imex-ctl runs with it as its own root.
            socket: The socket on which IMEX listens, inside that root.
        """
        self._root = root
        self._socket = socket

    async def wait_ready(self, ref: ClaimRef, waits: DeviceWaitQueue, deadline: float) -> None:
        """Return as soon as the host's IMEX is READY; the wait of the claim is among `waits`.

        Raises:
            PermanentError: `ImexBinaryMissing`.
            RetryableError: `DaemonNotReady`: the deadline, in monotonic seconds, does not allow
                another query, or the claim is no longer wanted.
        """
        for attempts in itertools.count(1):
            try:
                return await self._check_ready()
            except RetryableError as error:
                delay_s = _QUERY_BACKOFF.delay(attempts, random.random())  # noqa: S311 - spreads load
                if not backoff.fits(delay_s, asyncio.get_running_loop().time(), deadline):
                    raise
                await waits.pause(ref, error, delay_s)
        raise AssertionError("unreachable")

    async def _check_ready(self) -> None:
        """Return only if the host's IMEX is READY; takes at most five seconds.

        Raises:
            PermanentError: `ImexBinaryMissing`.
            RetryableError: `DaemonNotReady`, with what nvidia-imex-ctl printed.
        """
        problem = await self._query_status(self._find_program())
        if problem:
            raise RetryableError(
                Reason.DAEMON_NOT_READY,
                f"the nvidia-imex that the host runs is not ready: {problem}",
                "see `systemctl status nvidia-imex` on the node; its configuration needs "
                f"IMEX_CMD_ENABLED=1 and IMEX_CMD_UNIX_DOMAIN_PATH={self._socket}",
            )

    def _find_program(self) -> Path:
        """The path of nvidia-imex-ctl inside the root."""
        for directory in _DIRECTORIES:
            found = host.resolve_in_root(self._root, Path(directory, imex_ctl.CTL_PROGRAM))
            if found is not None and _is_file(found):
                return Path("/", found.relative_to(self._root))
        raise PermanentError(
            Reason.IMEX_BINARY_MISSING,
            f"{imex_ctl.CTL_PROGRAM} is not below {self._root}, neither directly nor in "
            f"{', '.join(filter(None, _DIRECTORIES))}",
            "install the package nvidia-imex of the driver's version on the node",
        )

    async def _query_status(self, program: Path) -> str:
        """Why IMEX is not READY; empty if it is."""
        process = await asyncio.create_subprocess_exec(
            "chroot", str(self._root), str(program), "-q", f"--u={self._socket}",
            env={"PATH": _PATH},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(imex_ctl.QUERY_TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            timeout_s = imex_ctl.QUERY_TIMEOUT_S
            return f"{imex_ctl.CTL_PROGRAM} gave no answer within {timeout_s:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        return imex_ctl.not_ready_reason(process.returncode or 0, output)


def _is_file(path: Path) -> bool:
    """Whether the file is there and can be looked at."""
    try:
        return path.is_file()
    except OSError:
        return False
