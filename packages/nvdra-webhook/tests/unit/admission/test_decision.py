# SPDX-License-Identifier: Apache-2.0
"""Verdicts that the reference driver does not have: unchanged objects, causes, warnings."""

import json
import random
import time
from http import HTTPStatus
from typing import Any

import pytest
from nvdra_api import names
from nvdra_api.gates import FeatureGates
from nvdra_testing import extreme_json
from nvdra_testing.admission import reviews
from nvdra_webhook.admission import review
from nvdra_webhook.admission.claim import MAX_ENTRIES
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.admission.decision import LONGEST_KEPT, Examiner
from nvdra_webhook.admission.review import Verdict
from nvdra_webhook.admission.warnings import MAX_WARNINGS
from nvdra_webhook.endpoints import VALIDATE_PATH, Endpoints
from nvdra_webhook.metrics import WebhookMetrics
from nvdra_webhook.serving.exchange import HttpRequest

GATES = FeatureGates.parse("MPSSupport=true,TimeSlicingSettings=true")
HEAD = '"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"'
GOOD = f"{{{HEAD}}}"
WRONG = f'{{{HEAD},"sharing":{{"strategy":"Foo"}}}}'
OTHER_WRONG = f'{{{HEAD},"sharing":{{"strategy":"Bar"}}}}'


def decide(
    new: str, old: str | None = None, cluster: ClusterNames | None = None, **how: Any
) -> Verdict:
    operation = "CREATE" if old is None else "UPDATE"
    body = reviews.review(new, old_text=old, **{"operation": operation, **how})
    return Examiner(GATES).decide(review.decode(body), cluster or ClusterNames())


def text(*parameters: str, **how: Any) -> str:
    return reviews.claim_text([reviews.entry(each) for each in parameters], **how)


def test_an_update_that_leaves_the_spec_is_admitted_whatever_it_says() -> None:
    assert decide(text(WRONG, metadata={"labels": {"a": "b"}}), text(WRONG)).is_allowed
    assert not decide(text(WRONG)).is_allowed


def test_an_object_that_is_being_deleted_is_admitted() -> None:
    deleted = text(WRONG, metadata={"deletionTimestamp": "2026-09-01T00:00:00Z"})
    assert decide(deleted, text(GOOD)).is_allowed


def test_of_a_changed_spec_only_what_is_new_is_examined() -> None:
    spaced = WRONG.replace(",", " , ")
    assert decide(text(spaced, GOOD), text(WRONG)).is_allowed
    changed = decide(text(WRONG, OTHER_WRONG), text(WRONG))
    assert changed.status is not None
    assert changed.status.message.startswith("1 configs failed to validate: object at spec.devices")
    assert "config[1]" in changed.status.message


def long_lists(last: int) -> str:
    lists = ",".join([f"{'[' * 50}{']' * 50}"] * 1_180)
    return text(*(f"[{lists},{last + each}]" for each in range(MAX_ENTRIES)))


def similar_fields() -> str:
    letters = "defaultPerDevicePinnedMemoryLimitdefaultActiveThreadPercentage"
    shuffled = random.Random(1)
    configs = []
    for _ in range(MAX_ENTRIES):
        made = ("".join(shuffled.sample(letters, len(letters))) for _ in range(100))
        fields = ",".join(f'"{each}":0' for each in made)
        configs.append(f'{{{HEAD},"sharing":{{"mpsConfig":{{{fields}}}}}}}')
    return text(*configs)


@pytest.mark.parametrize(
    ("new", "old"),
    [(long_lists(1000), long_lists(2000)), (similar_fields(), None)],
    ids=["configs that differ at their end", "fields that resemble known ones"],
)
def test_the_costliest_objects_keep_others_waiting_for_less_than_a_second(
    new: str, old: str | None
) -> None:
    started = time.process_time()
    assert not decide(new, old).is_allowed
    assert time.process_time() - started < 0.8


def test_a_subresource_is_admitted() -> None:
    assert decide(text(WRONG), subResource="status").is_allowed


