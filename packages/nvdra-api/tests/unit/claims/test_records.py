"""Records of prepared claims: the answer to the kubelet, and the error for a device in use."""

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import ClaimUID, DeviceName, PodUID, PoolName
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims.prepare_result import PreparedDevice, PrepareResult
from nvdra_runtime.claims.records import DeviceInUseError, DeviceRecord, PreparedClaimRecord


class PortRecord(DeviceRecord):
    """A device of another driver."""

    kind: str = "port"
    line: int

    @property
    def cdi_ids(self) -> tuple[str, ...]:
        return (f"example.com/port={self.line}",)


class PortClaimRecord(PreparedClaimRecord):
    devices: tuple[PortRecord, ...]


def record(number: int, *lines: int, pods: tuple[str, ...] = ("train-0",)) -> PortClaimRecord:
    return PortClaimRecord(
        namespace="ml",
        name=f"claim-{number}",
        uid=ClaimUID(f"uid-{number}"),
        pods=tuple(PodUID(f"pod-uid-{name}") for name in pods),
        pod_names=pods,
        devices=tuple(
            PortRecord(
                request="port",
                pool=PoolName("node-a"),
                device=DeviceName(f"port-{line}"),
                line=line,
            )
            for line in lines
        ),
    )


@given(st.lists(st.integers(0, 9), max_size=5))
def test_the_result_has_each_device_in_the_order_of_the_record(lines: list[int]) -> None:
    assert record(1, *lines).prepare_result() == PrepareResult(
        tuple(
            PreparedDevice(
                ("port",),
                PoolName("node-a"),
                DeviceName(f"port-{line}"),
                (f"example.com/port={line}",),
            )
            for line in lines
        )
    )


def test_the_error_for_a_device_in_use_names_the_holder_and_at_most_three_pods() -> None:
    holder = record(1, 4, pods=("a", "b", "c", "d"))
    wanted = ClaimRef("web", "mine", ClaimUID("uid-2"))
    error = DeviceInUseError(wanted, "port-4", holder, ("line-4",))
    assert error.message == (
        "port-4 is held by claim ml/claim-1 (UID uid-1) for pod a, b, c and 1 more"
    )
    assert error.facts["holder"] == str(holder.ref)
    recovered = holder.model_copy(update={"pod_names": ()})
    assert (
        "for pod with UID pod-uid-a," in DeviceInUseError(wanted, "port-4", recovered, ()).message
    )
    unknown = recovered.model_copy(update={"pods": ()})
    assert "for a pod that is not known" in DeviceInUseError(wanted, "p", unknown, ()).message
