# SPDX-License-Identifier: Apache-2.0
"""The table that a plugin's `status` prints, and what it says when it cannot."""

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from nvdra_runtime.kubeletplugin import status_command
from nvdra_runtime.kubeletplugin.debug_client import Unreachable
from nvdra_runtime.kubeletplugin.status_command import Column

PROGRAM = "nvdra-gpu-plugin"
COLUMNS = (Column("PCI", "pci"), Column("UUID", "uuid"), Column("PRODUCT", "product"))

UID = "3f0c1a52-7c1b-4d0e-8a55-0123456789ab"
STATUS: dict[str, Any] = {
    "driver": "gpu.nvidia.com",
    "node": "node-a",
    "version": "0.1.0",
    "now": "2026-11-05T12:00:00Z",
    "started": "2026-11-05T08:57:00Z",
    "problems": {},
    "devices": [
        {
            "name": "gpu-0",
            "pci": "0000:0f:00.0",
            "uuid": "GPU-0",
            "product": "NVIDIA H100",
            "state": "held",
            "claims": [f"default/train:{UID}"],
        },
        {
            "name": "gpu-1",
            "pci": "0000:2d:00.0",
            "uuid": "GPU-1",
            "product": "NVIDIA H100",
            "state": "free",
            "claims": [],
        },
        {"name": "gpu-2", "state": "left out", "problem": "GPU is lost", "claims": []},
    ],
    "claims": [
        {
            "namespace": "default",
            "name": "train",
            "uid": UID,
            "state": "prepared",
            "since": "2026-11-05T11:55:48Z",
            "devices": ["gpu-0"],
            "pods": ["train-0"],
        }
    ],
    "failures": [
        {
            "namespace": "default",
            "name": "next",
            "uid": "u",
            "operation": "prepare",
            "reason": "DeviceInUse",
            "message": "gpu-0 is held by claim default/train; it is free once that has ended",
            "since": "2026-11-05T11:59:00Z",
            "latest": "2026-11-05T11:59:50Z",
            "count": 2,
            "ended": None,
            "trace_id": "a" * 32,
        }
    ],
}

TABLE = f"""\
gpu.nvidia.com on node-a: version 0.1.0, up 3h3m
ready

DEVICE  STATE     PCI           UUID   PRODUCT      HELD BY
gpu-0   held      0000:0f:00.0  GPU-0  NVIDIA H100  default/train:{UID}
gpu-1   free      0000:2d:00.0  GPU-1  NVIDIA H100
gpu-2   left out
    GPU is lost

CLAIM          UID                                   STATE     SINCE                         DEVICES  PODS
default/train  {UID}  prepared  2026-11-05T11:55:48Z (4m12s)  gpu-0    train-0

LAST     CLAIM         OPERATION  REASON       TIMES  NOW     TRACE
10s ago  default/next  prepare    DeviceInUse  2      stands  {"a" * 32}
    gpu-0 is held by claim default/train; it is free once that has ended
"""  # noqa: E501


def run(*argv: str) -> int:
    return status_command.main(argv, PROGRAM, "0.1.0", COLUMNS)


def test_devices_holders_and_failures_are_three_tables() -> None:
    assert status_command.table(STATUS, COLUMNS) == TABLE


def test_what_keeps_the_plugin_from_being_ready_comes_first() -> None:
    problems = {"driver": "libnvidia-ml.so.1 is not there", "kubelet": "not registered"}
    lines = status_command.table({**STATUS, "problems": problems}, COLUMNS).splitlines()
    assert lines[1:3] == [
        "NOT READY, driver: libnvidia-ml.so.1 is not there",
        "NOT READY, kubelet: not registered",
    ]


def test_a_remark_of_a_check_that_passes_is_no_trouble() -> None:
    remarks = {"fabric": "clique 6f1c.2"}
    lines = status_command.table({**STATUS, "remarks": remarks}, COLUMNS).splitlines()
    assert lines[1:3] == ["ready", "fabric: clique 6f1c.2"]


@pytest.mark.parametrize(
    ("latest", "ended", "now"),
    [
        ("11:55:00", None, "stands"),
        ("11:54:59", None, "not repeated"),
        ("11:54:59", "2026-11-05T11:58:00Z", "over"),
    ],
)
def test_a_failure_that_the_kubelet_no_longer_repeats_does_not_stand(
    latest: str, ended: str | None, now: str
) -> None:
    failure = {**STATUS["failures"][0], "latest": f"2026-11-05T{latest}Z", "ended": ended}
    lines = status_command.table({**STATUS, "failures": [failure]}, COLUMNS).splitlines()
    assert f"  {now}  {'a' * 32}" in lines[-2]


def test_a_node_on_which_nothing_happens_says_so_in_words() -> None:
    text = status_command.table({**STATUS, "devices": [], "claims": [], "failures": []}, COLUMNS)
    for words in ("no devices", "no claims are held", "no failures since the plugin started"):
        assert words in text


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that accepts and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


class _Other(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Say nothing: the test speaks."""


@pytest.fixture
def other() -> Iterator[str]:
    """A port of another program."""
    with HTTPServer(("127.0.0.1", 0), _Other) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_plugin_that_does_not_run_is_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(f"--debug-endpoint={endpoint}") == 1
    told = capsys.readouterr().err
    assert told.startswith(f"Error: the plugin cannot be asked at {endpoint}: ")
    assert "Connection refused" in told
    assert "kubectl exec" in told


def test_a_plugin_that_hangs_is_told_apart_from_one_that_does_not_run(silent: str) -> None:
    with pytest.raises(Unreachable, match="accepts and does not answer"):
        status_command.fetch_status(PROGRAM, silent, timeout_s=0.05)


def test_another_program_on_the_port_is_told(other: str) -> None:
    with pytest.raises(Unreachable, match="answers 404 to /debug/status"):
        status_command.fetch_status(PROGRAM, other)


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_shows_examples_and_version_the_release(
    capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    with pytest.raises(SystemExit) as left:
        run(flag)
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert "nvdra-gpu-plugin status" in text
    assert ("kubectl -n nvdra-system exec" in text) == (flag == "--help")


@pytest.mark.parametrize("endpoint", ["6060", "127.0.0.1:65536", "127.0.0.1:0", ":x", ":99999"])
def test_an_address_that_nobody_can_be_asked_at_is_refused(
    capsys: pytest.CaptureFixture[str], endpoint: str
) -> None:
    with pytest.raises(SystemExit) as left:
        run(f"--debug-endpoint={endpoint}")
    assert left.value.code == 1
    told = capsys.readouterr().err
    assert f'--debug-endpoint: "{endpoint}" is not valid: must be host:port' in told


HOSTILE = "\x1b[31m\x9b2J\u202e\ud800\tx\nready"


def hostile(value: Any, key: str = "") -> Any:
    """The document with a tenant's text after each text that is not a time."""
    if isinstance(value, dict):
        return {name: hostile(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    is_text = isinstance(value, str) and key not in ("now", "started", "since", "latest")
    return f"{value}{HOSTILE}" if is_text else value


def test_no_text_of_a_tenant_controls_the_terminal_or_adds_a_line() -> None:
    document = {**STATUS, "problems": {"slices": "a conflict"}, "remarks": {"gpus": "none"}}
    shown = status_command.table(hostile(document), COLUMNS)
    assert len(shown.splitlines()) == len(status_command.table(document, COLUMNS).splitlines())
    assert all(line.isprintable() for line in shown.split("\n"))
