"""Several nvidia-imex on a network of their own, known to each other by names (§16.1, §21.14)."""

import signal
from collections.abc import Callable

import pytest
from nvdra_sim import imex_incidents
from nvdra_sim.imex_fixtures import MakeTray, Tray, until

NAMES = [f"compute-domain-daemon-{number:04d}" for number in range(4)]
HOSTS = {name: f"10.64.0.{number + 10}" for number, name in enumerate(NAMES[:3])}
ALL = {"n0": "CONNECTED", "n1": "CONNECTED", "n2": "CONNECTED"}
ELSEWHERE = "10.64.0.99"
PROMPT = {"node": {"imex": {"signal_window_ms": 0}}}

Start = Callable[..., list[Tray]]


@pytest.fixture
def start(rack: MakeTray) -> Start:
    """Starts a daemon on each of so many trays, as nodes 0, 1, …; `connected` waits for all."""

    def run(count: int = 3, connected: bool = True, **settings: str) -> list[Tray]:
        hosts = dict(list(HOSTS.items())[:count])
        trays = [rack(f"tray-{number}", ip, **PROMPT) for number, ip in enumerate(hosts.values())]
        for tray, ip in zip(trays, hosts.values(), strict=True):
            tray.knows(hosts)
            tray.configure(NAMES[:count], IMEX_CMD_BIND_INTERFACE_IP=ip, **settings)
            tray.start()
        for tray in trays:
            tray.becomes("READY")
            if connected:
                tray.has(**dict(list(ALL.items())[:count]))
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
    until(lambda: tray.domain().get("status") == status, lambda: f"{status}: {tray.domain()}")


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
        tray.has(n1="RECOVERING", n0="CONNECTED", n2="CONNECTED")
        domain_becomes(tray, "DEGRADED")
        assert tray.domain()["nodes"]["1"]["status"] == "UNAVAILABLE"
        assert rows(tray)["1"] == ["INVALID"] * 3
        assert tray.word() == "READY"

    moved = {**HOSTS, NAMES[1]: ELSEWHERE}
    second.move_to(ELSEWHERE)
    second.configure(NAMES[:3], IMEX_CMD_BIND_INTERFACE_IP=ELSEWHERE)
    second.knows(moved)
    second.start()
    second.becomes("READY")
    second.has(**ALL)
    for tray in (first, third):
        tray.knows(moved)
        usr1(tray)
        tray.has(**ALL)
        assert tray.domain()["nodes"]["1"]["ip"] == ELSEWHERE
        tray.says("node 1 (compute-domain-daemon-0001) is a new instance")
    for tray in (first, second, third):
        domain_becomes(tray, "UP")


def test_a_daemon_with_another_node_list_is_refused_by_the_others(start: Start) -> None:
    first, second = start(2)
    second.kill(signal.SIGTERM)
    second.configure(NAMES[:2][::-1], IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[1]])
    second.start()
    second.becomes("READY")
    first.has(n1="NODE_MAP_MISMATCH")
    second.has(n1="NODE_MAP_MISMATCH")
    assert (first.word(), second.word()) == ("READY", "READY")
    domain_becomes(first, "DOWN")


def test_a_daemon_that_is_in_no_place_of_its_node_list_ends(rack: MakeTray) -> None:
    tray = rack("tray-0", "10.64.0.10")
    tray.knows({NAMES[1]: ELSEWHERE})
    tray.configure(NAMES, IMEX_CMD_BIND_INTERFACE_IP="10.64.0.10")
    assert tray.start().wait(timeout=20) == 1
    assert "no address of this host is in the node list" in tray.log()


# Members come and go


def test_a_member_that_leaves_in_order_is_disconnected_at_once_and_comes_back(
    start: Start,
) -> None:
    first, second = start(2)
    assert second.kill(signal.SIGTERM) == 0
    first.has(n1="DISCONNECTED")
    first.says("connection to node 1 (compute-domain-daemon-0001) ended: it shuts down")
    domain_becomes(first, "DOWN")
    second.start()
    first.has(n1="CONNECTED")
    domain_becomes(first, "UP")


def test_a_lost_member_is_given_up_after_the_grace_time(start: Start) -> None:
    first, second = start(2, IMEX_NODE_DISCONNECTED_GRACE_TIME="1")
    second.kill(signal.SIGKILL)
    first.has(n1="RECOVERING")
    first.has(n1="DISCONNECTED")
    first.says("did not come back within 1 s")


def test_a_name_that_appears_later_is_found_by_a_signal(start: Start, rack: MakeTray) -> None:
    first, second = start(2)
    third = rack("tray-2", HOSTS[NAMES[2]])
    for tray, name in ((first, NAMES[0]), (second, NAMES[1])):
        tray.configure(NAMES, IMEX_CMD_BIND_INTERFACE_IP=HOSTS[name])
        usr1(tray)
        tray.says("the node list has changed")
    for tray in (first, second):
        tray.has(n0="CONNECTED", n1="CONNECTED", n2="NEVER_CONNECTED", n3="NEVER_CONNECTED")
        assert tray.word() == "READY"
    third.knows(HOSTS)
    third.configure(NAMES, IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[2]])
    third.start()
    third.has(**ALL)
    for tray in (first, second):
        tray.knows(HOSTS)
        usr1(tray)
        tray.has(**ALL)
    until(
        lambda: rows(third)["0"] == ["CONNECTED"] * 3 + ["NEVER_CONNECTED"],
        lambda: str(rows(third)),
    )
    domain_becomes(third, "DEGRADED")


