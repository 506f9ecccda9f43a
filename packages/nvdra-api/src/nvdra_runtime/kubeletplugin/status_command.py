# SPDX-License-Identifier: Apache-2.0
"""The command `status` of a plugin: prints the state of the running plugin.

It is a separate process, which reads `/debug/status` of the running plugin over the loopback
interface, and no files. `status_report` creates this document.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, NamedTuple

from nvdra_api import json_text, terminal_text
from pydantic import BaseModel, ConfigDict, Field, field_validator

from nvdra_runtime.kubeletplugin import debug_client
from nvdra_runtime.kubeletplugin.debug_client import Unreachable
from nvdra_runtime.process import output
from nvdra_runtime.settings import addresses
from nvdra_runtime.settings import loader as process_settings
from nvdra_runtime.settings.loader import Flag

_TIMEOUT_S = 5.0
"""The plugin answers from memory, so that it should never take longer."""

_REPEATED_WITHIN_S = 300.0
"""A failure that the kubelet has not repeated in this time is not said to stand. It repeats a
prepare 60 to 90 s after the answer, for which it waits up to 45 s. A claim that is not in its cache
it does not unprepare, so that no call ends the failure. Source: docs/reference/kubelet-plugin.md,
"Unprepare", "Deadlines and retries".
"""

_EXAMPLES = """
Examples:
  kubectl -n nvdra-system get pods -o wide -l app.kubernetes.io/name={program}
  kubectl -n nvdra-system exec PLUGIN_POD -- {program} status
  kubectl -n nvdra-system exec PLUGIN_POD -- {program} status -o json | jq .failures
  kubectl -n nvdra-system port-forward PLUGIN_POD 6060 & sleep 2; {program} status; kill %1
"""


class Column(NamedTuple):
    """A column of the device table: its heading, and its key in a device's document."""

    heading: str
    key: str


Columns = Sequence[Column]


