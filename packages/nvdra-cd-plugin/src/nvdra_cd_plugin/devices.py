"""The node's devices as people are told of them: `status`, `/readyz`.

Read from memory alone.
"""

from collections.abc import Mapping
from typing import Any

from nvdra_api.runtime.http.probes import Remark
from nvdra_api.types.ids import ClaimUID

from nvdra_cd_plugin import layout
from nvdra_cd_plugin.fabric_watch import FabricWatch
from nvdra_cd_plugin.records import DomainHolding


def rows(
    fabric: FabricWatch, held: Mapping[ClaimUID, DomainHolding], *, is_host_managed: bool
) -> list[dict[str, Any]]:
    """Each device that the node offers or that is held: its state, its domain, who holds it."""
    kinds = (layout.CHANNEL,) if is_host_managed else (layout.CHANNEL, layout.DAEMON)
    offered = [f"{kind}-0" for kind in kinds]
    names = dict.fromkeys([*offered, *(each.device.device for each in held.values())])
    return [_row(name, fabric, held) for name in names]


def fabric(watch: FabricWatch) -> str | None:
    """What keeps the node from being a member of domains; a remark where something is unusual."""
    view = watch.view
    if view.clique is None:
        return str(view.problem or "NVML has not been asked yet")
    if view.problem is not None:
        return Remark(f"clique {view.clique or 'none'}, and now: {view.problem}")
    if not view.clique:
        return Remark("no NVLink fabric of several nodes: workloads start without channels")
    return Remark(f"clique {view.clique}")


def _row(name: str, watch: FabricWatch, held: Mapping[ClaimUID, DomainHolding]) -> dict[str, Any]:
    holders = [each for each in held.values() if each.device.device == name]
    is_joining = any(each.is_joining for each in holders)
    state = "waits for its daemon" if is_joining else "held" if holders else "free"
    problem = "" if watch.view.clique is not None else "not offered: the fabric is not known"
    return {
        "name": name,
        "state": state if not problem or holders else "not offered",
        "domain": ", ".join(_domain(each) for each in holders),
        "clique": watch.view.clique or "",
        "claims": [str(each.ref) for each in holders],
        **({"problem": problem} if problem else {}),
    }


def _domain(holding: DomainHolding) -> str:
    named = "/".join(filter(None, (holding.domain_namespace, holding.domain_name)))
    return named or holding.domain or "not known any more"
