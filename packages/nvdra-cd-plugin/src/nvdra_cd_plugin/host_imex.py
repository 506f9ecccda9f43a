"""Is the IMEX READY that the host runs itself? Asked of its own tool, in the host's root.

Only where the administrator runs nvidia-imex. Source: spec/compute-domain.md §7.8, §14.2 (KW-42);
design.md, "Settled": the word READY alone.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from nvdra_api.protocol import imex
from nvdra_api.runtime.node import host
from nvdra_api.types.errors import PermanentError, Reason, RetryableError

_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where chroot is; a program of the host's gets nothing else of our environment."""
_PLACES: Final = ("", "opt/bin", "usr/bin", "usr/sbin", "bin", "sbin")


class HostImex:
    """The IMEX of this host."""

    def __init__(self, root: Path, socket: Path) -> None:
        """Nothing is asked yet.

        Args:
            root: The host's root as we see it; the tool runs with it as its own.
            socket: Where IMEX listens, inside that root.
        """
        self._root = root
        self._socket = socket

    async def check(self) -> None:
        """Return only if it is READY; answers within five seconds.

        Raises:
            PermanentError: `ImexBinaryMissing`.
            RetryableError: `DaemonNotReady`, with what it said.
        """
        lack = await self._lack(self._program())
        if lack:
            raise RetryableError(
                Reason.DAEMON_NOT_READY,
                f"the nvidia-imex that the host runs is not ready: {lack}",
                "systemctl status nvidia-imex on the node; its configuration needs "
                f"IMEX_CMD_ENABLED=1 and IMEX_CMD_UNIX_DOMAIN_PATH={self._socket}",
            )

    def _program(self) -> Path:
        """The tool inside the root."""
        for place in _PLACES:
            found = host.resolve(self._root, Path(place, imex.CTL))
            if found is not None and found.is_file():
                return Path("/", found.relative_to(self._root))
        raise PermanentError(
            Reason.IMEX_BINARY_MISSING,
            f"{imex.CTL} not found below {self._root}: looked there and in "
            f"{', '.join(filter(None, _PLACES))}",
            "install the package nvidia-imex of the driver's version on the node",
        )

    async def _lack(self, program: Path) -> str:
        process = await asyncio.create_subprocess_exec(
            "chroot", str(self._root), str(program), "-q", f"--u={self._socket}",
            env={"PATH": _PATH},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(imex.TIMEOUT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            return f"{imex.CTL} gave no answer within {imex.TIMEOUT_S:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        return imex.lack(process.returncode or 0, output)
