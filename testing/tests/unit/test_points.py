# SPDX-License-Identifier: Apache-2.0
"""The crash campaign's reading of strace's output, on which its claim to completeness rests."""

from nvdra_testing.crash_campaigns import points
from nvdra_testing.crash_campaigns.points import KillPoint
from nvdra_testing.faults import strace

NODE = points.TraceNames("/lane", 6443)
PLUGIN = "/lane/k/plugins/gpu.nvidia.com"
SPEC = "/lane/cdi/spec.a-device_580.95.05"
DRA = f'22<UNIX-STREAM:[9->8,"{PLUGIN}/dra.sock"]>'
SETTINGS, HEADERS = r"\0\0\0\4\1\0\0\0\0", r"\0\0\1\1\4\0\0\0\1\210"

TRACE = rf"""
10 write(2</lane/plugin-1.log>, "I", 1) = 1
11 write(7</proc/10/task/11/comm>, "store", 5) = 5
10 write(3<anon_inode:[eventfd]>, "\1\0\0\0\0\0\0\0", 8 <unfinished ...>
11 pwrite64(8<{PLUGIN}/state.sqlite-wal>, "a", 1, 0) = 1
10 <... write resumed>) = 8
10 write(2</lane/plugin-1.log>, "I", 1) = 1
10 sendmsg({DRA}, {{msg_name=NULL, msg_iov=[{{iov_base="{SETTINGS}", iov_len=9}}]}}, 0) = 9
10 connect(9<TCP:[7]>, {{sa_family=AF_INET, sin_port=htons(6443)}}, 16) = -1 EINPROGRESS
10 sendto(9<TCP:[127.0.0.1:5->127.0.0.1:6443]>, "\27", 1, 0, NULL, 0) = 1
10 sendto(4<UNIX-STREAM:[5->6]>, "\0", 1, 0, NULL, 0) = 1
12 rename("{SPEC}.0123456789abcdef.tmp", "/lane/cdi/a-device_580.95.05.yaml") = 0
11 pwrite64(8<{PLUGIN}/state.sqlite-wal>, "b", 1, 1) = 1
10 sendmsg({DRA}, {{msg_iov=[{{iov_base="{SETTINGS}"}}, {{iov_base="{HEADERS}"}}]}}, 0) = ?
11 +++ killed by SIGKILL +++
"""


def test_calls_are_told_by_thread_and_by_what_they_change_in_order() -> None:
    found, _ = points.kill_points(strace.parse(TRACE, {}), NODE)
    renamed = "cdi/spec.a-device_<generation>.<random> to cdi/a-device_<generation>.yaml"
    assert [(place.thread, point) for point, place in found] == [
        ("store", KillPoint("pwrite64", "state.sqlite-wal", 1)),
        ("main", KillPoint("sendto", "API server", 1)),
        ("", KillPoint("rename", renamed, 1)),
        ("store", KillPoint("pwrite64", "state.sqlite-wal", 2)),
        ("main", KillPoint("sendmsg", "answer on the DRA socket", 1)),
    ]


def test_what_changes_only_the_process_is_counted_and_is_no_point() -> None:
    _, others = points.kill_points(strace.parse(TRACE, {}), NODE)
    assert dict(others) == {
        "wake-up of a thread": 2,
        "the log": 2,
        "HTTP/2 housekeeping": 1,
        "connection to a server": 1,
    }


def test_a_call_that_nobody_knows_counts_as_a_change() -> None:
    calls = strace.parse('10 write(5</somewhere/else>, "x", 1) = 1', {})
    (only,), _ = points.kill_points(calls, NODE)
    assert only[0] == KillPoint("write", "/somewhere/else", 1)


def test_the_point_of_death_is_the_call_that_never_returned() -> None:
    calls = strace.parse(TRACE, {})
    answer = KillPoint("sendmsg", "answer on the DRA socket", 1)
    assert points.point_of_death(calls, "sendmsg", NODE) == answer
    assert points.point_of_death(calls, "write", NODE) is None
    assert points.point_of_death(calls[:-1], "sendmsg", NODE) is None


def test_a_death_is_seen_also_where_another_threads_line_came_between() -> None:
    trace = f"""
11 fsync(9</lane/cdi> <unfinished ...>
10 write(5<{PLUGIN}/instance.lock>, "x", 1 <unfinished ...>
11 <... fsync resumed>) = ?
11 +++ killed by SIGKILL +++
"""
    assert points.point_of_death(strace.parse(trace, {}), "fsync", NODE) == KillPoint(
        "fsync", "cdi", 1
    )


def test_a_daemons_directory_and_its_file_system_have_the_same_names_on_every_node() -> None:
    shm = f"{PLUGIN}/mps/0c5ecb2e-55b4-4b1c-8a1d-0d5f0b9e1f00-a8cac/shm"
    trace = f"""
10 mkdir("{shm}", 0755) = 0
10 mount("shm", "{shm}", "tmpfs", MS_NOSUID, "size=1k") = 0
10 umount2("{shm}", MNT_DETACH) = 0
"""
    found, _ = points.kill_points(strace.parse(trace, {}), NODE)
    named = "mps/<uid>-<devices>/shm"
    assert [point for point, _ in found] == [
        KillPoint(call, named, 1) for call in ("mkdir", "mount", "umount2")
    ]