def test_all_problems_of_all_configs_have_a_cause_with_field_and_remedy() -> None:
    mps = {"defaultActiveThreadPercentage": -1, "defaultPinnedDeviceMemoryLimit": "1M"}
    both = f'{{{HEAD},"sharing":{{"strategy":"MPS","mpsConfig":{json.dumps(mps)}}}}}'
    status = decide(text(both, WRONG)).status
    assert status is not None
    assert status.details is not None
    assert (status.details.kind, status.details.name) == ("ResourceClaim", "train")
    path = "spec.devices.config[{}].opaque.parameters.sharing"
    assert [(cause.field, cause.message) for cause in status.details.causes] == [
        (
            f"{path.format(0)}.mpsConfig.defaultActiveThreadPercentage",
            "active thread percentage must not be negative; write a whole number from 0 to 100",
        ),
        (
            f"{path.format(0)}.mpsConfig.defaultPinnedDeviceMemoryLimit",
            "invalid limit: default value set too low: 1M, the minimum is 1Mi",
        ),
        (
            f"{path.format(1)}.strategy",
            "unknown GPU sharing strategy: Foo, supported GPU sharing strategies: TimeSlicing, MPS",
        ),
    ]
    assert status.message.startswith("2 configs failed to validate: ")


def test_what_is_kept_of_a_check_is_the_same_for_another_place_and_for_long_parameters() -> None:
    examiner = Examiner(GATES)
    long = WRONG.replace("Foo", "x" * LONGEST_KEPT)
    for parameters in (WRONG, long):
        for template in (reviews.CLAIMS, reviews.TEMPLATES, reviews.CLAIMS):
            body = reviews.review(text(GOOD, parameters, resource=template), resource=template)
            status = examiner.decide(review.decode(body), ClusterNames()).status
            assert status is not None
            assert status.details is not None
            prefix = "spec" if template == reviews.CLAIMS else "spec.spec"
            (cause,) = status.details.causes
            assert cause.field.startswith(f"{prefix}.devices.config[1].opaque.parameters.sharing")


def test_warnings_name_what_does_not_exist_and_what_has_no_effect() -> None:
    selector = {"cel": {"expression": "device.attributes['gpu.nvidia.com'].profile == '9g.9gb'"}}
    exactly = {"deviceClassName": "mig.nvidia.com", "selectors": [selector]}
    requests: list[dict[str, Any]] = [
        {"name": "mig", "exactly": exactly},
        {"name": "any", "firstAvailable": [{"name": "one", "deviceClassName": "nope"}]},
    ]
    zero = '"sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":0}}'
    entries = [
        reviews.entry(f"{{{HEAD},{zero}}}", requests=["any/one"]),
        reviews.entry(GOOD, requests=["any/one", "absent"]),
        reviews.entry('{"domainID":"x"}', "other.example.com", requests=["absent"]),
    ]
    cluster = ClusterNames(frozenset(("mig.nvidia.com",)), frozenset(("1g.10gb",)))
    verdict = decide(reviews.claim_text(entries, requests=requests), cluster=cluster)
    assert verdict.is_allowed
    told = "\n".join(verdict.warnings)
    for part in (
        "defaultActiveThreadPercentage: 0 leaves clients no threads",
        'config[1].requests: there is no request "absent"',
        'config[0]: config[1] overrides it for request "any/one"',
        'requests[0].exactly.selectors: no node offers the MIG profile "9g.9gb"; profiles on offer:'
        " 1g.10gb (none is made to order, as the feature gate DynamicMIG is off)",
        'requests[1].firstAvailable[0].deviceClassName: there is no DeviceClass "nope" (unless '
        "it was just made), so pods with this claim stay Pending; kubectl get deviceclasses lists "
        "them",
    ):
        assert part in told
    assert len(verdict.warnings) == 5


def test_a_class_that_does_not_exist_may_be_a_similar_one() -> None:
    asked = reviews.claim_text([], requests=[class_request("g", "gpu.nvidia.co")])
    classes = frozenset(("gpu.nvidia.com", "vfio.gpu.nvidia.com"))
    (told,) = decide(asked, cluster=ClusterNames(classes)).warnings
    assert told.endswith('stay Pending; did you mean "gpu.nvidia.com"?')


def class_request(name: str, device_class: str) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": device_class}}


