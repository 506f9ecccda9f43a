# SPDX-License-Identifier: Apache-2.0
"""Records of prepared claims: the answer to the kubelet, and the error for a device in use."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from nvdra_api.ids import ClaimUID, DeviceName, PoolName, TraceID
from nvdra_api.resource.claims import ClaimRef
from nvdra_runtime.claims import records
from nvdra_runtime.claims.prepare_result import PreparedDevice, PrepareResult
from nvdra_runtime.claims.records import DeviceInUseError
from nvdra_testing.port_records import record


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
    wanted = ClaimRef("ml", "mine", ClaimUID("uid-2"))
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


def test_the_holder_of_another_namespace_is_named_to_operators_only() -> None:
    holder = record(1, 4)
    error = DeviceInUseError(ClaimRef("web", "mine", ClaimUID("uid-2")), "port-4", holder, ())
    error.since = datetime(2026, 1, 2, tzinfo=UTC)
    assert error.message == "port-4 is held by a claim of another namespace"
    assert ", since 2026-01-02T00:00:00Z; this claim gets it as soon as" in error.event_text
    for told in (str(error), error.event_text, error.kubelet_text(TraceID("0a" * 16))):
        assert not any(name in told for name in ("ml", "claim-1", "uid-1", "train-0")), told
    assert "held by claim ml/claim-1 (UID uid-1) for pod train-0, since 2" in error.operator_text
    assert error.message_for("ml") == error.operator_message
    assert error.message_for("somewhere else") == error.message


def test_what_an_ended_claim_has_left_is_undone_as_its_end_has_said() -> None:
    holder = record(1, 4).model_copy(update={"is_released": True})
    mine = ClaimRef("ml", "mine", ClaimUID("uid-2"))
    assert DeviceInUseError(mine, "port-4", holder, ()).remedy.endswith(
        "see the Events of the Node"
    )
    holder = holder.model_copy(update={"undo_remedy": "stop the monitor"})
    assert DeviceInUseError(mine, "port-4", holder, ()).remedy == "stop the monitor"
    other = DeviceInUseError(ClaimRef("web", "b", ClaimUID("uid-3")), "port-4", holder, ())
    assert other.remedy.startswith("stop the monitor; the plugin's log")


def test_of_several_claims_one_of_the_readers_own_namespace_is_named() -> None:
    claims = [ClaimRef(name, "c", ClaimUID(f"uid-{name}")) for name in ("ml", "web")]
    assert records.name_one(claims, "web") == ("claim web/c:uid-web", "claim web/c:uid-web")
    assert records.name_one(claims, "jobs") == ("another claim", "claim ml/c:uid-ml")
