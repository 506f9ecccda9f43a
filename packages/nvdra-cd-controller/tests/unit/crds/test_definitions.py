# SPDX-License-Identifier: Apache-2.0
"""The definitions of this version, and which of a cluster's are earlier ones of ours."""

import copy
import hashlib
import json

import pytest
import yaml
from nvdra_cd_controller.crds import definitions
from nvdra_cd_controller.crds.definitions import VERSION_ANNOTATION, Definition
from nvdra_cd_controller.crds.keeper import Install, must_write
from nvdra_testing.control_plane import foreign_definitions

CLIQUES, DOMAINS = definitions.own()
FOREIGN = Definition(foreign_definitions.computedomains())
TEXTS = {
    "computedomaincliques.resource.nvidia.com": {1: "0b66f6d1"},
    "computedomains.resource.nvidia.com": {1: "8d2865be"},
}
"""By definition and number, the first letters of the digest of its text: each text has a number of
its own, by which a controller knows that the cluster's is an earlier one."""


APPLIED_OVER = Definition(
    {**FOREIGN.document, "metadata": dict(DOMAINS.document["metadata"], uid="1")}
)
"""`kubectl apply` of another project's text keeps our annotation."""


def with_version(definition: Definition, number: object) -> Definition:
    document = copy.deepcopy(definition.document)
    if number is None:
        del document["metadata"]["annotations"][VERSION_ANNOTATION]
    else:
        document["metadata"]["annotations"][VERSION_ANNOTATION] = number
    return Definition(document)


@pytest.mark.parametrize("own", definitions.own(), ids=lambda own: own.name)
def test_a_changed_text_has_a_higher_number(own: Definition) -> None:
    digest = hashlib.sha256(json.dumps(own.document["spec"], sort_keys=True).encode()).hexdigest()
    known = TEXTS[own.name]
    assert max(known) == own.version
    assert digest.startswith(known[own.version]), f"{own.version + 1}: {digest[:16]!r}"


@pytest.mark.parametrize(
    ("found", "written"),
    [
        (None, {Install.AUTO, Install.ALWAYS}),
        (DOMAINS, set()),
        (with_version(DOMAINS, None), {Install.AUTO, Install.ALWAYS}),  # as 0.1.0 has it
        (with_version(DOMAINS, "0"), {Install.AUTO, Install.ALWAYS}),
        (with_version(DOMAINS, "99"), set()),
        (with_version(DOMAINS, "1" * 5000), {Install.AUTO, Install.ALWAYS}),
        (FOREIGN, {Install.ALWAYS}),
        (APPLIED_OVER, {Install.ALWAYS}),
        (with_version(APPLIED_OVER, "0"), {Install.ALWAYS}),
        (with_version(APPLIED_OVER, "99"), {Install.ALWAYS}),
    ],
)
def test_what_is_written_depends_on_whose_the_definition_is(
    found: Definition | None, written: set[Install]
) -> None:
    assert {each for each in Install if must_write(DOMAINS, found, each)} == written


def test_the_text_for_kubectl_has_both() -> None:
    documents = list(yaml.safe_load_all(definitions.text()))
    assert documents == [CLIQUES.document, DOMAINS.document]
