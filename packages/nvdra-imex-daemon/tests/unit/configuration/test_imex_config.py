# SPDX-License-Identifier: Apache-2.0
"""IMEX's configuration from a Go template, and its lists of peers."""

import time

import pytest
from nvdra_api.errors import DriverError, Reason
from nvdra_imex_daemon.configuration import imex_config
from nvdra_imex_daemon.configuration.dns_names import SHARED

VALUES = {
    imex_config.COMMAND_IP_FIELD: "10.4.1.7",
    imex_config.NODES_FILE_FIELD: "/imexd/nodes.cfg",
}
TEMPLATE = """\
# Where peers are listed.
IMEX_NODE_CONFIG_FILE={{ .IMEXDaemonNodesConfigPath }}
IMEX_CMD_BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}
IMEX_CMD_PORT=50005
LOG_FILE_NAME=
"""


def test_both_placeholders_are_filled_in_and_nothing_else_changes() -> None:
    assert (
        imex_config.render_config(TEMPLATE, VALUES)
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
def test_supported_syntax_of_go_templates(template: str, rendered: str) -> None:
    assert imex_config.render_config(template, VALUES) == rendered


@pytest.mark.parametrize("action", ["{{ .Domain }}", "{{ if .X }}", "{{ }}", "{{ index . 0 }}"])
def test_an_unsupported_action_is_an_error_that_names_its_line(action: str) -> None:
    with pytest.raises(DriverError, match="line 2 of the template") as refused:
        imex_config.render_config(f"A=1\nB={action}\n", VALUES)
    assert refused.value.reason is Reason.INVALID_CONFIG
    assert action in refused.value.message


@pytest.mark.parametrize(
    "action", ["{{", "{{ .IMEXCmdBindInterfaceIP", "{{ .IMEXCmdBindInterfaceIP }", "{{/* why */"]
)
def test_an_action_without_an_end_is_an_error_that_names_its_line(action: str) -> None:
    with pytest.raises(DriverError, match="line 2 of the template") as refused:
        imex_config.render_config(f"A=1\nB={action}\n", VALUES)
    assert refused.value.reason is Reason.INVALID_CONFIG
    assert action in refused.value.message


def test_the_time_for_actions_without_an_end_grows_with_the_length_of_the_template() -> None:
    began = time.process_time()
    with pytest.raises(DriverError, match="line 1 of the template"):
        imex_config.render_config("{{ .X" * 10_000, VALUES)
    assert time.process_time() - began < 1.0  # 0.001 s; it was 10 s


def test_the_names_of_all_possible_peers_are_listed() -> None:
    assert imex_config.render_names(SHARED, 3).splitlines() == [
        "compute-domain-daemon-0000",
        "compute-domain-daemon-0001",
        "compute-domain-daemon-0002",
    ]
    assert len(imex_config.render_names(SHARED, 18).splitlines()) == 18


def test_addresses_are_listed_one_per_line() -> None:
    assert imex_config.render_addresses(["10.4.1.7", "10.4.2.9"]) == "10.4.1.7\n10.4.2.9\n"
