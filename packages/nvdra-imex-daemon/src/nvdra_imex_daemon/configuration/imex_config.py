# SPDX-License-Identifier: Apache-2.0
"""The contents of IMEX's two files: its configuration, from a template, and the list of its peers.

Source: docs/reference/imex.md, "The run command", "DNS names", "IP addresses".
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from nvdra_api.errors import PermanentError, Reason

from nvdra_imex_daemon.configuration.dns_names import DnsNames

COMMAND_IP_FIELD: Final = "IMEXCmdBindInterfaceIP"
NODES_FILE_FIELD: Final = "IMEXDaemonNodesConfigPath"

_ACTION: Final = re.compile(
    r"\{\{(?P<left>-\s)?(?P<inside>.*?)(?:(?P<right>\s-)?(?P<end>\}\})|\Z)", re.DOTALL
)
"""An action of a Go template, with the markers that trim white space next to it. An unclosed one
reaches to the end of the text: if it were no match, its end would be looked for from every `{{`."""
_FIELD: Final = re.compile(r"\.(\w+)")
_COMMENT: Final = re.compile(r"/\*.*\*/", re.DOTALL)


def render_config(template: str, values: Mapping[str, str]) -> str:
    """The configuration: the template with its placeholders filled in.

    The template is a Go text/template, because plugin and daemon may come from different drivers.
    Fields, comments and the markers that trim white space are supported.

    Args:
        template: The template that the plugin has written.
        values: Values of the fields `COMMAND_IP_FIELD` and `NODES_FILE_FIELD`.

    Raises:
        PermanentError: `InvalidConfig`: The template contains anything else, or an action without
            an end.
    """
    filled: list[str] = []
    position, is_trimming = 0, False
    for match in _ACTION.finditer(template):
        before = template[position : match.start()]
        before = before.lstrip() if is_trimming else before
        filled += (before.rstrip() if match["left"] else before, _value(match, values))
        position, is_trimming = match.end(), match["right"] is not None
    rest = template[position:]
    return "".join([*filled, rest.lstrip() if is_trimming else rest])


def render_names(names: DnsNames, count: int) -> str:
    """The DNS names of all possible peers, one per line. IMEX uses those that resolve."""
    return "".join(f"{name}\n" for name in names.all(count))


def render_addresses(ips: Iterable[str]) -> str:
    """The peers' addresses in this order, one per line."""
    return "".join(f"{ip}\n" for ip in ips)


def _value(match: re.Match[str], values: Mapping[str, str]) -> str:
    inside = match["inside"].strip() if match["end"] else ""
    if _COMMENT.fullmatch(inside):
        return ""
    field = _FIELD.fullmatch(inside)
    if field is None or field[1] not in values:
        line = match.string.count("\n", 0, match.start()) + 1
        raise PermanentError(
            Reason.INVALID_CONFIG,
            f"line {line} of the template of IMEX's configuration contains {match[0]}, which this "
            "daemon does not support",
            "run the daemon and the plugin of the same release: the plugin writes the template",
        )
    return values[field[1]]
