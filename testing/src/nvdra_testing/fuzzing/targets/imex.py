# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's programs for IMEX print, and the template of its configuration."""

import json
from contextlib import suppress
from typing import Final

from nvdra_api.errors import PermanentError
from nvdra_api.ids import NodeName
from nvdra_imex_daemon.configuration import imex_config
from nvdra_runtime.computedomain import imex_ctl, imex_links
from nvdra_runtime.computedomain.imex_links import DomainHosts

from nvdra_testing.fuzzing import documents, function_target

_HOSTS: Final = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
_NODES: Final = {
    "nodes": {
        str(number): {
            "status": "READY",
            "host": host,
            "connections": {
                str(other): {"host": _HOSTS[other], "status": "CONNECTED", "changed": True}
                for other in range(len(_HOSTS))
            },
            "changed": True,
            "version": "580.95.05",
            "hostname": f"node-{number}",
        }
        for number, host in enumerate(_HOSTS)
    },
    "timestamp": "10/8/2026 10:31:57.142",
    "status": "UP",
}


def imex_nodes(case: bytes) -> None:
    """The answer to `nvidia-imex-ctl -N -j`, and what becomes of it in an annotation."""
    members = {host: NodeName(f"node-{at}") for at, host in enumerate(_HOSTS)}
    try:
        found = imex_links.read_answer(case, DomainHosts(["10.0.0.1", "node-0"], members))
    except imex_links.UnreadableAnswerError as error:
        str(error).encode()
        return
    text = imex_links.encode(imex_links.lasting(found, found)) or ""
    text.encode()
    imex_links.decode(text)


def imex_status(case: bytes) -> None:
    """The answer to `nvidia-imex-ctl -q`."""
    for code in (0, 1):
        reason = imex_ctl.not_ready_reason(code, case)
        reason.encode()
        imex_ctl.is_started(reason)


def imex_template(case: bytes) -> None:
    """The template of the configuration, from the directory that plugin and daemon share."""
    values = {imex_config.COMMAND_IP_FIELD: "10.0.0.1", imex_config.NODES_FILE_FIELD: "/nodes"}
    with suppress(PermanentError):
        imex_config.render_config(case.decode(errors="replace"), values).encode()


_TEMPLATE: Final = (
    b"IMEX_CMD_BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}\n{{- /* a comment */ -}}\n"
    b"IMEX_NODE_CONFIG_FILE={{ .IMEXDaemonNodesConfigPath }}\nLOG_LEVEL=4\n"
)
_JSON: Final = [json.dumps(_NODES).encode()]

TARGETS: Final = (
    function_target.target(imex_nodes, documents.mutations([_NODES]), _JSON),
    function_target.target(imex_status, documents.damaged_bytes([b"READY\n"]), [b"READY\n"], 0.3),
    function_target.target(imex_template, documents.damaged_bytes([_TEMPLATE]), [_TEMPLATE], 0.3),
)
