# SPDX-License-Identifier: Apache-2.0
"""Leaving shuts every export down, and abandons one that hangs."""

import threading

from nvdra_runtime.telemetry.export import bounded_shutdown


class Export:
    """An export that ends at once, or hangs until it is abandoned."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.calls: list[str] = []
        self._may_end = threading.Event()
        if not hangs:
            self._may_end.set()

    def shutdown(self) -> None:
        self.calls.append("shutdown")
        self._may_end.wait()

    def abandon(self) -> None:
        self.calls.append("abandon")
        self._may_end.set()


async def test_exports_are_shut_down_when_the_block_ends() -> None:
    exports = [Export(), Export()]
    async with bounded_shutdown.shut_down_on_exit(exports):
        assert [export.calls for export in exports] == [[], []]
    assert [export.calls for export in exports] == [["shutdown"], ["shutdown"]]


async def test_an_export_that_hangs_is_abandoned() -> None:
    hanging, quick = Export(hangs=True), Export()
    async with bounded_shutdown.shut_down_on_exit([hanging, quick], timeout_s=0.05):
        pass
    assert hanging.calls == ["shutdown", "abandon"]
    assert quick.calls == ["shutdown"]