class Settings(BaseModel):
    """Prints the devices, the claims that hold them and the last failures of the running plugin."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    o: Annotated[Literal["table", "json"], Flag(aliases=("output",), env=())] = Field(
        default="table", description="Format: table (for people) or json (for programs)."
    )
    debug_endpoint: str = Field(
        default="127.0.0.1:6060",
        min_length=1,
        description="The plugin's own --debug-endpoint: where it serves /debug/status.",
    )

    @field_validator("debug_endpoint")
    @classmethod
    def _is_address(cls, address: str) -> str:
        return addresses.validate(address, lowest_port=1)


def main(argv: Sequence[str], program: str, version: str, columns: Columns) -> int:
    """Print the status. The exit code is 1 if the plugin does not respond.

    Args:
        argv: The arguments after `status`.
        program: The plugin's command.
        version: Its release.
        columns: Columns of the device table besides name, state and claims.
    """
    settings = process_settings.load(
        Settings,
        program=f"{program} status",
        version=version,
        argv=argv,
        epilogue=_EXAMPLES.format(program=program),
    )
    try:
        status = fetch_status(program, settings.debug_endpoint)
    except Unreachable as error:
        output.print_error(f"Error: {error}")
        return 1
    text = json.dumps(status, indent=2) + "\n" if settings.o == "json" else table(status, columns)
    output.print_or_exit(text)
    return 0


def fetch_status(program: str, endpoint: str, timeout_s: float = _TIMEOUT_S) -> Mapping[str, Any]:
    """Get the status of the plugin at `host:port`.

    Raises:
        Unreachable: No plugin responds there within the timeout.
    """
    answer = debug_client.ask(program, endpoint, "GET", "/debug/status", timeout_s)
    return _decoded(endpoint, answer.code, answer.body)


def _decoded(endpoint: str, code: int, text: bytes) -> Mapping[str, Any]:
    try:
        status: Mapping[str, Any] = json_text.parse(text) if code == HTTPStatus.OK else {}
    except ValueError:
        status = {}
    if "devices" not in status:
        raise Unreachable(
            f"{endpoint} answers {code} to /debug/status, without a status: it is another program, "
            "or another release of the plugin"
        )
    return status


def table(status: Mapping[str, Any], columns: Columns) -> str:
    """The status as text, about 120 columns wide."""
    return "\n".join(map(terminal_text.line, _lines(status, columns))) + "\n"


def _lines(status: Mapping[str, Any], columns: Columns) -> Iterator[str]:
    now = _parse_time(status["now"])
    yield (
        f"{status['driver']} on {status['node']}: version {status['version']}, "
        f"up {_age(now, status['started'])}"
    )
    yield from _readiness(status["problems"], status.get("remarks", {}))
    if active := status.get("standing_by_for"):
        yield ""
        yield f"standing by for {active}: ask that instance for devices and claims"
        return
    yield ""
    yield from _devices(status["devices"], columns)
    yield ""
    yield from _claims(status["claims"], now)
    yield ""
    yield from _failures(status["failures"], now)


def _readiness(problems: Mapping[str, str], remarks: Mapping[str, str]) -> Iterator[str]:
    if not problems:
        yield "ready"
    for name, problem in problems.items():
        yield f"NOT READY, {name}: {problem}"
    for name, remark in remarks.items():
        yield f"{name}: {remark}"


def _devices(devices: Sequence[Mapping[str, Any]], columns: Columns) -> Iterator[str]:
    if not devices:
        yield "no devices"
        return
    rows = [
        (
            each["name"],
            each["state"],
            *(each.get(column.key, "") for column in columns),
            ", ".join(each["claims"]),
        )
        for each in devices
    ]
    told = (column.heading for column in columns)
    head, *lines = _aligned(("DEVICE", "STATE", *told, "HELD BY"), rows)
    yield head
    for line, device in zip(lines, devices, strict=True):
        yield line
        for key in ("note", "problem"):
            if text := device.get(key):
                yield f"    {text}"


def _claims(claims: Sequence[Mapping[str, Any]], now: datetime) -> Iterator[str]:
    if not claims:
        yield "no claims are held"
        return
    rows = [
        (
            _name(claim),
            claim["uid"],
            claim["state"],
            f"{claim['since']} ({_age(now, claim['since'])})",
            ", ".join(claim["devices"]),
            ", ".join(claim["pods"]),
        )
        for claim in claims
    ]
    yield from _aligned(("CLAIM", "UID", "STATE", "SINCE", "DEVICES", "PODS"), rows)


def _failures(failures: Sequence[Mapping[str, Any]], now: datetime) -> Iterator[str]:
    if not failures:
        yield "no failures since the plugin started"
        return
    rows = [
        (
            f"{_age(now, each['latest'])} ago",
            _name(each),
            each["operation"],
            each["reason"],
            str(each["count"]),
            _present_state(each, now),
            each["trace_id"],
        )
        for each in failures
    ]
    heads = ("LAST", "CLAIM", "OPERATION", "REASON", "TIMES", "NOW", "TRACE")
    head, *lines = _aligned(heads, rows)
    yield head
    for line, failure in zip(lines, failures, strict=True):
        yield line
        yield f"    {failure['message']}"


def _present_state(failure: Mapping[str, Any], now: datetime) -> str:
    if failure["ended"]:
        return "over"
    age_s = (now - _parse_time(failure["latest"])).total_seconds()
    return "stands" if age_s <= _REPEATED_WITHIN_S else "not repeated"


def _name(claim: Mapping[str, Any]) -> str:
    return f"{claim['namespace']}/{claim['name']}"


def _aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Left-aligned columns, as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for cells in (heads, *rows):
        padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _age(now: datetime, then: str) -> str:
    """An age as kubectl shows it: `5m12s`, `3h4m`, `12d`."""
    seconds = max(0, round((now - _parse_time(then)).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 2:
        return f"{seconds}s"
    if hours < 3:
        return f"{minutes}m{seconds % 60}s"
    return f"{hours}h{minutes % 60}m" if days < 2 else f"{days}d{hours % 24}h"
