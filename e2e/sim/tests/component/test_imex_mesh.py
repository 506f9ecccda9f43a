# SPDX-License-Identifier: Apache-2.0
"""Several nvidia-imex on a network of their own, known to each other by names (§16.1, §21.14)."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from nvdra_sim import imex_incidents, incidents
from nvdra_sim.testing.imex_fixtures import MakeTray, Tray, needs_ipv6, wait_until

NAMES = [f"compute-domain-daemon-{number:04d}" for number in range(18)]
HOSTS = {name: f"10.64.0.{number + 10}" for number, name in enumerate(NAMES[:3])}
ALL = {"n0": "CONNECTED", "n1": "CONNECTED", "n2": "CONNECTED"}
ELSEWHERE = "10.64.0.99"
PROMPT = {"signal_window_ms": 0, "retry_first_ms": 250}


Start = Callable[..., list[Tray]]


@pytest.fixture
def start(rack: MakeTray) -> Start:
    """Starts a daemon on each of so many trays, as nodes 0, 1, …; `connected` waits for all."""

    def run(
        count: int = 3, habits: Mapping[str, Any] = {}, connected: bool = True, **settings: str
    ) -> list[Tray]:
        hosts = dict(list(HOSTS.items())[:count])
        node = {"imex": {**PROMPT, **habits}}
        trays = [rack(f"tray-{number}", ip, node=node) for number, ip in enumerate(hosts.values())]
        for tray, ip in zip(trays, hosts.values(), strict=True):
            tray.write_hosts(hosts)
            tray.configure(NAMES[:count], IMEX_CMD_BIND_INTERFACE_IP=ip, **settings)
            tray.start()
        for tray in trays:
            tray.wait_status("READY")
            if connected:
                tray.wait_connections(**dict(list(ALL.items())[:count]))
        return trays

    return run


def usr1(tray: Tray) -> None:
    assert tray.daemon is not None
    tray.daemon.send_signal(signal.SIGUSR1)


def rows(tray: Tray) -> dict[str, list[str]]:
    """The whole table of connections as this tray's daemon knows it."""
    return {
        number: [one["status"] for one in node["connections"].values()]
        for number, node in tray.domain()["nodes"].items()
    }


def domain_becomes(tray: Tray, status: str) -> None:
    wait_until(lambda: tray.domain().get("status") == status, lambda: f"{status}: {tray.domain()}")


# §21.14


def test_three_daemons_with_names_lose_a_member_and_get_it_back_with_another_address(
    start: Start,
) -> None:
    first, second, third = start()
    for tray in (first, second, third):
        domain_becomes(tray, "UP")
        assert [node["status"] for node in tray.domain()["nodes"].values()] == ["READY"] * 3

    assert second.kill(signal.SIGKILL) == -signal.SIGKILL
    for tray in (first, third):
        tray.wait_connections(n1="RECOVERING", n0="CONNECTED", n2="CONNECTED")
        domain_becomes(tray, "DEGRADED")
        assert tray.domain()["nodes"]["1"]["status"] == "UNAVAILABLE"
        assert rows(tray)["1"] == ["INVALID"] * 3
        assert tray.status() == "READY"

    moved = {**HOSTS, NAMES[1]: ELSEWHERE}
    second.move_to(ELSEWHERE)
    second.configure(NAMES[:3], IMEX_CMD_BIND_INTERFACE_IP=ELSEWHERE)
    second.write_hosts(moved)
    second.start()
    second.wait_status("READY")
    second.wait_connections(**ALL)
    for tray in (first, third):
        tray.write_hosts(moved)
        usr1(tray)
        tray.wait_connections(**ALL)
        assert ELSEWHERE in tray.log()
        tray.wait_log("node 1 (compute-domain-daemon-0001) is a new instance")
    for tray in (first, second, third):
        domain_becomes(tray, "UP")


def test_a_daemon_with_another_node_list_is_refused_by_the_others(start: Start) -> None:
    first, second = start(2)
    second.kill(signal.SIGTERM)
    second.configure(NAMES[:2][::-1], IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[1]])
    second.start()
    second.wait_status("READY")
    first.wait_connections(n1="NODE_MAP_MISMATCH")
    second.wait_connections(n1="NODE_MAP_MISMATCH")
    assert (first.status(), second.status()) == ("READY", "READY")
    first.wait_log("Node configuration mapping mismatch with node 1")
    assert "!M!" in first.ctl("-N").stdout
    domain_becomes(first, "DEGRADED")


