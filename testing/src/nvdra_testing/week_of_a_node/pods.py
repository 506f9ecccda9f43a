# SPDX-License-Identifier: Apache-2.0
"""The pods of a week: a seeded mix of claims, and what each pod proves from its inside.

A pod locks a file of its node for each GPU that it sees, for as long as it runs, and writes what it
sees into the node's journal. The kernel releases the locks with the last process, however it ends:
two pods that have one GPU cannot both get the lock.
"""

import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from nvdra_testing import extreme_json
from nvdra_testing.cluster import workloads
from nvdra_testing.cluster.workloads import Manifest

FOLDER = "/var/lib/nvdra-week"
"""The directory of locks and journal on each node; it survives a reboot, as disks do."""

FLOCK = "/usr/bin/flock"

GRACE_S = 3
"""The grace period of a pod that does not end by itself when it is told to."""

Lock = Literal["-x", "-s", ""]

SCRIPT = """\
say() { read up rest < /proc/uptime; echo "$up $POD $*" >> /week/journal; }
if [ "$STUBBORN" ]; then trap '' TERM; else trap 'say stop; exit 0' TERM; fi
fd=3
minors=
for node in /dev/nvidia[0-9]*; do
  minor=${node#/dev/nvidia}
  minors="$minors $minor"
  if [ "$LOCK" ]; then
    eval "exec $fd>>/week/$minor.lock"
    /flock --nonblock --conflict-exit-code 9 $LOCK $fd
    case $? in
      0) echo $POD > /week/$minor.holder ;;
      9) say doubled $minor $(cat /week/$minor.holder) ;;
      *) say unlocked $minor ;;
    esac
    fd=$((fd + 1))
  fi
done
say starts $minors
while :; do
  if timeout 5 nvidia-smi -L > /tmp/gpus 2>&1; then
    say sees $(sed -n 's/.*UUID: \\(GPU-[0-9a-f-]*\\).*/\\1/p' /tmp/gpus)
    break
  fi
  sleep 2 & wait $!
done
while :; do sleep 3600 & wait $!; done
"""


@dataclass(frozen=True)
class Kind:
    """A kind of pod.

    Attributes:
        name: For the report.
        share: Of all pods, in percent.
        gpus: The GPUs of each claim that nobody else may have meanwhile.
        claims: The number of its claims.
        users: The number of pods of one claim.
        is_admin: Whether it only monitors GPUs, whoever has them.
        profile: That of the MIG device which it has of its GPU; empty if it has all of it.
        interval: The time slice that is set on its GPU; empty for none.
        hostile: What is extreme about its configuration, as in `extreme_json.PARAMETERS`: it never
            starts.
    """

    name: str
    share: int
    gpus: int
    claims: int = 1
    users: int = 1
    is_admin: bool = False
    profile: str = ""
    interval: str = ""
    hostile: str = ""


KINDS = (
    Kind("one GPU", 26, 1),
    Kind("two GPUs", 6, 2),
    Kind("four GPUs", 3, 4),
    Kind("two claims", 5, 1, claims=2),
    Kind("shared claim", 20, 1, users=3),
    Kind("admin access", 15, 0, is_admin=True),
    Kind("time slice", 10, 1, interval="Long"),
    Kind("MIG device", 9, 1, profile="1g.10gb"),
    *(
        Kind(f"hostile {what}", 2, 1, hostile=what)
        for what in ("exponent", "surrogate", "brackets")
    ),
)
FORCED_SHARE = 0.04
"""Pods that are deleted with --force while a process of theirs does not end when it is told to."""

HASTY_SHARE = 0.05
"""Pods that are deleted soon after they were created, whether they run or not."""


LIFE_S = (1.0, 5.0)
LONG_SHARE = 0.05
LONG_LIFE_S = (30.0, 60.0)
"""Some pods live long enough to see more than one incident."""


@dataclass(frozen=True)
class PlannedPod:
    """One pod of the week.

    Attributes:
        name: Its name.
        kind: Its kind.
        shared_claim: The claim that it shares with others; otherwise it has its own.
        life_s: How long it runs before it is deleted.
        is_forced: Whether it is deleted with --force, and does not end by itself.
        is_hasty: Whether `life_s` counts from its creation.
    """

    name: str
    kind: Kind
    shared_claim: str
    life_s: float
    is_forced: bool
    is_hasty: bool

    @property
    def gpus(self) -> int:
        """The GPUs that it needs for itself, or with those that share its claim."""
        return self.kind.gpus * self.kind.claims


