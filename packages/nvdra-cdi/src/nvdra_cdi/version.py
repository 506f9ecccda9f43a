# SPDX-License-Identifier: Apache-2.0
"""Versions of the CDI specification, and the lowest one that a document needs.

The first row of the table whose condition applies gives the version. Newer versions come first.

Source: docs/reference/cdi.md §2.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from nvdra_cdi.errors import VersionError
from nvdra_cdi.model import ContainerEdits, Spec

KNOWN_VERSIONS = (
    "0.1.0",
    "0.2.0",
    "0.3.0",
    "0.4.0",
    "0.5.0",
    "0.6.0",
    "0.7.0",
    "0.8.0",
    "1.0.0",
    "1.1.0",
)
CURRENT = KNOWN_VERSIONS[-1]

EARLIEST = "0.3.0"
"""The lowest version that a document may have."""

_LAST_WITH_CMT = "1.0.0"
_DIGITS = frozenset("0123456789")  # str.isdigit accepts digits of other scripts, too


def minimum_required(spec: Spec) -> str:
    """The lowest version that has all features of the document. `spec.version` is ignored."""
    return next((version for version, applies in _TABLE if applies(spec)), EARLIEST)


def with_minimum(spec: Spec) -> Spec:
    """The document in its lowest version, so that as many runtimes as possible can read it."""
    return replace(spec, version=minimum_required(spec))


def problem(spec: Spec) -> str | None:
    """The problem with the document's version, or None.

    A version may be higher than needed, except that 1.0.0 is the last with `enableCMT` and
    `enableMBM`.
    """
    version = spec.version.removeprefix("v")
    if version not in KNOWN_VERSIONS:
        return f'invalid version "{spec.version}"'
    minimum = minimum_required(spec)
    if _rank(version) < _rank(minimum):
        return f"the spec version must be at least v{minimum}, it is {spec.version}"
    if _rank(version) > _rank(_LAST_WITH_CMT) and any(map(_uses_cmt, _all_edits(spec))):
        return (
            f"intelRdt.enableCMT and enableMBM need at most v{_LAST_WITH_CMT}, not {spec.version}"
        )
    return None


def validate_version(spec: Spec) -> None:
    """Check `spec.version`.

    Raises:
        VersionError: The version is unknown, or lower than the document needs.
    """
    if found := problem(spec):
        raise VersionError(found)


def _rank(version: str) -> int:
    return KNOWN_VERSIONS.index(version)


def _all_edits(spec: Spec) -> Iterator[ContainerEdits]:
    yield spec.container_edits
    for device in spec.devices:
        yield device.container_edits


def _in_edits(test: Callable[[ContainerEdits], bool]) -> Callable[[Spec], bool]:
    return lambda spec: any(map(test, _all_edits(spec)))


def _uses_1_1(edits: ContainerEdits) -> bool:
    rdt = edits.intel_rdt
    return bool(edits.net_devices) or (
        rdt is not None and (rdt.schemata is not None or rdt.enable_monitoring)
    )


def _uses_0_7(edits: ContainerEdits) -> bool:
    return edits.intel_rdt is not None or bool(edits.additional_gids)


def _uses_0_6(spec: Spec) -> bool:
    _, _, class_ = spec.kind.partition("/")
    annotated = bool(spec.annotations) or any(device.annotations for device in spec.devices)
    return annotated or "." in class_


def _uses_0_5(spec: Spec) -> bool:
    return any(device.name[:1] in _DIGITS for device in spec.devices) or any(
        node.host_path for edits in _all_edits(spec) for node in edits.device_nodes
    )


def _uses_0_4(edits: ContainerEdits) -> bool:
    return any(mount.type for mount in edits.mounts)


def _uses_cmt(edits: ContainerEdits) -> bool:
    return edits.intel_rdt is not None and (
        edits.intel_rdt.enable_cmt or edits.intel_rdt.enable_mbm
    )


_TABLE: tuple[tuple[str, Callable[[Spec], bool]], ...] = (
    ("1.1.0", _in_edits(_uses_1_1)),
    ("0.7.0", _in_edits(_uses_0_7)),
    ("0.6.0", _uses_0_6),
    ("0.5.0", _uses_0_5),
    ("0.4.0", _in_edits(_uses_0_4)),
)