def test_a_silent_member_is_lost_although_its_host_answers(start: Start) -> None:
    first, second = start(2)
    imex_incidents.disturb(second.state, hang=True)
    first.has(n1="RECOVERING")
    first.says("ended: it is silent")
    imex_incidents.calm(second.state)
    first.has(n1="CONNECTED")
    second.has(n0="CONNECTED")


def test_every_node_sees_the_state_of_the_others(start: Start) -> None:
    first, second = start(2)
    imex_incidents.disturb(second.state, never_ready=True)
    until(
        lambda: first.domain()["nodes"]["1"]["status"] == "NOT_READY", lambda: str(first.domain())
    )
    assert first.word() == "READY"


def test_a_slow_start_keeps_the_others_out(start: Start) -> None:
    first, second = start(2)
    second.kill(signal.SIGTERM)
    imex_incidents.disturb(second.state, slow_start_ms=3_600_000)
    second.start()
    second.becomes("INITIALIZING")
    first.has(n1="DISCONNECTED")
    imex_incidents.calm(second.state)
    second.becomes("READY")
    first.has(n1="CONNECTED")


# Signals


def test_a_signal_soon_after_another_is_ignored(rack: MakeTray) -> None:
    tray = rack("tray-0", "10.64.0.10", node={"imex": {"signal_window_ms": 3_600_000}})
    tray.configure(["10.64.0.10"], IMEX_CMD_BIND_INTERFACE_IP="10.64.0.10")
    tray.start()
    tray.becomes("READY")
    usr1(tray)
    tray.says("SIGUSR1: names are looked up again")
    usr1(tray)
    tray.says("SIGUSR1 is ignored: it comes too soon after the last")
    assert tray.log().count("names are looked up again") == 1


def test_stale_names_stay_until_the_fault_ends(start: Start) -> None:
    first, second = start(2)
    imex_incidents.disturb(first.state, dns_stale=True)
    second.kill(signal.SIGTERM)
    moved = {**HOSTS, NAMES[1]: ELSEWHERE}
    second.move_to(ELSEWHERE)
    for tray in (first, second):
        tray.knows(moved)
    second.configure(NAMES[:2], IMEX_CMD_BIND_INTERFACE_IP=ELSEWHERE)
    second.start()
    second.has(n0="CONNECTED")
    usr1(first)
    first.says("SIGUSR1 is ignored")
    assert first.connections()[1] == "DISCONNECTED"
    assert first.domain()["nodes"]["1"]["ip"] == HOSTS[NAMES[1]]
    imex_incidents.calm(first.state)
    usr1(first)
    first.has(n1="CONNECTED")
    assert first.domain()["nodes"]["1"]["ip"] == ELSEWHERE


# Refusals


def test_another_version_is_refused_on_both_sides_until_it_is_the_same(start: Start) -> None:
    first, second = start(2)
    imex_incidents.disturb(second.state, version="570.86.15")
    first.has(n1="VERSION_MISMATCH")
    second.has(n0="VERSION_MISMATCH")
    assert (first.word(), second.word()) == ("READY", "READY")
    assert second.domain()["nodes"]["1"]["version"] == "570.86.15"
    imex_incidents.disturb(second.state, version="")
    first.has(n1="CONNECTED")
    second.has(n0="CONNECTED")


def test_authentication_on_one_side_alone_connects_nobody(start: Start) -> None:
    first, second = start(2)
    second.kill(signal.SIGTERM)
    second.configure(
        NAMES[:2],
        IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[1]],
        IMEX_ENABLE_AUTH_ENCRYPTION="1",
    )
    second.start()
    second.says("only one of the two authenticates")
    assert second.connections()[0] == "NEVER_CONNECTED"
    assert first.connections()[1] == "DISCONNECTED"


def test_a_refused_peer_is_out_on_both_sides_and_the_rest_stays(start: Start) -> None:
    first, second, third = start()
    imex_incidents.disturb(first.state, refused=[2])
    first.has(n2="RECOVERING", n1="CONNECTED")
    third.has(n0="RECOVERING", n1="CONNECTED")
    domain_becomes(second, "DEGRADED")
    assert rows(second)["1"] == ["CONNECTED"] * 3
    imex_incidents.disturb(first.state, refused=[])
    for tray in (first, second, third):
        domain_becomes(tray, "UP")


# Quorum


def test_after_a_crash_a_daemon_waits_for_those_it_was_connected_to(start: Start) -> None:
    first, second, third = start()
    third.kill(signal.SIGTERM)
    first.has(n2="DISCONNECTED")
    assert first.kill(signal.SIGKILL) == -signal.SIGKILL
    second.kill(signal.SIGKILL)
    first.start()
    first.becomes("WAITING_FOR_QUORUM")
    first.says("waiting for the 1 nodes it was connected to")
    assert first.connections() == {0: "CONNECTED", 1: "NEVER_CONNECTED", 2: "NEVER_CONNECTED"}
    second.configure(
        NAMES[:3], IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[1]], IMEX_WAIT_FOR_QUORUM="NONE"
    )
    second.start()
    first.becomes("READY")
    assert second.word() == "READY"


def test_after_an_end_in_order_nobody_is_waited_for(start: Start) -> None:
    first, second = start(2)
    first.kill(signal.SIGTERM)
    second.kill(signal.SIGTERM)
    first.start()
    first.becomes("READY")
    assert "WAITING_FOR_QUORUM" not in first.log()


def test_after_a_crash_with_another_node_list_nobody_is_waited_for(start: Start) -> None:
    first, second = start(2)
    first.kill(signal.SIGKILL)
    second.kill(signal.SIGKILL)
    first.configure(NAMES, IMEX_CMD_BIND_INTERFACE_IP=HOSTS[NAMES[0]])
    first.start()
    first.becomes("READY")
    assert "WAITING_FOR_QUORUM" not in first.log()
