# SPDX-License-Identifier: Apache-2.0
"""What all daemons of a domain share stays as it was when the domain was made."""

import json
from dataclasses import replace
from typing import Any

import pytest
from nvdra_api import names
from nvdra_api.gates import Feature, FeatureGates
from nvdra_api.ids import DomainUID
from nvdra_api.meta import JsonObject
from nvdra_api.v1beta1 import ComputeDomain
from nvdra_cd_controller import children, fixed_settings
from nvdra_cd_controller.domain_snapshot import Child, DomainSnapshot
from nvdra_runtime.computedomain import domain_settings
from nvdra_runtime.computedomain.domain_settings import DomainSettings, PeerNames
from nvdra_testing.control_plane import domain_values
from nvdra_testing.control_plane.domain_values import CHILD_CONFIG, UID

BEFORE = DomainSettings(4, FeatureGates.parse("ComputeDomainCliques=false"))
NOW = replace(CHILD_CONFIG, max_nodes=36, image="daemon:2")


def snapshot(annotation: str = "", daemonset: JsonObject | None = None) -> DomainSnapshot:
    stored = domain_values.domain_json()
    if annotation:
        stored["metadata"]["annotations"] = {names.DOMAIN_SETTINGS_ANNOTATION: annotation}
    made = () if daemonset is None else (Child("DaemonSet", daemonset),)
    return DomainSnapshot(UID, ComputeDomain.model_validate(stored), stored, daemonsets=made)


def daemonset(settings: DomainSettings) -> JsonObject:
    config = fixed_settings.applied(CHILD_CONFIG, settings)
    return children.creation_body(children.daemonset(UID, "nvdra", config))


def texts(settings: DomainSettings) -> tuple[int, str]:
    return settings.max_nodes, settings.gates.full_text()


def test_a_new_domain_gets_the_controllers_settings_and_an_annotation_that_keeps_them() -> None:
    found = fixed_settings.of_domain(snapshot(), CHILD_CONFIG)
    assert texts(found) == (CHILD_CONFIG.max_nodes, CHILD_CONFIG.gates.full_text())
    written = fixed_settings.missing_annotation(snapshot(), found)
    kept = snapshot(written[names.DOMAIN_SETTINGS_ANNOTATION])
    assert texts(fixed_settings.of_domain(kept, NOW)) == texts(found)
    assert fixed_settings.missing_annotation(kept, found) == {}


def test_an_older_domain_keeps_what_its_daemonset_runs_with() -> None:
    older = snapshot(daemonset=daemonset(BEFORE))
    found = fixed_settings.of_domain(older, NOW)
    assert texts(found) == texts(BEFORE)
    written = fixed_settings.missing_annotation(older, found)
    assert json.loads(written[names.DOMAIN_SETTINGS_ANNOTATION])["maxNodesPerImexDomain"] == 4


def test_names_of_a_domains_own_are_of_domains_that_are_made_now() -> None:
    made = fixed_settings.of_domain(snapshot(), NOW)
    assert made.peer_names == PeerNames.DOMAIN
    written = fixed_settings.missing_annotation(snapshot(), made)
    again = snapshot(written[names.DOMAIN_SETTINGS_ANNOTATION])
    assert fixed_settings.of_domain(again, NOW).peer_names == PeerNames.DOMAIN
    running = fixed_settings.of_domain(snapshot(daemonset=daemonset(made)), NOW)
    assert running.peer_names == PeerNames.DOMAIN


def test_a_domain_that_runs_with_shared_names_keeps_them() -> None:
    older = daemonset(BEFORE)
    found = fixed_settings.of_domain(snapshot(daemonset=older), NOW)
    assert found.peer_names == PeerNames.SHARED
    wanted = children.daemonset(UID, "nvdra", fixed_settings.applied(CHILD_CONFIG, found))
    assert children.corrected(older, wanted) is None
    stored = json.loads(domain_settings.annotation(BEFORE, UID))
    del stored["peerNames"]
    assert fixed_settings.of_domain(snapshot(json.dumps(stored)), NOW).peer_names == (
        PeerNames.SHARED
    )


def test_the_running_daemonset_counts_more_than_the_annotation() -> None:
    other = domain_settings.annotation(DomainSettings(9, FeatureGates()), UID)
    both = snapshot(other, daemonset(BEFORE))
    found = fixed_settings.of_domain(both, NOW)
    assert texts(found) == texts(BEFORE)
    assert fixed_settings.missing_annotation(both, found), "a tenant may have written it"


def test_an_annotation_that_was_copied_with_a_manifest_says_nothing() -> None:
    of_other = domain_settings.annotation(BEFORE, DomainUID("another"))
    for copied in (of_other, json.dumps({**json.loads(of_other), "uid": None})):
        found = fixed_settings.of_domain(snapshot(copied), NOW)
        assert texts(found) == (36, NOW.gates.full_text())
        assert fixed_settings.missing_annotation(snapshot(copied), found)


def test_the_annotation_of_an_earlier_release_counts_by_the_daemonset_that_runs() -> None:
    stored = json.loads(domain_settings.annotation(BEFORE, UID))
    del stored["uid"]
    earlier = snapshot(json.dumps(stored), daemonset(BEFORE))
    found = fixed_settings.of_domain(earlier, NOW)
    assert texts(found) == texts(BEFORE)
    written = fixed_settings.missing_annotation(earlier, found)
    kept = snapshot(written[names.DOMAIN_SETTINGS_ANNOTATION])
    assert texts(fixed_settings.of_domain(kept, NOW)) == texts(BEFORE)
    alone = snapshot(json.dumps(stored))
    assert texts(fixed_settings.of_domain(alone, NOW)) == (36, NOW.gates.full_text())


def test_only_the_image_of_a_running_domain_follows_the_controller() -> None:
    stored = daemonset(BEFORE)
    config = fixed_settings.applied(NOW, fixed_settings.of_domain(snapshot(daemonset=stored), NOW))
    corrected = children.corrected(stored, children.daemonset(UID, "nvdra", config))
    assert corrected is not None

    def container(obj: JsonObject) -> Any:
        return obj["spec"]["template"]["spec"]["containers"][0]

    assert container(corrected) == {**container(stored), "image": "daemon:2"}


def test_gates_of_another_release_are_left_out() -> None:
    stored = daemonset(BEFORE)
    environment = stored["spec"]["template"]["spec"]["containers"][0]["env"]
    gates = next(each for each in environment if each["name"] == "FEATURE_GATES")
    gates["value"] = "GateOfTomorrow=true,ComputeDomainCliques=false"
    found = fixed_settings.of_domain(snapshot(daemonset=stored), NOW)
    assert not found.gates.is_enabled(Feature.CLIQUES)
    assert "GateOfTomorrow" not in found.gates.full_text()


@pytest.mark.parametrize(
    "annotation",
    [
        "18",
        "{",
        f'{{"maxNodesPerImexDomain": 0, "featureGates": "", "uid": "{UID}"}}',
        f'{{"maxNodesPerImexDomain": 10001, "featureGates": "", "uid": "{UID}"}}',
        f'{{"maxNodesPerImexDomain": 4, "uid": "{UID}"}}',
        f'{{"maxNodesPerImexDomain": 4, "featureGates": "A=perhaps", "uid": "{UID}"}}',
    ],
)
def test_an_annotation_that_says_nothing_useful_is_written_again(annotation: str) -> None:
    damaged = snapshot(annotation)
    found = fixed_settings.of_domain(damaged, NOW)
    assert texts(found) == (36, NOW.gates.full_text())
    assert fixed_settings.missing_annotation(damaged, found)
