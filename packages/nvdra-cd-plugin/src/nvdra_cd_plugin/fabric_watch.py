"""The node's clique: asked of NVML at the start and every ten minutes, on a thread of its own.

While the fabric is not there yet, or the driver is not, it is asked every five seconds, and nobody
but the claims of this node waits for it. A clique that was known stays known: GPUs that leave the
fabric later do not make another node of this one.
Source: spec/compute-domain.md §§7.3, 7.4, 14.4 (KW-65).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.node.nvml import Nvml, NvmlError, Observe
from nvdra_api.runtime.plugin.turns import Turns
from nvdra_api.runtime.process import background
from nvdra_api.runtime.process.worker import Worker
from nvdra_api.runtime.telemetry import logs
from nvdra_api.types.claims import ClaimRef
from nvdra_api.types.errors import DriverError, PermanentError, Reason, RetryableError
from nvdra_api.types.ids import CliqueID

from nvdra_cd_plugin import fabric
from nvdra_cd_plugin.fabric import Observation

LOG = logs.logger(__name__)

EVERY_S: Final = 600.0
AGAIN_S: Final = 5.0
_PATIENCE_S: Final = 10.0
"""NVML that takes longer is told of; it is waited for nevertheless."""
_LIBRARY: Final = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class Rules:
    """How strictly the fabric is looked at; from the gates.

    Attributes:
        is_strict: See `fabric.clique`.
        tolerates_unfinished: Likewise.
        needs_names: The driver's IMEX must find peers by name.
    """

    is_strict: bool
    tolerates_unfinished: bool
    needs_names: bool


@dataclass(frozen=True, slots=True)
class View:
    """What is known of the node's fabric.

    Attributes:
        clique: The node's; None while that is not known, empty without fabric.
        problem: What the last look met; None when all was well.
    """

    clique: CliqueID | None = None
    problem: DriverError | None = None

    def after(self, found: CliqueID | DriverError) -> "View":
        """The view after another look."""
        if isinstance(found, DriverError):
            return View(self.clique, found)
        return View(found or self.clique or found)


class NvmlLook:
    """One look: a session with NVML, what each GPU says, the end of the session. Blocks."""

    def __init__(self, host: Host, rules: Rules, observe: Observe) -> None:
        self._host = host
        self._rules = rules
        self._observe = observe
        self._loaded: tuple[Path, int, int, int] | None = None
        self._renewal = -1
        self._accepted = ""

    def clique(self) -> CliqueID:
        """The node's clique, now.

        Raises:
            DriverError: `FabricError`; `DriverMismatch`: no driver, or NVML does not work.
        """
        try:
            library = self._host.find_library(_LIBRARY)
            self._renew(library)
            nvml = Nvml.load(library, self._observe, self._renewal)
            try:
                return self._asked(nvml)
            finally:
                nvml.close()
        except (FileNotFoundError, NvmlError) as error:
            raise RetryableError(
                Reason.DRIVER_MISMATCH,
                f"the NVIDIA driver of this node does not work: {error}",
                "install or repair the NVIDIA driver; the plugin goes on once it is there",
            ) from error

    def _asked(self, nvml: Nvml) -> CliqueID:
        seen: list[Observation] = []
        for index in range(nvml.count()):
            gpu = nvml.handle_by_index(index)
            info = nvml.fabric(gpu)
            if info is not None:
                seen.append(
                    Observation(gpu.uuid, info.state, info.status, info.cluster, info.clique)
                )
        clique = fabric.clique(
            seen,
            is_strict=self._rules.is_strict,
            tolerates_unfinished=self._rules.tolerates_unfinished,
        )
        if clique and self._rules.needs_names:  # without fabric no IMEX is asked for names
            self._check_driver(nvml.driver_version())
        return clique

    def _check_driver(self, version: str) -> None:
        fabric.check_driver(version)
        if version != self._accepted:
            self._accepted = version
            LOG.info("The driver's IMEX finds its peers by name", driver=version)

    def _renew(self, library: Path) -> None:
        """Count the files that were loaded from one path; see `Nvml.load`."""
        status = library.stat()
        loadable = (library, status.st_dev, status.st_ino, status.st_mtime_ns)
        if loadable != self._loaded:
            self._loaded, self._renewal = loadable, self._renewal + 1


class FabricWatch:
    """Looks again and again; made by `running`."""

    def __init__(self, look: NvmlLook, worker: Worker) -> None:
        self.view = View()
        self._look = look
        self._worker = worker
        self._moved = asyncio.Condition()
        self._serial = 0

    @property
    def has_looked(self) -> bool:
        """Whether there was a first look, whatever it found."""
        return self._serial > 0

    async def changed_since(self, serial: int) -> int:
        """Wait until `view` is another than a reader at `serial` has seen; the new serial."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._serial > serial)
            return self._serial

    @property
    def obstacle(self) -> DriverError:
        """Why the clique is not known; of use only while it is not."""
        return self.view.problem or _unanswered()

    async def clique(self, deadline: float) -> CliqueID:
        """The node's clique, as soon as it is known.

        Raises:
            DriverError: `FabricError`, `DriverMismatch`: it is not, and why.
            RetryableError: `DeadlineExceeded`: NVML hangs.
        """
        try:
            async with asyncio.timeout_at(deadline), self._moved:
                await self._moved.wait_for(lambda: self._is_settled)
        except TimeoutError as error:
            raise self.obstacle from error
        if self.view.clique is None:
            raise self.obstacle
        return self.view.clique

    async def wanted(self, ref: ClaimRef, turns: Turns, deadline: float) -> CliqueID:
        """The node's clique, for a claim that waits for it while somebody wants it.

        Raises:
            DriverError: As `clique`; what is in the way at the end of the wait, not at its start.
        """
        try:
            async with turns.until(ref, self.obstacle, deadline):
                return await self.clique(deadline)
        except DriverError as error:
            raise self.view.problem or error from error.__cause__

    @property
    def _is_settled(self) -> bool:
        """Whether waiting changes nothing."""
        return self.view.clique is not None or isinstance(self.view.problem, PermanentError)

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self._note(self.view.after(await self._found()))
            await asyncio.sleep(AGAIN_S if self.view.problem else EVERY_S)

    async def _found(self) -> CliqueID | DriverError:
        looking = self._worker.start(self._look.clique)
        if not (await asyncio.wait((looking,), timeout=_PATIENCE_S))[0]:
            await self._note(self.view.after(_unanswered()))
        try:
            return await looking
        except DriverError as error:
            return error

    async def _note(self, view: View) -> None:
        before, self.view = self.view, view
        if self.has_looked and _told(before) == _told(view):
            return
        if view.problem is not None:
            LOG.warning("The node's NVLink fabric cannot be used", error=str(view.problem))
        elif view.clique:
            LOG.info("The node's NVLink clique is identified", clique=view.clique)
        else:
            LOG.info("The node has no NVLink fabric of several nodes")
        async with self._moved:
            self._serial += 1
            self._moved.notify_all()


def _told(view: View) -> tuple[CliqueID | None, str]:
    return view.clique, str(view.problem or "")


def _unanswered() -> RetryableError:
    return RetryableError(
        Reason.DEADLINE_EXCEEDED,
        "NVML has not said what the fabric of this node's GPUs is",
        "if it lasts, look for Xid messages in the node's kernel log; nvidia-smi on the node hangs "
        "likewise",
    )


@asynccontextmanager
async def running(look: NvmlLook, worker: Worker) -> AsyncIterator[FabricWatch]:
    """Look at the fabric while the block runs."""
    watch = FabricWatch(look, worker)
    async with background.tasks(fabric=watch.run()):
        yield watch