def test_a_daemon_that_is_in_no_place_of_its_node_list_ends(rack: MakeTray) -> None:
    tray = rack("tray-0", "10.64.0.10")
    tray.write_hosts({NAMES[1]: ELSEWHERE})
    tray.configure(NAMES, IMEX_CMD_BIND_INTERFACE_IP="10.64.0.10")
    assert tray.start().wait(timeout=20) == 1
    assert "No matching network interface found for any IP addresses" in tray.log()


def test_nodes_may_be_listed_by_address(rack: MakeTray) -> None:
    trays = {ip: rack(f"tray-{ip[-1]}", ip) for ip in ("10.64.0.1", "10.64.0.2")}
    become_a_domain(trays)


@needs_ipv6
def test_nodes_may_have_addresses_of_ip_version_6(rack: MakeTray) -> None:
    become_a_domain(trays_of_two_versions(rack, "fd64::1", "fd64::2"))


@needs_ipv6
def test_link_local_addresses_need_the_interface(rack: MakeTray) -> None:
    trays = trays_of_two_versions(rack, "fe80::1", "fe80::2")
    settings = {"NETWORK_INTERFACE": "eth0", "IMEX_CMD_BIND_INTERFACE_IP": ""}
    become_a_domain(trays, "BIND_INTERFACE_IP", **settings)


def trays_of_two_versions(rack: MakeTray, *ips: str) -> dict[str, Tray]:
    """A tray for each of these addresses of IP version 6, which it has beside one of version 4."""
    trays = {ip: rack(f"tray-{ip[-1]}", f"10.64.0.{ip[-1]}") for ip in ips}
    for ip, tray in trays.items():
        added = tray.run("ip", "address", "add", f"{ip}/64", "dev", "eth0", "nodad")
        assert added.returncode == 0, added.stderr
    return trays


def become_a_domain(
    trays: Mapping[str, Tray], bound: str = "IMEX_CMD_BIND_INTERFACE_IP", **settings: str
) -> None:
    """Start the trays with a list of their addresses, and wait until all are connected."""
    for ip, tray in trays.items():
        tray.configure(list(trays), **settings, **{bound: ip})
        tray.start()
    for tray in trays.values():
        domain_becomes(tray, "UP")
        assert [node["host"] for node in tray.domain()["nodes"].values()] == list(trays)


def test_an_older_version_takes_no_names(rack: MakeTray) -> None:
    older = {"driver": {"version": "570.133.20"}}
    tray = rack("tray-0", HOSTS[NAMES[0]], **older)
    tray.write_hosts({NAMES[0]: HOSTS[NAMES[0]]})
    tray.configure(NAMES[:1], IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[0]])
    assert tray.start().wait(timeout=20) == 1
    assert "is no address, and this version takes no names" in tray.log()


def test_a_name_server_that_does_not_answer_delays_nobody(rack: MakeTray) -> None:
    tray = rack("tray-0", HOSTS[NAMES[0]])
    tray.write_hosts({NAMES[17]: HOSTS[NAMES[0]]})
    tray.configure(NAMES, IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[0]])
    (tray.directory / "nsswitch.conf").write_text("hosts: files dns\n")
    (tray.directory / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    tray.run("mount", "--bind", tray.directory / "resolv.conf", "/etc/resolv.conf")
    mute = "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 53))"
    command = tray.host_command(sys.executable, "-c", f"{mute}; print(flush=True); input()")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.read(1) == b"\n"
        tray.start()
        tray.wait_status("READY")
        assert "the name does not resolve" not in tray.log()
        assert f"Identified this node as ID 17 ({NAMES[17]})" in tray.log()
        server.communicate(b"\n")


# Members come and go


def test_a_member_that_leaves_in_order_is_disconnected_at_once_and_comes_back(
    start: Start,
) -> None:
    first, second = start(2)
    assert second.kill(signal.SIGTERM) == 0
    first.wait_connections(n1="DISCONNECTED")
    first.wait_log("connection to node 1 (compute-domain-daemon-0001) ended: it shuts down")
    domain_becomes(first, "DEGRADED")
    second.start()
    first.wait_connections(n1="CONNECTED")
    domain_becomes(first, "UP")


def test_a_lost_member_is_given_up_after_the_grace_time(start: Start) -> None:
    first, second = start(2, IMEX_NODE_DISCONNECTED_GRACE_TIME="1")
    second.kill(signal.SIGKILL)
    first.wait_connections(n1="RECOVERING")
    first.wait_connections(n1="DISCONNECTED")
    first.wait_log("did not come back within 1 s")


def test_a_name_that_appears_later_is_found_by_a_signal(start: Start, rack: MakeTray) -> None:
    third = rack("tray-2", HOSTS[NAMES[2]])
    slow = {"node": {"imex": {**PROMPT, "name_retry_ms": 3_600_000, "retry_first_ms": 3_600_000}}}
    first, second = (rack(f"tray-{number}", HOSTS[NAMES[number]], **slow) for number in (0, 1))
    for tray, name in ((first, NAMES[0]), (second, NAMES[1])):
        tray.write_hosts(dict(list(HOSTS.items())[:2]))
        tray.configure(NAMES, IMEX_CMD_BIND_INTERFACE_IP=HOSTS[name])
        tray.start()
        tray.wait_status("READY")
    usr1(first)
    for tray in (first, second):
        tray.wait_connections(
            n0="CONNECTED", n1="CONNECTED", n2="NEVER_CONNECTED", n17="NEVER_CONNECTED"
        )
        assert tray.status() == "READY"
    third.write_hosts(HOSTS)
    third.configure(NAMES, IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[2]])
    third.start()
    third.wait_connections(**ALL)
    for tray in (first, second):
        tray.write_hosts(HOSTS)
        usr1(tray)
        tray.wait_connections(**ALL)
    wait_until(
        lambda: rows(third)["0"] == ["CONNECTED"] * 3 + ["NEVER_CONNECTED"] * 15,
        lambda: str(rows(third)),
    )
    domain_becomes(third, "DEGRADED")


