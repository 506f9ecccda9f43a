# SPDX-License-Identifier: Apache-2.0
"""The record that a claim will have, or why the claim is refused."""

from typing import Any

import pytest
from nvdra_api import names
from nvdra_api.errors import DriverError, PermanentError, Reason
from nvdra_api.gates import FeatureGates
from nvdra_api.ids import ClaimUID, DomainUID, NodeName
from nvdra_api.resource.claims import ClaimRef, ResourceClaim
from nvdra_cd_plugin.claims import plan
from nvdra_cd_plugin.claims.plan import NodeInOtherDomainError
from nvdra_cd_plugin.domains.claim_records import DomainClaimRecord
from nvdra_runtime.claims import opaque_configs
from nvdra_runtime.claims.records import DeviceInUseError

NODE = NodeName("node-a")
UID = "11111111-2222-3333-4444-555555555555"
OTHER = "99999999-2222-3333-4444-555555555555"


def claim(
    *devices: str, kind: str = "Channel", uid: str = "claim-1", pool: str = NODE, **parameters: Any
) -> ResourceClaim:
    driver = names.COMPUTE_DOMAIN_DRIVER
    results = [
        {"request": "r", "driver": driver, "pool": pool, "device": each}
        for each in devices or ("channel-0",)
    ]
    opaque = {
        "driver": driver,
        "parameters": {
            "apiVersion": names.NVIDIA_API_VERSION,
            "kind": f"ComputeDomain{kind}Config",
            **{"domainID": UID, **parameters},
        },
    }
    config = [{"source": "FromClaim", "requests": ["r"], "opaque": opaque}]
    return ResourceClaim.model_validate(
        {
            "metadata": {"name": "c", "namespace": "team-a", "uid": uid},
            "status": {
                "allocation": {"devices": {"results": results, "config": config}},
                "reservedFor": [{"resource": "pods", "name": "worker", "uid": "pod-1"}],
            },
        }
    )


def planned(made: ResourceClaim, *, is_host_managed: bool = False) -> DomainClaimRecord:
    resolved = opaque_configs.resolve(
        made, names.COMPUTE_DOMAIN_DRIVER, plan.config_type, FeatureGates()
    )
    return plan.make(made, resolved, NODE, is_host_managed=is_host_managed)


def refused(made: ResourceClaim, **how: Any) -> DriverError:
    with pytest.raises(PermanentError) as error:
        planned(made, **how)
    return error.value


def test_the_record_of_a_channel_has_its_domain() -> None:
    record = planned(claim(allocationMode="All"))
    assert (record.kind, record.device.device, record.mode) == ("channel", "channel-0", "All")
    assert record.domain == UID
    assert record.pod_names == ("worker",)
    assert record.prepare_result().devices[0].cdi_ids == ()


def test_the_record_of_a_daemon_has_no_mode() -> None:
    record = planned(claim("daemon-0", kind="Daemon"))
    assert (record.kind, record.mode, record.is_channel) == ("daemon", "", False)


@pytest.mark.parametrize(
    "text",
    ["../x", "not-needed-for-test", UID.upper().replace("1", "A"), f"{UID}/..", f"{UID}\n", "."],
)
def test_a_domain_id_that_is_no_uid_is_refused_with_its_field(text: str) -> None:
    error = refused(claim(domainID=text))
    assert error.reason is Reason.INVALID_CONFIG
    assert error.facts["field"].endswith("config[0].opaque.parameters.domainID")


def test_an_unknown_field_is_refused_by_its_name() -> None:
    error = refused(claim(unexpectedField="x"))
    assert error.reason is Reason.INVALID_CONFIG
    assert 'strict decoding error: unknown field "unexpectedField"' in error.message


def test_a_config_of_the_other_kind_is_refused() -> None:
    assert refused(claim("channel-0", kind="Daemon")).reason is Reason.INVALID_CONFIG


def test_a_claim_has_one_device() -> None:
    error = refused(claim("channel-0", "channel-1"))
    assert error.reason is Reason.INVALID_CONFIG
    assert "2 devices" in error.message


