# SPDX-License-Identifier: Apache-2.0
"""What the definitions of other projects lack of ours."""

import copy

from nvdra_cd_controller.crds import definitions, dropped_fields
from nvdra_cd_controller.crds.definitions import Definition
from nvdra_cd_controller.crds.dropped_fields import Lack
from nvdra_testing.control_plane import foreign_definitions

CLIQUES, DOMAINS = definitions.own()


def changed(change: str) -> Definition:
    document = copy.deepcopy(DOMAINS.document)
    (version,) = document["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    if change == "unserved":
        version["served"] = False
    elif change == "renamed":
        version["name"] = "v1"
    elif change == "open":
        version["schema"] = {
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        }
    elif change == "inner":
        nodes = schema["properties"]["status"]["properties"]["nodes"]
        del nodes["items"]["properties"]["index"]
        nodes["items"]["required"].append("index")
    return Definition(document)


def test_ours_lack_nothing() -> None:
    assert not dropped_fields.find(DOMAINS, DOMAINS)
    assert not dropped_fields.find(CLIQUES, CLIQUES)


def test_the_gpu_operators_drop_what_describe_and_get_show() -> None:
    lack = dropped_fields.find(DOMAINS, Definition(foreign_definitions.computedomains()))
    assert lack == Lack(
        fields=(
            "status.cliques",
            "status.conditions",
            "status.expectedNodes",
            "status.readyNodes",
        ),
        columns=("Status", "Ready", "Nodes", "Reason", "Age", "Cliques", "Template", "Message"),
        required=("spec.numNodes",),
    )
    assert str(lack) == (
        "drops the fields status.cliques, status.conditions, status.expectedNodes, "
        "status.readyNodes; has no columns Status, Ready, Nodes, Reason, Age, Cliques, Template, "
        "Message; requires the fields spec.numNodes"
    )
    lack = dropped_fields.find(CLIQUES, Definition(foreign_definitions.computedomaincliques()))
    assert lack.fields == ("daemons[].message", "daemons[].podUID")
    assert lack.required == ()


def test_a_field_within_a_list_is_found() -> None:
    lack = dropped_fields.find(DOMAINS, changed("inner"))
    assert lack == Lack(fields=("status.nodes[].index",), required=("status.nodes[].index",))


def test_a_version_that_is_not_served_is_all_there_is_to_say() -> None:
    for change in ("unserved", "renamed"):
        lack = dropped_fields.find(DOMAINS, changed(change))
        assert str(lack) == "does not serve the version resource.nvidia.com/v1beta1"


def test_a_schema_that_keeps_everything_drops_nothing() -> None:
    assert dropped_fields.find(DOMAINS, changed("open")).fields == ()