def test_a_silent_member_is_lost_although_its_host_answers(start: Start) -> None:
    first, second = start(2, {"ctl_patience_ms": 500})
    imex_incidents.disturb(second.state, hang=True)
    first.wait_connections(n1="RECOVERING")
    first.wait_log("ended: it is silent")
    imex_incidents.clear(second.state)
    first.wait_connections(n1="CONNECTED")
    second.wait_connections(n0="CONNECTED")


def test_every_node_sees_the_state_of_the_others(start: Start) -> None:
    first, second = start(2)
    imex_incidents.disturb(second.state, never_ready=True)
    wait_until(
        lambda: first.domain()["nodes"]["1"]["status"] == "INIT_GPU", lambda: str(first.domain())
    )
    assert first.status() == "READY"


def test_a_slow_start_keeps_the_others_out(start: Start) -> None:
    first, second = start(2)
    second.kill(signal.SIGTERM)
    imex_incidents.disturb(second.state, slow_start_ms=3_600_000)
    second.start()
    second.wait_status("INITIALIZING")
    first.wait_connections(n1="DISCONNECTED")
    imex_incidents.clear(second.state)
    second.wait_status("READY")
    first.wait_connections(n1="CONNECTED")


# Signals


def test_a_signal_soon_after_another_is_ignored(rack: MakeTray) -> None:
    tray = rack("tray-0", "10.64.0.10", node={"imex": {"signal_window_ms": 3_600_000}})
    tray.configure(["10.64.0.10"], IMEX_CMD_BIND_INTERFACE_IP="10.64.0.10")
    tray.start()
    tray.wait_status("READY")
    usr1(tray)
    tray.wait_log("SIGUSR1: all outgoing connections start again")
    usr1(tray)
    tray.wait_log("SIGUSR1 is ignored: it comes too soon after the last")
    assert tray.log().count("all outgoing connections start again") == 1


def test_a_signal_restarts_the_connections_that_work_too(start: Start) -> None:
    first, second = start(2)
    usr1(first)
    first.wait_log("connection to node 1 (compute-domain-daemon-0001) ended: all connections start")
    first.wait_connections(n1="CONNECTED")
    assert "all connections start again" not in second.log()
    assert "new instance" not in first.log()


def test_a_hangup_writes_the_lines_that_are_above_the_level(rack: MakeTray) -> None:
    tray = rack("tray-0", "10.64.0.10")
    tray.configure(["10.64.0.10"], IMEX_CMD_BIND_INTERFACE_IP="10.64.0.10", LOG_LEVEL="2")
    tray.start()
    tray.wait_status("READY")
    assert "state READY" not in tray.log()
    assert tray.daemon is not None
    tray.daemon.send_signal(signal.SIGHUP)
    tray.wait_log("state READY")
    assert tray.kill(signal.SIGTERM) == 0
    assert "state SHUTTING_DOWN" in tray.log()
    assert tray.log().count("state READY") == 1


