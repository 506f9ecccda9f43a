# SPDX-License-Identifier: Apache-2.0
"""The node's devices for the command `status`, and the fabric's check for `/readyz`.

Both use only what is in memory.
"""

from collections.abc import Mapping
from typing import Any

from nvdra_api.errors import DriverError, Reason
from nvdra_api.ids import ClaimUID
from nvdra_runtime.http.probes import PassingRemark

from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_cd_plugin.fabric.monitor import FabricMonitor
from nvdra_cd_plugin.node.device_names import CHANNEL, DAEMON


def rows(
    fabric: FabricMonitor,
    prepared_claims: Mapping[ClaimUID, DomainClaimRecord],
    *,
    is_host_managed: bool,
) -> list[dict[str, Any]]:
    """One row for each device that is published or that a claim has."""
    kinds = (CHANNEL,) if is_host_managed else (CHANNEL, DAEMON)
    published = [f"{kind}-0" for kind in kinds]
    names = dict.fromkeys(
        [*published, *(record.device.device for record in prepared_claims.values())]
    )
    return [_row(name, fabric, prepared_claims) for name in names]


def fabric_check(fabric: FabricMonitor) -> str | None:
    """Why the node cannot be a member of domains; a passing remark where it can.

    A clique that the former process knew is no sign that this one has found the driver.
    """
    status = fabric.status
    if status.clique is None:
        return str(status.problem or "NVML has not been queried yet")
    if not fabric.has_answer and _has_no_driver(status.problem):
        return str(status.problem)
    if status.problem is not None:
        return PassingRemark(f"clique {status.clique or 'none'}, and now: {status.problem}")
    if not status.clique:
        return PassingRemark("no NVLink fabric that spans nodes: workloads start without channels")
    return PassingRemark(f"clique {status.clique}")


def _has_no_driver(problem: DriverError | None) -> bool:
    """Whether the last query failed because the driver is not there or does not work."""
    return problem is not None and problem.reason is Reason.DRIVER_MISMATCH


def _row(
    name: str, fabric: FabricMonitor, prepared_claims: Mapping[ClaimUID, DomainClaimRecord]
) -> dict[str, Any]:
    records = [record for record in prepared_claims.values() if record.device.device == name]
    is_joining = any(record.is_joining for record in records)
    state = "waits for its daemon" if is_joining else "held" if records else "free"
    problem = "" if fabric.status.clique is not None else "not offered: the fabric is not known"
    return {
        "name": name,
        "state": state if not problem or records else "not offered",
        "domain": ", ".join(_domain_name(record) for record in records),
        "clique": fabric.status.clique or "",
        "claims": [str(record.ref) for record in records],
        **({"problem": problem} if problem else {}),
    }


def _domain_name(record: DomainClaimRecord) -> str:
    name = "/".join(filter(None, (record.domain_namespace, record.domain_name)))
    return name or record.domain or "not known any more"
