"""The parts of a soak: what each runs, and the paths that decide whether its result still holds."""

from collections.abc import Sequence
from dataclasses import dataclass

RELEASES = ("1.32", "1.33", "1.34", "1.35", "1.37")
"""Those beside the one of `make test`."""
ON_A_RACK = "random_domains or killed_daemons or powerless or rebooted or uneven or name_lookups"
"""Tests that are repeated on a rack of 18 nodes."""

HARNESS = ("testing", "conftest.py", "pyproject.toml", "requirements.lock")
COMPONENTS = ("packages", "charts", "e2e/sim", *HARNESS)
CLUSTER = (*COMPONENTS, "images", "e2e/cluster", "e2e/tests/conftest.py", "docker-bake.hcl")


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        name: As in `make soak-<name>`.
        about: What it runs, in a few words.
        command: The command, run in the root of the repository.
        paths: What it tests, and with what: files and folders.
        minutes: About how long it takes on two cores.
    """

    name: str
    about: str
    command: tuple[str, ...]
    paths: tuple[str, ...]
    minutes: int


def _e2e(*variables: str) -> tuple[str, ...]:
    return ("make", "e2e", *variables)


def _release(release: str) -> Sequence[Part]:
    groups = ("gpus", "sharing", "kubelet", "domains", "installation")
    return (
        Part(
            f"release-{release}",
            f"end to end on Kubernetes {release}",
            _e2e(f"GROUPS={' '.join(groups)}", f"KUBE={release}"),
            (*CLUSTER, *(f"e2e/tests/{group}" for group in groups)),
            45,
        ),
        Part(
            f"rollouts-{release}",
            f"rollouts on Kubernetes {release}",
            _e2e("GROUPS=members", "T=test_rollouts", "SOAK=--soak", f"KUBE={release}"),
            (*CLUSTER, "e2e/tests/members"),
            15,
        ),
    )


def _rack(group: str) -> Part:
    return Part(
        f"rack-{group}",
        f"tests of {group} on a rack of 18 nodes",
        _e2e(f"GROUPS={group}", f"T={ON_A_RACK}", "NODES=18", "SOAK=--soak"),
        (*CLUSTER, f"e2e/tests/{group}"),
        60,
    )


PARTS: tuple[Part, ...] = (
    Part("check", "format, lint, types, layers, unit tests", ("make", "check"), (".",), 3),
    Part(
        "component",
        "whole crash campaigns, 2,000 sequences of events, every profile",
        ("make", "component", "SOAK=--soak --sequences=2000"),
        (*COMPONENTS, "e2e/cluster", "e2e/demo", "tests/component"),
        150,
    ),
    Part(
        "mutants",
        "faults that a test must notice",
        ("python", "-m", "tests.mutants", "--json", "out/mutants.json"),
        (*COMPONENTS, "tests/mutants"),
        60,
    ),
    Part(
        "e2e",
        "end to end with what takes long: a week of a node, rollouts, cert-manager",
        _e2e("SOAK=--soak"),
        (*CLUSTER, "e2e"),
        150,
    ),
    _rack("members"),
    _rack("domains"),
    *(part for release in RELEASES for part in _release(release)),
)


def find(names: Sequence[str]) -> list[Part]:
    """The parts of these names, in the order of the table. A name may be the start of several.

    Raises:
        LookupError: There is no such part.
    """
    for name in names:
        if not any(_has_name(part, name) for part in PARTS):
            raise LookupError(f"no part {name}; there are {', '.join(p.name for p in PARTS)}")
    return [part for part in PARTS if any(_has_name(part, name) for name in names)]


def for_release(release: str) -> list[Part]:
    """The parts that a release of Kubernetes has, also one that is not in the table."""
    return list(_release(release))


def _has_name(part: Part, name: str) -> bool:
    return part.name == name or part.name.startswith(f"{name}-")
