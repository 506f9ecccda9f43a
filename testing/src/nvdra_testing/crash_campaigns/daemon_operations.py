# SPDX-License-Identifier: Apache-2.0
"""The operations of an IMEX daemon that a campaign interrupts.

The daemon's peers are another daemon, where one is needed to look at the domain from outside, and
an entry of a third member, which comes, goes and moves as the test wants. All methods block.
"""

from collections.abc import Sequence
from typing import Final

from nvdra_testing.crash_campaigns import daemon_checks, daemon_sandbox
from nvdra_testing.crash_campaigns.daemon_sandbox import SUBJECT, DaemonSandbox

ANNOUNCED: Final = ("--clique-writer=controller",)
_THIRD: Final = "127.1.1.1"
_MOVED: Final = "127.1.1.2"


class DaemonOperation:
    """An operation, and what must be true after it was interrupted.

    Attributes:
        name: Its name in the report.
        is_start: Whether it is the daemon's start itself.
        has_peer: Whether another daemon of the domain runs.
        has_controller: Whether a controller writes the clique.
        is_slow: Whether its calls come so long after the start that the threads are there.
        is_entry_removed: Whether the entry goes when the daemon is stopped.
        flags: The flags of the daemons.
    """

    name: str
    is_start = False
    has_peer = True
    has_controller = False
    is_slow = False
    is_entry_removed = True
    flags: Sequence[str] = ()

    def arrange(self, sandbox: DaemonSandbox) -> None:
        """Make the state before the operation, and start the daemon unless that is it."""
        sandbox.reset()
        _start(sandbox)

    def perform(self, sandbox: DaemonSandbox) -> None:
        """Perform the operation; the daemon may be struck at any time.

        Raises:
            Struck: It was.
        """
        raise NotImplementedError

    def recover(self, sandbox: DaemonSandbox) -> None:
        """Start the daemon again, as kubelet and DaemonSet do."""
        _start(sandbox)

    def check_alive(self, sandbox: DaemonSandbox) -> None:
        """Check what must be true at any time while the daemon lives."""

    def check_recovery(self, sandbox: DaemonSandbox) -> str:
        """Recover, check everything, stop the daemon, and describe the result."""
        was_listed = SUBJECT in sandbox.rack.entries()
        self.recover(sandbox)
        daemon_checks.check_recovered(sandbox)
        daemon_checks.check_stop(sandbox, is_entry_removed=self.is_entry_removed)
        return "took its entry back" if was_listed else "joined"


class FirstStart(DaemonOperation):
    """The first daemon of a domain: lock, clique, index, files, nvidia-imex, Ready."""

    name = "first start, killed"
    is_start = True
    has_peer = False

    def arrange(self, sandbox: DaemonSandbox) -> None:
        sandbox.reset()
        sandbox.launch()

    def perform(self, sandbox: DaemonSandbox) -> None:
        sandbox.open_gate()
        daemon_checks.wait_right(sandbox)

    def check_alive(self, sandbox: DaemonSandbox) -> None:
        daemon_checks.check_starting(sandbox, is_known=False)


class Join(FirstStart):
    """The second daemon of a domain, which writes its entry itself."""

    name = "join, killed"
    has_peer = True


class AnnouncedJoin(Join):
    """The second daemon of a domain, which says on its pod what the controller is to write."""

    name = "announced join, killed"
    has_controller = True
    flags = ANNOUNCED


class DeputyJoin(Join):
    """The same while there is no controller: after 15 s the daemon writes its entry itself."""

    name = "deputy's join, killed"
    is_slow = True
    # A daemon that was started again has an entry, so it does not know that nobody else writes.
    is_entry_removed = False
    flags = ANNOUNCED


class RestartAfterKill(FirstStart):
    """A start in the pod of a daemon that was killed, beside what the kill has left."""

    name = "restart after a kill, killed"
    has_peer = True

    def arrange(self, sandbox: DaemonSandbox) -> None:
        super().arrange(sandbox)
        self.perform(sandbox)
        sandbox.kill()
        (sandbox.imexd / ".nodes.cfg.01234567").write_text("compute-domain-")
        sandbox.launch()

    def check_alive(self, sandbox: DaemonSandbox) -> None:
        # The entry still says what it said before the kill, and the plugin believes the lock.
        daemon_checks.check_starting(sandbox, is_known=True)


class PeerJoins(DaemonOperation):
    """A third member is ready: it is named, and nvidia-imex gets a signal."""

    name = "a peer joins, killed"
    has_peer = False

    def perform(self, sandbox: DaemonSandbox) -> None:
        self._change(sandbox)
        before = sandbox.subject.imex_log().count("SIGUSR1: all")
        daemon_checks.wait_right(sandbox)
        sandbox.wait_until(
            lambda: sandbox.subject.imex_log().count("SIGUSR1: all") > before, "the signal"
        )

    def _change(self, sandbox: DaemonSandbox) -> None:
        sandbox.write_members(daemon_sandbox.other_member(1, _THIRD))


class PeerMoves(PeerJoins):
    """A third member has another address: it is named anew, and nvidia-imex gets a signal."""

    name = "a peer moves, killed"

    def arrange(self, sandbox: DaemonSandbox) -> None:
        super().arrange(sandbox)
        sandbox.write_members(daemon_sandbox.other_member(1, _THIRD))
        daemon_checks.wait_right(sandbox)

    def _change(self, sandbox: DaemonSandbox) -> None:
        sandbox.write_members(daemon_sandbox.other_member(1, _MOVED))


class PeerLeaves(PeerMoves):
    """A third member leaves: it is not named any more, and no connection ends."""

    name = "a peer leaves, killed"

    def perform(self, sandbox: DaemonSandbox) -> None:
        sandbox.write_members()
        daemon_checks.wait_right(sandbox)


class Stop(DaemonOperation):
    """The end of a daemon whose pod is deleted. A successor follows, as in a rollout."""

    name = "stop, killed"

    def perform(self, sandbox: DaemonSandbox) -> None:
        sandbox.terminate()

    def recover(self, sandbox: DaemonSandbox) -> None:
        _start(sandbox, is_successor=True)


class AnnouncedStop(Stop):
    """The same where the controller writes the clique."""

    name = "announced stop, killed"
    has_controller = True
    flags = ANNOUNCED


def _start(sandbox: DaemonSandbox, *, is_successor: bool = False) -> None:
    """Start the daemon, and wait until everything is as it must be."""
    sandbox.launch(is_successor=is_successor)
    sandbox.open_gate()
    daemon_checks.wait_right(sandbox)
