"""ResourceClaim and its allocation, as far as we read them (resource.k8s.io/v1).

v1beta2 and v1beta1 have the same shape below `status`, which is all that we read. Source:
spec/kubelet-dra-protocol.md §4.1.
"""

from datetime import datetime
from typing import Any, NamedTuple

from pydantic import Field

from nvdra_api.types.ids import ClaimUID
from nvdra_api.types.meta import ApiModel, ObjectMeta


class ClaimRef(NamedTuple):
    """How the kubelet names a claim in a call; the UID alone identifies it."""

    namespace: str
    name: str
    uid: ClaimUID

    def __str__(self) -> str:
        """`<namespace>/<name>:<uid>`, as in every log line."""
        return f"{self.namespace}/{self.name}:{self.uid}"


class DeviceResult(ApiModel):
    """One allocated device (`status.allocation.devices.results[]`)."""

    request: str
    """Request name; `main/sub` for a prioritised list."""
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = Field(default=None, alias="shareID")
    consumed_capacity: dict[str, str] | None = None

    @property
    def base_request(self) -> str:
        """The request without its alternative: what the kubelet matches containers by."""
        return self.request.partition("/")[0]


class OpaqueConfig(ApiModel):
    """Parameters that belong to one driver; any JSON object."""

    driver: str
    parameters: Any = None


class DeviceConfig(ApiModel):
    """One entry of `status.allocation.devices.config`; later entries win."""

    source: str = ""
    requests: tuple[str, ...] | None = None
    opaque: OpaqueConfig | None = None


class DeviceAllocation(ApiModel):
    """What the scheduler decided about devices."""

    results: tuple[DeviceResult, ...] = ()
    config: tuple[DeviceConfig, ...] | None = None


class Allocation(ApiModel):
    """`status.allocation`: immutable once set."""

    devices: DeviceAllocation = DeviceAllocation()
    allocation_timestamp: datetime | None = None


class Consumer(ApiModel):
    """One entry of `status.reservedFor`."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ClaimStatus(ApiModel):
    """`status` of a claim."""

    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] | None = None


class ResourceClaim(ApiModel):
    """A ResourceClaim as the API server returned it."""

    metadata: ObjectMeta
    status: ClaimStatus = ClaimStatus()

    @property
    def ref(self) -> ClaimRef:
        """Namespace, name and UID."""
        return ClaimRef(self.metadata.namespace, self.metadata.name, ClaimUID(self.metadata.uid))
