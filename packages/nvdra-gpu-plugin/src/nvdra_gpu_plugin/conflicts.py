"""Do two uses of one board exclude each other?"""

from nvdra_api.types.ids import ClaimUID

from nvdra_gpu_plugin.records import HeldDevice, Holding, Holdings


def between(a: HeldDevice, b: HeldDevice) -> bool:
    """Whether both cannot be held at once: the same board, neither of them for monitoring only.

    A board keeps its UUID when a new neighbour renumbers the bus at the next boot.
    """
    return (a.pci == b.pci or a.uuid == b.uuid) and not (a.is_admin or b.is_admin)


def holder(wanted: HeldDevice, uid: ClaimUID, holdings: Holdings) -> Holding | None:
    """The claim other than `uid` that stands in the way of `wanted`."""
    for holding in holdings.values():
        if holding.uid != uid and any(between(wanted, held) for held in holding.devices):
            return holding
    return None
