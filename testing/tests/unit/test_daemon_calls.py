# SPDX-License-Identifier: Apache-2.0
"""The crash campaign's reading of an IMEX daemon's calls, on which its completeness rests."""

from nvdra_testing.crash_campaigns import daemon_calls, points
from nvdra_testing.crash_campaigns.points import KillPoint
from nvdra_testing.faults import strace
from nvdra_testing.faults.strace import MAIN

NODE = points.TraceNames("/lane", 6443)
API = "8<TCP:[127.0.0.1:1->127.0.0.1:6443]>"
LOCK = "6</run/imexd/ready.lock>"
POD = "/api/v1/namespaces/nvdra-faef7048/pods/daemon-node-a-0a1b2c3d"

START = rf"""
21 write(5</proc/1/task/9/comm>, "files", 5) = 5
21 rename("/run/imexd/.ready.lock.0a1b2c3d", "/run/imexd/ready.lock") = 0
21 fcntl({LOCK}, F_OFD_SETLK, {{l_type=F_UNLCK, l_whence=SEEK_SET}}) = 0
20 write(2</lane/daemon-node-a/log>, "I", 1) = 1
20 fcntl(7<socket:[1]>, F_GETFL) = 2
20 sendto({API}, "PATCH {POD} HTTP/1.1\r\n\r\n{{}}", 9, 0, NULL, 0) = 9
20 vfork( <unfinished ...>
20 <... vfork resumed>) = 33
20 vfork() = 34
20 fcntl({LOCK}, F_OFD_SETLK, {{l_type=F_WRLCK, l_whence=SEEK_SET}}) = 0
20 fcntl({LOCK}, F_OFD_SETLK, {{l_type=F_WRLCK, l_whence=SEEK_SET}}) = 0
22 write(1</lane/daemon-node-a/out>, "READY", 5) = 5
"""
STOP = f"""
fcntl({LOCK}, F_OFD_SETLK, {{l_type=F_UNLCK, l_whence=SEEK_SET}}) = 0
vfork() = 35
kill(12, SIGTERM) = 0
"""


def test_a_start_changes_files_the_api_the_lock_and_starts_one_program() -> None:
    calls = strace.parse(START, {20: MAIN})
    made, others = points.count_points(daemon_calls.call_targets(calls, NODE, is_start=True))
    renamed = "/run/imexd/.ready.lock.<random> to /run/imexd/ready.lock"
    assert [(place.thread, place.index, point) for point, place in made] == [
        ("files", 1, KillPoint("rename", renamed, 1)),
        (MAIN, 1, KillPoint("sendto", "PATCH nvdra/pods/daemon-node-a", 1)),
        (MAIN, 1, KillPoint("vfork", "nvidia-imex", 1)),
        (MAIN, 2, KillPoint("fcntl", "/run/imexd/ready.lock F_WRLCK", 1)),
    ]
    assert dict(others) == {
        "/run/imexd/ready.lock F_UNLCK": 1,
        "/run/imexd/ready.lock F_WRLCK": 1,
        "flags of a descriptor": 1,
        "log and output": 2,
        "query of nvidia-imex": 1,
    }


def test_a_running_daemon_has_an_nvidia_imex_and_the_lock() -> None:
    calls = strace.parse(STOP, {20: MAIN})
    made, others = points.count_points(daemon_calls.call_targets(calls, NODE, is_start=False))
    assert [point for point, _ in made] == [
        KillPoint("fcntl", "/run/imexd/ready.lock F_UNLCK", 1),
        KillPoint("kill", "nvidia-imex SIGTERM", 1),
    ]
    assert dict(others) == {"query of nvidia-imex": 1}
