"""Claims, and what they will hold or are refused for."""

from typing import Any

import pytest
from nvdra_api.protocol import configs
from nvdra_api.types import names
from nvdra_api.types.claims import ClaimRef, ResourceClaim
from nvdra_api.types.errors import DriverError, PermanentError, Reason
from nvdra_api.types.gates import Gates
from nvdra_api.types.holdings import DeviceInUseError
from nvdra_api.types.ids import ClaimUID, DomainUID, NodeName
from nvdra_cd_plugin import plan
from nvdra_cd_plugin.plan import NodeTakenError
from nvdra_cd_plugin.records import DomainHolding

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
            "apiVersion": names.CONFIG_API_VERSION,
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


def planned(made: ResourceClaim, *, is_host_managed: bool = False) -> DomainHolding:
    resolved = configs.resolve(made, names.COMPUTE_DOMAIN_DRIVER, plan.kind_of, Gates())
    return plan.make(made, resolved, NODE, is_host_managed=is_host_managed)


def refused(made: ResourceClaim, **how: Any) -> DriverError:
    with pytest.raises(PermanentError) as error:
        planned(made, **how)
    return error.value


def test_a_channels_claim_holds_it_for_its_domain() -> None:
    holding = planned(claim(allocationMode="All"))
    assert (holding.kind, holding.device.device, holding.mode) == ("channel", "channel-0", "All")
    assert holding.domain == UID
    assert holding.pod_names == ("worker",)
    assert holding.answer().devices[0].cdi_ids == ()


def test_a_daemons_claim_holds_the_place() -> None:
    holding = planned(claim("daemon-0", kind="Daemon"))
    assert (holding.kind, holding.mode, holding.is_channel) == ("daemon", "", False)


@pytest.mark.parametrize(
    "text",
    ["../x", "not-needed-for-test", UID.upper().replace("1", "A"), f"{UID}/..", f"{UID}\n", "."],
)
def test_what_is_no_uid_is_refused_by_its_field(text: str) -> None:
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


def test_where_the_host_runs_imex_any_channel_may_be_given() -> None:
    assert planned(claim("channel-7"), is_host_managed=True).first_channel == 7


def test_a_channel_is_one_claims_at_a_time() -> None:
    first, second = planned(claim()), planned(claim(uid="claim-2"))
    held = {first.uid: first}
    plan.check_free(first, held, NODE)
    with pytest.raises(DeviceInUseError, match="held by claim team-a/c") as error:
        plan.check_free(second, held, NODE)
    assert error.value.reason is Reason.DEVICE_IN_USE
    plan.check_free(planned(claim("daemon-0", kind="Daemon", uid="claim-3")), held, NODE)


def test_a_node_is_one_domains_at_a_time() -> None:
    first, second = planned(claim()), planned(claim(uid="claim-2", domainID=OTHER))
    with pytest.raises(NodeTakenError, match=f"works for ComputeDomain {UID}") as error:
        plan.check_free(second, {first.uid: first}, NODE)
    assert error.value.reason is Reason.NODE_IN_OTHER_DOMAIN
    assert error.value.holder == first


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"domain_namespace": "team-b", "domain_name": "ring"}, "ComputeDomain team-b/ring (UID "),
        ({"domain": DomainUID("")}, "a ComputeDomain that is not known any more by claim"),
    ],
)
def test_whose_the_node_is_is_said_as_far_as_it_is_known(told: dict[str, Any], says: str) -> None:
    holder = planned(claim(uid="claim-2", domainID=OTHER)).model_copy(update=told)
    with pytest.raises(NodeTakenError) as error:
        plan.check_free(planned(claim()), {holder.uid: holder}, NODE)
    assert f"works for {says}" in error.value.message


def test_nothing_is_given_while_nobody_knows_what_is_free() -> None:
    wanted = planned(claim())
    plan.check_known(wanted, [wanted.ref], "")
    for unreadable, doubt in (([ClaimRef("n", "x", ClaimUID("u"))], ""), ([], "the disk")):
        with pytest.raises(PermanentError) as error:
            plan.check_known(wanted, unreadable, doubt)
        assert error.value.reason is Reason.STATE_CORRUPT


def test_a_record_is_read_as_it_was_written() -> None:
    holding = planned(claim()).model_copy(update={"is_joining": True})
    assert DomainHolding.model_validate_json(holding.model_dump_json()) == holding
    assert holding.domain == DomainUID(UID)
