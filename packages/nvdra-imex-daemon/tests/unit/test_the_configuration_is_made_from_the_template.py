"""IMEX's files: the template's placeholders, which are Go's, and the lists of peers."""

import pytest
from nvdra_api.types.errors import DriverError, Reason
from nvdra_imex_daemon import render

VALUES = {render.COMMAND_IP: "10.4.1.7", render.NODES_FILE: "/imexd/nodes.cfg"}
TEMPLATE = """\
# Where peers are listed.
IMEX_NODE_CONFIG_FILE={{ .IMEXDaemonNodesConfigPath }}
IMEX_CMD_BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}
IMEX_CMD_PORT=50005
LOG_FILE_NAME=
"""


def test_both_placeholders_are_filled_in_and_all_else_stays() -> None:
    assert (
        render.config(TEMPLATE, VALUES)
        == """\
# Where peers are listed.
IMEX_NODE_CONFIG_FILE=/imexd/nodes.cfg
IMEX_CMD_BIND_INTERFACE_IP=10.4.1.7
IMEX_CMD_PORT=50005
LOG_FILE_NAME=
"""
    )


@pytest.mark.parametrize(
    ("template", "rendered"),
    [
        ("A={{.IMEXCmdBindInterfaceIP}}", "A=10.4.1.7"),
        ("A=  {{- .IMEXCmdBindInterfaceIP -}}  \nB=1", "A=10.4.1.7B=1"),
        ("A={{/* why */}}{{ .IMEXCmdBindInterfaceIP }}\n", "A=10.4.1.7\n"),
        ("{{- /* why */ -}}\n\nA=1", "A=1"),
        ("A=1\n", "A=1\n"),
        ("A={x}", "A={x}"),
    ],
)
def test_what_go_templates_may_look_like(template: str, rendered: str) -> None:
    assert render.config(template, VALUES) == rendered


@pytest.mark.parametrize("action", ["{{ .Domain }}", "{{ if .X }}", "{{ }}", "{{ index . 0 }}"])
def test_a_template_of_another_version_is_refused_with_its_line(action: str) -> None:
    with pytest.raises(DriverError, match="line 2 of the template") as refused:
        render.config(f"A=1\nB={action}\n", VALUES)
    assert refused.value.reason is Reason.INVALID_CONFIG
    assert action in refused.value.message


def test_all_names_that_can_be_are_listed() -> None:
    assert render.names(3).splitlines() == [
        "compute-domain-daemon-0000",
        "compute-domain-daemon-0001",
        "compute-domain-daemon-0002",
    ]
    assert len(render.names(18).splitlines()) == 18


def test_addresses_are_listed_one_a_line() -> None:
    assert render.addresses(["10.4.1.7", "10.4.2.9"]) == "10.4.1.7\n10.4.2.9\n"