# What is asked of the others


def test_without_the_command_port_of_a_peer_the_domain_stays_degraded(start: Start) -> None:
    first, second = start(2)
    domain_becomes(first, "UP")
    blocked = ["-p", "tcp", "--dport", "50005", "-j", "DROP"]
    second.run("iptables", "-A", "INPUT", *blocked).check_returncode()
    domain_becomes(first, "DEGRADED")
    node = first.domain()["nodes"]["1"]
    assert (node["status"], node["version"], node["hostName"]) == ("UNAVAILABLE", "", "N/A")
    assert first.connections()[1] == "CONNECTED"
    assert first.status() == "READY"


@pytest.mark.parametrize("patience_ms", [0, 500])
def test_a_daemon_that_does_not_describe_itself_lets_the_others_wait(
    start: Start, patience_ms: int
) -> None:
    """It is known that the question can hang, and not whether it always ends."""
    first, second = start(2, {"ctl_patience_ms": patience_ms})
    imex_incidents.disturb(second.state, nodes_hang=True)
    if patience_ms:
        domain_becomes(first, "DEGRADED")
        assert first.domain()["nodes"]["1"]["status"] == "UNAVAILABLE"
    else:
        asked = first.host_command(first.program("nvidia-imex-ctl"), "-c", first.config, "-N")
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(asked, env={}, timeout=2, check=False, capture_output=True)
    assert (first.status(), second.status()) == ("READY", "READY")


def test_without_gpus_the_version_says_so(rack: MakeTray) -> None:
    trays = [rack(f"tray-{number}", ip) for number, ip in enumerate(list(HOSTS.values())[:2])]
    for tray, ip in zip(trays, HOSTS.values(), strict=False):
        incidents.unload_driver(tray.state)
        tray.configure(list(HOSTS.values())[:2], IMEX_CMD_BIND_INTERFACE_IP=ip)
        tray.start("--nogpu")
    for tray in trays:
        domain_becomes(tray, "UP")
        assert [node["version"] for node in tray.domain()["nodes"].values()] == ["NO_GPU"] * 2


# How soon it tries again


@pytest.mark.parametrize(
    "habits",
    [{"retry_first_ms": 15_000, "retry_ceiling_ms": 125_000}, {"retry_first_ms": 60_000}],
    ids=["growing", "every minute"],
)
def test_a_peer_that_comes_later_is_found_at_once_by_a_signal_only(
    rack: MakeTray, habits: dict[str, Any]
) -> None:
    node = {"imex": {**PROMPT, **habits}}
    names = NAMES[:2]
    hosts = {name: HOSTS[name] for name in names}
    first, second = (rack(f"tray-{n}", HOSTS[name], node=node) for n, name in enumerate(names))
    for tray, name in ((first, names[0]), (second, names[1])):
        tray.write_hosts(hosts)
        tray.configure(names, IMEX_CMD_BIND_INTERFACE_IP=HOSTS[name])
    first.start()
    first.wait_log("no connection to node 1")
    second.start()
    second.wait_connections(n0="CONNECTED")
    time.sleep(2)
    assert first.connections()[1] == "NEVER_CONNECTED"
    usr1(first)
    first.wait_connections(n1="CONNECTED")


@pytest.mark.parametrize(
    ("address", "connection"),
    [("127.0.0.2", "NODE_MAP_MISMATCH"), ("127.255.255.255", "NEVER_CONNECTED")],
)
def test_an_empty_place_may_lead_to_nobody_but_the_daemon_itself(
    rack: MakeTray, address: str, connection: str
) -> None:
    """A daemon that listens at all addresses meets itself at those of the loopback interface."""
    tray = rack("tray-0", HOSTS[NAMES[0]])
    tray.write_hosts({NAMES[0]: HOSTS[NAMES[0]], NAMES[1]: address})
    tray.configure(NAMES[:2], IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[0]])
    tray.start()
    tray.wait_status("READY")
    tray.wait_log("no connection to node 1" if connection == "NEVER_CONNECTED" else "mismatch")
    assert tray.connections()[1] == connection