MIG, CHANNEL = class_request("m", "mig.nvidia.com"), class_request("c", names.CHANNEL_CLASS)
GPU = class_request("g", "gpu.nvidia.com")
EITHER = {
    "name": "e",
    "firstAvailable": [
        {"name": "gpu", "deviceClassName": "gpu.nvidia.com"},
        {"name": "mig", "deviceClassName": "mig.nvidia.com"},
    ],
}
NO_EFFECT = '{}: GpuConfig does not fit request "{}", so it has no effect; {} takes {}'
NO_START = (
    '{}: GpuConfig does not fit request "{}", so pods with this claim will not start; {} takes {}'
)
NO_START_THEN = NO_START.replace("pods with this claim", "pods that get it")
TAKES_MIG = ("mig.nvidia.com", "MigDeviceConfig")
TAKES_CHANNELS = (names.CHANNEL_CLASS, "ComputeDomainChannelConfig")


@pytest.mark.parametrize(
    ("requests", "named", "warning"),
    [
        ([MIG], None, NO_EFFECT.format("{}", "m", *TAKES_MIG)),
        ([MIG, CHANNEL], None, NO_EFFECT.format("{}", "m", *TAKES_MIG)),
        ([MIG, GPU], None, ""),
        ([MIG, GPU], ["g"], ""),
        ([MIG, GPU], ["g", "m"], NO_START.format("{}", "m", *TAKES_MIG)),
        ([CHANNEL, GPU], ["c"], NO_EFFECT.format("{}", "c", *TAKES_CHANNELS)),
        ([EITHER], None, ""),
        ([EITHER], ["e/gpu"], ""),
        ([EITHER], ["e"], NO_START_THEN.format("{}", "e/mig", *TAKES_MIG)),
        ([CHANNEL, MIG], ["c", "m"], NO_START.format("{}", "m", *TAKES_MIG)),
        ([CHANNEL, GPU], ["c", "g"], ""),
        ([class_request("x", "a-class-of-ours")], None, ""),
        ([class_request("x", "a-class-of-ours"), MIG], None, ""),
    ],
)
def test_a_config_of_another_kind_than_the_devices_of_its_requests_is_told(
    requests: list[dict[str, Any]], named: list[str] | None, warning: str
) -> None:
    """What prepare does with them: tests/unit/claims/test_opaque_configs.py of nvdra-api."""
    entries = [reviews.entry(GOOD, requests=named or ())]
    verdict = decide(reviews.claim_text(entries, requests=requests))
    assert verdict.is_allowed
    wanted = [warning.format("spec.devices.config[0]")] if warning else []
    assert list(verdict.warnings) == wanted


SECOND_GPU, SECOND_MIG = class_request("h", "gpu.nvidia.com"), class_request("n", "mig.nvidia.com")
MONITOR = {
    "name": "a",
    "exactly": {"deviceClassName": "gpu.nvidia.com", "adminAccess": True, "allocationMode": "All"},
}
MPS_GPU = f'{{{HEAD},"sharing":{{"strategy":"MPS"}}}}'
MPS_MIG = MPS_GPU.replace("GpuConfig", "MigDeviceConfig")


@pytest.mark.parametrize(
    ("requests", "configs", "pair"),
    [
        ([GPU, SECOND_GPU], [(MPS_GPU, ["h"])], ("h", "g")),
        ([GPU, SECOND_GPU], [(MPS_GPU, ["g", "h"])], None),
        ([GPU, SECOND_GPU], [(MPS_GPU, None)], None),
        ([GPU, SECOND_GPU], [(MPS_GPU, ["g"]), (MPS_GPU, ["h"])], ("g", "h")),
        ([GPU, SECOND_GPU], [(GOOD, ["g"])], None),
        ([GPU, MIG], [(MPS_GPU, None)], ("g", "m")),
        ([MIG, SECOND_MIG], [(MPS_MIG, ["m", "n"])], ("m", "n")),
        ([MIG], [(MPS_MIG, ["m"])], None),
        ([EITHER], [(MPS_MIG, ["e/mig"])], None),
        ([EITHER, GPU], [(MPS_MIG, ["e/mig"])], ("e", "g")),
        ([GPU, CHANNEL], [(MPS_GPU, ["g"])], None),
        ([GPU, MONITOR], [(MPS_GPU, ["g"])], None),
        ([GPU, class_request("x", "a-class-of-ours")], [(MPS_GPU, ["g"])], None),
    ],
)
def test_two_requests_that_one_container_cannot_compute_on_are_warned_of(
    requests: list[dict[str, Any]],
    configs: list[tuple[str, list[str] | None]],
    pair: tuple[str, str] | None,
) -> None:
    entries = [reviews.entry(config, requests=named or ()) for config, named in configs]
    verdict = decide(reviews.claim_text(entries, requests=requests))
    assert verdict.is_allowed
    wanted = pair and (
        f'spec.devices.requests: CUDA in a container that uses both "{pair[0]}", which MPS shares, '
        f'and "{pair[1]}" sees the devices of one at most; let each container name one of them '
        "(resources.claims[].request)"
    )
    assert verdict.warnings == ((wanted,) if wanted else ())