def plan(draw: random.Random) -> Iterator[PlannedPod]:
    """Endless pods; those of one shared claim follow one another."""
    number = 0
    while True:
        kind = draw.choices(KINDS, [kind.share / kind.users for kind in KINDS])[0]
        claim = f"shared-{number}" if kind.users > 1 else ""
        for _ in range(kind.users):
            fate = draw.random()
            life_s = LONG_LIFE_S if draw.random() < LONG_SHARE else LIFE_S
            yield PlannedPod(
                name=f"p{number:04}",
                kind=kind,
                shared_claim=claim,
                life_s=draw.uniform(*life_s),
                is_forced=fate < FORCED_SHARE,
                is_hasty=fate > 1 - HASTY_SHARE or bool(kind.hostile),
            )
            number += 1


def templates() -> list[Manifest]:
    """The claim templates of all kinds."""
    return [
        workloads.template(_slug(kind), _request(kind), config=_config(kind))
        for kind in KINDS
        if kind.users == 1
    ]


def _request(kind: Kind) -> Manifest:
    if kind.profile:
        return workloads.mig_devices("mig", f"{workloads.attribute('profile')} == '{kind.profile}'")
    return workloads.gpus(count=kind.gpus or 1, admin=kind.is_admin)


def _config(kind: Kind) -> Manifest | None:
    if kind.hostile:
        parameters, _ = extreme_json.PARAMETERS[kind.hostile]
        found: Manifest = json.loads(parameters)
        return found
    if kind.interval:
        slicing = {"timeSlicingConfig": {"interval": kind.interval}}
        return {"kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing", **slicing}}
    return None


@contextmanager
def deep_json() -> Iterator[None]:
    """Let this process read and write the claims that are nested 4,000 levels deep."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def claim(planned: PlannedPod) -> Manifest:
    """The claim that pods share."""
    return workloads.claim(planned.shared_claim, workloads.gpus(count=planned.kind.gpus))


def rivals() -> tuple[PlannedPod, PlannedPod]:
    """Two pods of one claim; if both want it for themselves, one must notice the other."""
    kind = Kind("rival", 0, gpus=1, users=2)
    one, other = (
        PlannedPod(f"rival-{number}", kind, "rivals", 0, is_forced=False, is_hasty=False)
        for number in range(2)
    )
    return one, other


def manifest(planned: PlannedPod, lock: Lock | None = None) -> Manifest:
    """The pod as it is created, with the lock of its kind or with another one."""
    kind = planned.kind
    if lock is None:
        # Pods with MIG devices of one GPU share its device node.
        is_one_of_several = planned.shared_claim or kind.profile
        lock = "" if kind.is_admin else "-s" if is_one_of_several else "-x"
    names = [f"claim-{number}" for number in range(kind.claims)]
    source = (
        {"resourceClaimName": planned.shared_claim}
        if planned.shared_claim
        else {"resourceClaimTemplateName": _slug(kind)}
    )
    variables = {"POD": planned.name, "LOCK": lock, "STUBBORN": "yes" if planned.is_forced else ""}
    # The image has no flock. The node's runs in it, because both have this machine's C library.
    paths = {"week": (FOLDER, "/week", "DirectoryOrCreate"), "flock": (FLOCK, "/flock", "File")}
    container = {
        "name": "main",
        "image": workloads.IMAGE,
        "command": ["sh", "-c", SCRIPT],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"claims": [{"name": name} for name in names]},
        "volumeMounts": [
            {"name": name, "mountPath": inside} for name, (_, inside, _) in paths.items()
        ],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": planned.name},
        "spec": {
            "terminationGracePeriodSeconds": GRACE_S if planned.is_forced else 1,
            "containers": [container],
            "resourceClaims": [{"name": name, **source} for name in names],
            "volumes": [
                {"name": name, "hostPath": {"path": path, "type": check}}
                for name, (path, _, check) in paths.items()
            ],
        },
    }


def _slug(kind: Kind) -> str:
    return kind.name.lower().replace(" ", "-")
