"""Mutants of nvdra-api: the API server's client, state, claims, slices."""

from typing import Final

from tests.mutants.mutant import Mutant

_RUNTIME: Final = "packages/nvdra-api/src/nvdra_runtime"
_UNIT: Final = "packages/nvdra-api/tests/unit"

_KUBE: Final = (
    Mutant(
        "lease: a conflict counts as won",
        f"{_RUNTIME}/kube/leader_election.py",
        "            return False  # another process was faster",
        "            return True",
        "Two controllers lead and undo each other's writes.",
        (f"{_UNIT}/kube/test_leader_election.py",),
    ),
    Mutant(
        "watch: HTTP 410 watches on",
        f"{_RUNTIME}/kube/informer.py",
        "        except Gone:\n            return WatchResult.RELIST",
        "        except Gone:\n            return WatchResult.UNCHANGED",
        "A watch is refused for ever, and nothing is noticed any more.",
        (f"{_UNIT}/kube/test_informer.py",),
    ),
    Mutant(
        "slices: a slice is deleted without its UID and version",
        f"{_RUNTIME}/resourceslices/publisher.py",
        '                    uid=metadata["uid"],\n'
        '                    resource_version=metadata["resourceVersion"],\n',
        "",
        "A slice that another instance has just written is deleted.",
        (f"{_UNIT}/resourceslices/test_publisher.py",),
    ),
    Mutant(
        "slices: no pause between repairs",
        f"{_RUNTIME}/resourceslices/publisher.py",
        "        await timeouts.wait_for_event(self._pool_changed, delay)\n",
        "        await timeouts.wait_for_event(self._pool_changed, 0.0)\n",
        "Two writers that disagree overwrite each other at full speed.",
        (f"{_UNIT}/resourceslices/test_publisher.py",),
    ),
)

MUTANTS: Final = (*_KUBE,)