@pytest.mark.parametrize("covered", [("m",), ()])
def test_a_config_of_another_kind_that_a_later_one_overrides_is_none_of_these(
    covered: tuple[str, ...],
) -> None:
    right = GOOD.replace("GpuConfig", "MigDeviceConfig")
    entries = [reviews.entry(GOOD, requests=["m"]), reviews.entry(right, requests=covered)]
    verdict = decide(reviews.claim_text(entries, requests=[MIG]))
    assert not any("will not start" in each for each in verdict.warnings)


def test_a_claim_of_many_unknown_classes_costs_no_more_than_what_is_shown() -> None:
    """Whoever may create a claim could keep the webhook busy for seconds."""
    classes = frozenset(f"class-{number}.example.com" for number in range(5000))
    many = [class_request(f"r{number}", f"x{number}" * 40) for number in range(MAX_ENTRIES)]
    verdict = decide(reviews.claim_text([], requests=many), cluster=ClusterNames(classes))
    assert len(verdict.warnings) == MAX_WARNINGS


def test_nothing_is_said_of_what_a_refused_config_fits() -> None:
    verdict = decide(reviews.claim_text([reviews.entry(WRONG)], requests=[MIG]))
    assert not verdict.is_allowed
    assert verdict.warnings == ()


@pytest.mark.parametrize(
    ("profiles", "is_told"),
    [("['9g.9gb', '8g.8gb']", True), ("['9g.9gb', '1g.10gb']", False), ("[]", False)],
)
def test_of_several_profiles_one_is_enough(profiles: str, is_told: bool) -> None:
    expression = f"device.attributes['gpu.nvidia.com'].profile in {profiles}"
    exactly = {"deviceClassName": "m", "selectors": [{"cel": {"expression": expression}}]}
    asked = reviews.claim_text([], requests=[{"name": "mig", "exactly": exactly}])
    warnings = decide(asked, cluster=ClusterNames(profiles=frozenset(("1g.10gb",)))).warnings
    assert any('the MIG profile "9g.9gb" or "8g.8gb"' in each for each in warnings) == is_told
    assert len(warnings) == is_told


def test_what_a_gate_that_is_off_leaves_out_is_told() -> None:
    capacity = {"capacity": {"requests": {"memory": "10Gi"}}}
    asked = [
        class_request("v", "vfio.gpu.nvidia.com"),
        {"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com", **capacity}},
        {"name": "x", "exactly": {"deviceClassName": "of-others", **capacity}},
    ]
    body = review.decode(reviews.review(reviews.claim_text([], requests=asked)))
    vfio, shares = Examiner(FeatureGates()).decide(body, ClusterNames()).warnings
    assert "requests[0].exactly.deviceClassName: no node offers devices for passthrough" in vfio
    assert "requests[1].exactly.capacity: the claim gets a whole GPU" in shares
    gates = FeatureGates.parse("ConsumableShares=true,PassthroughSupport=true")
    assert Examiner(gates).decide(body, ClusterNames()).warnings == ()


@pytest.mark.parametrize(
    ("device_class", "gates", "is_warned"),
    [
        ("gpu.nvidia.com", "DynamicMIG=true", True),
        ("mig.nvidia.com", "DynamicMIG=true", True),
        ("gpu.nvidia.com", "PassthroughSupport=true", True),
        ("mig.nvidia.com", "PassthroughSupport=true", False),
        ("gpu.nvidia.com", "", False),
        ("compute-domain-default-channel.nvidia.com", "DynamicMIG=true", False),
    ],
)
def test_a_monitor_that_waits_for_claims_is_warned_of(
    device_class: str, gates: str, is_warned: bool
) -> None:
    exactly = {"deviceClassName": device_class, "allocationMode": "All", "adminAccess": True}
    text = reviews.claim_text([], requests=[{"name": "all", "exactly": exactly}])
    body = review.decode(reviews.review(text))
    warnings = Examiner(FeatureGates.parse(gates)).decide(body, ClusterNames()).warnings
    assert [
        "requests[0].exactly.adminAccess: pods with this claim stay Pending" in each
        for each in warnings
    ] == [True] * is_warned


