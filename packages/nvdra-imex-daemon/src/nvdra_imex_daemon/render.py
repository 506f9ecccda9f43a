"""IMEX's two files: its configuration, from the template beside it, and the list of its peers.

Source: spec/compute-domain.md §8.3, §8.5, §8.6.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from nvdra_api.types.errors import PermanentError, Reason

from nvdra_imex_daemon import peers

COMMAND_IP: Final = "IMEXCmdBindInterfaceIP"
NODES_FILE: Final = "IMEXDaemonNodesConfigPath"

_ACTION: Final = re.compile(r"\{\{(?P<left>-\s)?(?P<inside>.*?)(?P<right>\s-)?\}\}", re.DOTALL)
"""An action of a Go template, with its marks that trim white space beside it."""
_FIELD: Final = re.compile(r"\.(\w+)")
_COMMENT: Final = re.compile(r"/\*.*\*/", re.DOTALL)


def config(template: str, values: Mapping[str, str]) -> str:
    """The configuration: the template with its placeholders filled in.

    The template is a Go text/template because plugin and daemon may be of different origin; of that
    language, fields, comments and the marks that trim are understood.

    Args:
        template: What the plugin left for us.
        values: By field name: `COMMAND_IP`, `NODES_FILE`.

    Raises:
        PermanentError: `InvalidConfig`: the template asks for something else.
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


def names(places: int) -> str:
    """The peers by DNS name, all that there can ever be: IMEX takes those that resolve."""
    return "".join(f"{peers.name(index)}\n" for index in range(places))


def addresses(ips: Iterable[str]) -> str:
    """The peers by address, in this order."""
    return "".join(f"{ip}\n" for ip in ips)


def _value(match: re.Match[str], values: Mapping[str, str]) -> str:
    inside = match["inside"].strip()
    if _COMMENT.fullmatch(inside):
        return ""
    field = _FIELD.fullmatch(inside)
    if field is None or field[1] not in values:
        line = match.string.count("\n", 0, match.start()) + 1
        raise PermanentError(
            Reason.INVALID_CONFIG,
            f"line {line} of the template of IMEX's configuration says {match[0]}, which this "
            "daemon cannot fill in",
            "run a daemon and a plugin that fit: the template is the plugin's",
        )
    return values[field[1]]