@pytest.mark.parametrize(
    ("made", "is_host_managed"),
    [
        (claim("gpu-0"), False),
        (claim("channel-01"), False),
        (claim("channel-1"), False),
        (claim(pool="node-b"), False),
        (claim("daemon-0", kind="Daemon"), True),
    ],
)
def test_a_device_that_is_not_this_nodes_is_refused(
    made: ResourceClaim, is_host_managed: bool
) -> None:
    error = refused(made, is_host_managed=is_host_managed)
    assert error.reason is Reason.UNKNOWN_DEVICE


def test_every_channel_is_allowed_where_the_host_runs_imex() -> None:
    assert planned(claim("channel-7"), is_host_managed=True).first_channel == 7


def test_a_channel_belongs_to_one_claim_at_a_time() -> None:
    first, second = planned(claim()), planned(claim(uid="claim-2"))
    prepared = {first.uid: first}
    plan.check_free(first, prepared, NODE)
    with pytest.raises(DeviceInUseError, match="held by claim team-a/c") as error:
        plan.check_free(second, prepared, NODE)
    assert error.value.reason is Reason.DEVICE_IN_USE
    plan.check_free(planned(claim("daemon-0", kind="Daemon", uid="claim-3")), prepared, NODE)


def test_a_node_is_in_one_domain_at_a_time() -> None:
    first, second = planned(claim()), planned(claim(uid="claim-2", domainID=OTHER))
    with pytest.raises(NodeInOtherDomainError, match=f"member of ComputeDomain {UID}") as error:
        plan.check_free(second, {first.uid: first}, NODE)
    assert error.value.reason is Reason.NODE_IN_OTHER_DOMAIN
    assert error.value.holder == first


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"domain_namespace": "team-b", "domain_name": "ring"}, "ComputeDomain team-b/ring (UID "),
        ({"domain": DomainUID("")}, "a ComputeDomain that is not known any more by claim"),
    ],
)
def test_the_error_names_the_other_domain_if_it_is_known(facts: dict[str, Any], says: str) -> None:
    holder = planned(claim(uid="claim-2", domainID=OTHER)).model_copy(update=facts)
    with pytest.raises(NodeInOtherDomainError) as error:
        plan.check_free(planned(claim()), {holder.uid: holder}, NODE)
    assert f"is a member of {says}" in error.value.message


def of(namespace: str, made: ResourceClaim) -> DomainClaimRecord:
    return planned(made).model_copy(update={"namespace": namespace, "name": "secret-claim"})


@pytest.mark.parametrize("other", [UID, OTHER], ids=["in use", "other domain"])
def test_the_holder_of_another_namespace_is_named_to_operators_only(other: str) -> None:
    holder = of("team-b", claim(uid="claim-2", domainID=other)).model_copy(
        update={"domain_namespace": "team-b", "domain_name": "secret-ring"}
    )
    with pytest.raises(DeviceInUseError) as error:
        plan.check_free(planned(claim()), {holder.uid: holder}, NODE)
    for secret in ("team-b", "secret", "worker"):
        assert secret not in str(error.value)
    assert "claim team-b/secret-claim (UID claim-2) for pod worker" in error.value.operator_text


@pytest.mark.parametrize(
    "wanted", [claim(), claim("daemon-0", kind="Daemon")], ids=["channel", "daemon"]
)
def test_a_claim_of_another_namespace_with_an_unreadable_record_is_named_to_operators_only(
    wanted: ResourceClaim,
) -> None:
    unreadable = ClaimRef("team-b", "secret", ClaimUID("u"))
    with pytest.raises(PermanentError) as error:
        plan.check_records_complete(planned(wanted), [unreadable], "")
    assert "team-b" not in str(error.value)
    assert "the record of claim team-b/secret:u cannot be read" in error.value.operator_text


def test_no_device_is_given_while_it_is_unknown_which_are_free() -> None:
    wanted = planned(claim())
    plan.check_records_complete(wanted, [wanted.ref], "")
    for unreadable, reason in (
        ([ClaimRef("n", "x", ClaimUID("u"))], ""),
        ([], "the disk"),
    ):
        with pytest.raises(PermanentError) as error:
            plan.check_records_complete(wanted, unreadable, reason)
        assert error.value.reason is Reason.STATE_CORRUPT


def test_a_record_is_read_as_it_was_written() -> None:
    record = planned(claim()).model_copy(update={"is_joining": True})
    assert DomainClaimRecord.model_validate_json(record.model_dump_json()) == record
    assert record.domain == DomainUID(UID)