def test_a_profile_on_no_node_is_explained_by_the_gate_only_if_that_is_off() -> None:
    selector = {"cel": {"expression": "device.attributes['gpu.nvidia.com'].profile == '9g.9gb'"}}
    requests = [{"name": "mig", "exactly": {"deviceClassName": "m", "selectors": [selector]}}]
    asked = review.decode(reviews.review(reviews.claim_text([], requests=requests)))
    gates = FeatureGates.parse("DynamicMIG=true")
    (told,) = Examiner(gates).decide(asked, ClusterNames(profiles=frozenset())).warnings
    assert told.endswith("profiles on offer: none")


def test_nothing_is_said_of_a_cluster_that_is_not_known() -> None:
    assert decide(text(GOOD)).warnings == ()


@pytest.mark.parametrize("what", extreme_json.PARAMETERS)
@pytest.mark.parametrize("resource", [reviews.CLAIMS, reviews.TEMPLATES])
def test_a_config_beyond_a_bound_is_refused_with_a_sentence(what: str, resource: str) -> None:
    parameters, says = extreme_json.PARAMETERS[what]
    answer = asked(
        reviews.review(text(parameters, resource=resource), resource=resource, uid="u-1")
    )
    assert answer["uid"] == "u-1"
    assert not answer["allowed"]
    message = answer["status"]["message"]
    assert "spec.devices.config[0].opaque.parameters" in message
    assert says in message


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (r'"metadata":{"name":"\ud800"}', "metadata.name: the text has a lone surrogate"),
        (f'"metadata":{"[" * 5000}{"]" * 5000}', "nested more than 200 levels"),
        (f'"unknown":{"[" * 5000}{"]" * 5000}', "nested more than 200 levels"),
        (r'"spec":{"devices":{"requests":[{"name":"\udfff"}]}}', "spec.devices.requests[0].name"),
    ],
)
def test_an_object_beyond_a_bound_is_refused_with_its_field(part: str, says: str) -> None:
    answer = asked(reviews.review(f"{{{part}}}"))
    assert not answer["allowed"]
    assert says in answer["status"]["message"]


def test_more_entries_than_the_api_server_allows_are_refused_unread() -> None:
    """They do not come from the API server, and each pair of them would be compared."""
    many = [str(number) for number in range(MAX_ENTRIES + 1)]
    requests = [class_request(name, "gpu.nvidia.com") for name in many]
    alternatives = [{"name": name, "deviceClassName": "gpu.nvidia.com"} for name in many]
    selectors = [{"cel": {"expression": "true"}} for _ in many]
    for claim in (
        text(*[GOOD for _ in many]),
        text(GOOD, requests=requests),
        reviews.claim_text([reviews.entry(GOOD, requests=many)]),
        text(GOOD, requests=[{"name": "a", "firstAvailable": alternatives}]),
        text(GOOD, requests=[{"name": "a", "exactly": {"selectors": selectors}}]),
    ):
        verdict = decide(claim)
        assert verdict.status is not None
        assert f"of length <= {MAX_ENTRIES}" in verdict.status.message


def test_a_long_name_of_a_class_costs_little() -> None:
    started = time.process_time()
    wrong = class_request("a", "gpu.nvidia.com" * 200_000)
    cluster = ClusterNames(frozenset(["gpu.nvidia.com", "mig.nvidia.com"]))
    verdict = decide(text(GOOD, requests=[wrong]), cluster=cluster)
    assert verdict.warnings
    assert all(len(warning) < 1000 for warning in verdict.warnings)
    assert time.process_time() - started < 2


def asked(body: bytes) -> Any:
    """The response that the HTTPS port gives."""
    endpoints = Endpoints(GATES, ClusterNames, {}, WebhookMetrics(), time.monotonic)
    answer = endpoints.respond(HttpRequest("POST", VALIDATE_PATH, "", "application/json", body))
    assert answer.status is HTTPStatus.OK
    return json.loads(answer.body)["response"]