def test_stale_names_stay_until_the_fault_ends(start: Start) -> None:
    first, second = start(2)
    imex_incidents.disturb(first.state, dns_stale=True)
    second.kill(signal.SIGTERM)
    moved = {**HOSTS, NAMES[1]: ELSEWHERE}
    second.move_to(ELSEWHERE)
    for tray in (first, second):
        tray.write_hosts(moved)
    second.configure(NAMES[:2], IMEX_CMD_BIND_INTERFACE_IP=ELSEWHERE)
    second.start()
    second.wait_connections(n0="CONNECTED")
    usr1(first)
    first.wait_log("SIGUSR1 is ignored")
    assert first.connections()[1] == "DISCONNECTED"
    imex_incidents.clear(first.state)
    usr1(first)
    first.wait_connections(n1="CONNECTED")
    assert f"connected to node 1 ({NAMES[1]}) at {ELSEWHERE}" in first.log()


# Refusals


@pytest.mark.parametrize("is_permanent", [True, False])
def test_a_mismatch_blocks_both_sides_until_a_process_is_another_one(
    start: Start, is_permanent: bool
) -> None:
    """It is not known whether the mismatched process, or the one that noticed it, has to end."""
    first, second = start(2, {"mismatch_is_permanent": is_permanent})
    imex_incidents.disturb(second.state, version="570.86.15")
    first.wait_connections(n1="VERSION_MISMATCH")
    second.wait_connections(n0="VERSION_MISMATCH")
    assert (first.status(), second.status()) == ("READY", "READY")
    assert second.domain()["nodes"]["1"]["version"] == "570.86.15"
    assert "!V!" in first.ctl("-N").stdout
    usr1(first)
    first.wait_log("SIGUSR1: all outgoing connections start again")
    second.kill(signal.SIGTERM)
    imex_incidents.clear(second.state)
    second.start()
    second.wait_status("READY")
    if is_permanent:
        second.wait_connections(n0="VERSION_MISMATCH")
        assert first.connections()[1] == "VERSION_MISMATCH"
        first.kill(signal.SIGTERM)
        second.kill(signal.SIGTERM)
        for tray in (first, second):
            tray.start()
    first.wait_connections(n1="CONNECTED")
    second.wait_connections(n0="CONNECTED")


def test_authentication_on_one_side_alone_connects_nobody(start: Start) -> None:
    first, second = start(2)
    second.kill(signal.SIGTERM)
    second.configure(
        NAMES[:2],
        IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[1]],
        IMEX_ENABLE_AUTH_ENCRYPTION="1",
    )
    second.start()
    second.wait_log("only one of the two authenticates")
    assert second.connections()[0] == "NEVER_CONNECTED"
    assert first.connections()[1] == "DISCONNECTED"


def test_a_refused_peer_is_out_on_both_sides_and_the_rest_stays(start: Start) -> None:
    first, second, third = start()
    imex_incidents.disturb(first.state, refused=[2])
    first.wait_connections(n2="RECOVERING", n1="CONNECTED")
    third.wait_connections(n0="RECOVERING", n1="CONNECTED")
    domain_becomes(second, "DEGRADED")
    assert rows(second)["1"] == ["CONNECTED"] * 3
    imex_incidents.disturb(first.state, refused=[])
    for tray in (first, second, third):
        domain_becomes(tray, "UP")


# Quorum


def test_after_a_crash_a_daemon_waits_for_those_it_was_connected_to(start: Start) -> None:
    first, second, third = start()
    third.kill(signal.SIGTERM)
    first.wait_connections(n2="DISCONNECTED")
    assert first.kill(signal.SIGKILL) == -signal.SIGKILL
    second.kill(signal.SIGKILL)
    first.start()
    first.wait_status("WAITING_FOR_RECOVERY")
    first.wait_log("waiting for the 1 nodes it was connected to")
    assert first.connections() == {0: "CONNECTED", 1: "NEVER_CONNECTED", 2: "NEVER_CONNECTED"}
    second.configure(
        NAMES[:3], IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[1]], IMEX_WAIT_FOR_QUORUM="NONE"
    )
    second.start()
    first.wait_status("READY")
    assert second.status() == "READY"


def test_after_an_end_in_order_nobody_is_waited_for(start: Start) -> None:
    first, second = start(2)
    first.kill(signal.SIGTERM)
    second.kill(signal.SIGTERM)
    first.start()
    first.wait_status("READY")
    assert "WAITING_FOR_RECOVERY" not in first.log()


def test_after_a_crash_with_another_node_list_nobody_is_waited_for(start: Start) -> None:
    first, second = start(2)
    first.kill(signal.SIGKILL)
    second.kill(signal.SIGKILL)
    first.configure(NAMES, IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[0]])
    first.start()
    first.wait_status("READY")
    assert "WAITING_FOR_RECOVERY" not in first.log()
