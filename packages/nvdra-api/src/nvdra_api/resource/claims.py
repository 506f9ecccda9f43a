# SPDX-License-Identifier: Apache-2.0
"""ResourceClaims and their allocation, with the type names of `k8s.io/api/resource/v1`.

The models read v1, v1beta2 and v1beta1. Fields that are not declared here are kept as they are.
Source: docs/reference/resource-claims.md, "Allocation result".
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from pydantic import Field, model_validator

from nvdra_api.ids import ClaimUID
from nvdra_api.meta import ApiModel, ObjectMeta
from nvdra_api.names import RESOURCE_GROUP
from nvdra_api.quantity import Quantity

MAX_ITEMS: Final = 1024
"""The longest list of a claim. The API server's longest one, `reservedFor`, has at most 256."""

T = TypeVar("T")
Items = Annotated[tuple[T, ...], Field(fail_fast=True, max_length=MAX_ITEMS)]
"""A list of a claim, of which the first wrong item is the only error. An answer may come from a
proxy, and pydantic's memory for `{}` is some hundred times, for an error a thousand times as long:
137,000 of them in 401 KiB took 326 MiB, several times what a plugin needs."""


class ClaimRef(NamedTuple):
    """A reference to a claim, as the kubelet sends it. The UID alone identifies the claim."""

    namespace: str
    name: str
    uid: ClaimUID

    def __str__(self) -> str:
        """Return `<namespace>/<name>:<uid>`, the form of log records."""
        return f"{self.namespace}/{self.name}:{self.uid}"


class CelDeviceSelector(ApiModel):
    """A CEL expression that a device must match."""

    expression: str = ""


class DeviceSelector(ApiModel):
    """A condition that a device must meet."""

    cel: CelDeviceSelector | None = None


class CapacityRequirements(ApiModel):
    """How much of a device's capacity a request asks for."""

    requests: dict[str, Quantity] | None = None


class DeviceSubRequest(ApiModel):
    """One alternative of a request (`firstAvailable[]`)."""

    name: str
    device_class_name: str = ""
    selectors: Items[DeviceSelector] = ()
    allocation_mode: str = ""
    """`ExactCount` or `All`."""
    count: int | None = None
    capacity: CapacityRequirements | None = None


class ExactDeviceRequest(ApiModel):
    """A request without alternatives (`exactly`)."""

    device_class_name: str = ""
    selectors: Items[DeviceSelector] = ()
    allocation_mode: str = ""
    """`ExactCount` or `All`."""
    count: int | None = None
    admin_access: bool | None = None
    capacity: CapacityRequirements | None = None


class DeviceRequest(ApiModel):
    """One request of a claim. Exactly one of `exactly` and `first_available` is set."""

    name: str
    exactly: ExactDeviceRequest | None = None
    first_available: Items[DeviceSubRequest] = ()

    @property
    def by_reference(self) -> Mapping[str, ExactDeviceRequest | DeviceSubRequest]:
        """What is asked for, by the names in allocation results: `a` itself, or each `a/b`."""
        asked: dict[str, ExactDeviceRequest | DeviceSubRequest] = {
            f"{self.name}/{each.name}": each for each in self.first_available
        }
        return asked if self.exactly is None else {self.name: self.exactly, **asked}

    @model_validator(mode="before")
    @classmethod
    def _from_v1beta1(cls, data: Any) -> Any:
        """Move the fields that v1beta1 has in the request itself to `exactly`."""
        if isinstance(data, dict) and "deviceClassName" in data:
            exactly = {name: value for name, value in data.items() if name != "name"}
            return {"name": data.get("name"), "exactly": exactly}
        return data


class DeviceConstraint(ApiModel):
    """A condition that the devices of several requests must meet together."""

    requests: Items[str] | None = None
    """The requests that the constraint applies to. None or empty means all requests."""
    match_attribute: str | None = None
    """The attribute that must have the same value for all devices."""


class OpaqueDeviceConfiguration(ApiModel):
    """Parameters for one driver: any JSON object."""

    driver: str
    parameters: Any = None


class DeviceClaimConfiguration(ApiModel):
    """One entry of `spec.devices.config`."""

    requests: Items[str] | None = None
    """The requests that the entry applies to. None or empty means all requests."""
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaim(ApiModel):
    """The devices that a claim asks for (`spec.devices`)."""

    requests: Items[DeviceRequest] | None = None
    constraints: Items[DeviceConstraint] | None = None
    config: Items[DeviceClaimConfiguration] | None = None


class ResourceClaimSpec(ApiModel):
    """`spec` of a claim."""

    devices: DeviceClaim = DeviceClaim()


class DeviceRequestAllocationResult(ApiModel):
    """One allocated device (`status.allocation.devices.results[]`)."""

    request: str
    """Name of the request, or `<request>/<subrequest>` for a request with alternatives."""
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = Field(default=None, alias="shareID")
    consumed_capacity: dict[str, Quantity] | None = None

    @property
    def base_request(self) -> str:
        """The name of the request without the subrequest, which the kubelet does not know."""
        return self.request.partition("/")[0]


class DeviceAllocationConfiguration(ApiModel):
    """One entry of `status.allocation.devices.config`. Later entries override earlier ones."""

    source: str = ""
    """`FromClass` or `FromClaim`."""
    requests: Items[str] | None = None
    """The requests that the entry applies to. None or empty means all requests."""
    opaque: OpaqueDeviceConfiguration | None = None


class DeviceAllocationResult(ApiModel):
    """The allocated devices of a claim and their configuration."""

    results: Items[DeviceRequestAllocationResult] = ()
    config: Items[DeviceAllocationConfiguration] | None = None


class AllocationResult(ApiModel):
    """`status.allocation`. It does not change until the claim is deallocated."""

    devices: DeviceAllocationResult = DeviceAllocationResult()
    allocation_timestamp: datetime | None = None


class ResourceClaimConsumerReference(ApiModel):
    """One entry of `status.reservedFor`."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(ApiModel):
    """`status` of a claim."""

    allocation: AllocationResult | None = None
    reserved_for: Items[ResourceClaimConsumerReference] | None = None


class ResourceClaim(ApiModel):
    """A ResourceClaim as the API server returns it."""

    api_version: str = f"{RESOURCE_GROUP}/v1"
    kind: str = "ResourceClaim"
    metadata: ObjectMeta
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    @property
    def ref(self) -> ClaimRef:
        """Namespace, name and UID of the claim."""
        return ClaimRef(self.metadata.namespace, self.metadata.name, ClaimUID(self.metadata.uid))

    @property
    def is_made_for_pod(self) -> bool:
        """Whether Kubernetes has made it for one pod, with which it goes."""
        return any(owner.kind == "Pod" for owner in self.metadata.owner_references)

    def requested_capacity(self, request: str) -> Mapping[str, Quantity]:
        """The capacity that a request asks for; empty if it asks for none.

        Args:
            request: Its name, or `<request>/<subrequest>`, as in an allocation result.
        """
        for each in self.spec.devices.requests or ():
            wanted = each.by_reference.get(request)
            if wanted is not None and wanted.capacity is not None:
                return wanted.capacity.requests or {}
        return {}


class ResourceClaimTemplateSpec(ApiModel):
    """`spec` of a template: the claims that are created from it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(ApiModel):
    """A ResourceClaimTemplate as the API server returns it."""

    api_version: str = f"{RESOURCE_GROUP}/v1"
    kind: str = "ResourceClaimTemplate"
    metadata: ObjectMeta
    spec: ResourceClaimTemplateSpec
