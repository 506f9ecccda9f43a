"""The list of members as a daemon has read and written it."""

from nvdra_api.ids import CliqueID, DomainUID, NodeName, PodUID
from nvdra_imex_daemon.membership.entries import MemberIdentity, MemberStatus
from nvdra_imex_daemon.membership.member_list import MemberList
from nvdra_imex_daemon.membership.member_store import CliqueMemberStore, Pod
from nvdra_testing import virtual_time
from nvdra_testing.faults.recorded_api import Answer, RecordedApi, Request

CLIQUE = CliqueID("2df84740-d3cb-b5ce-4e7e-98352b5a71b5.2")
DOMAIN = DomainUID("11111111-2222-3333-4444-555555555555")
POD = Pod("nvdra", "daemon-x7k2p", "uid")
US = MemberIdentity(CLIQUE, NodeName("tray-07"), "10.4.1.7", PodUID("uid"), 4)
STARTING = MemberStatus(is_ready=False, message="starting")


def test_after_a_kill_the_members_are_known_with_an_entry_that_is_right_already() -> None:
    store = CliqueMemberStore(DOMAIN, US, POD)
    entry = {
        "nodeName": US.node,
        "ipAddress": US.ip,
        "cliqueID": CLIQUE,
        "index": 2,
        "status": "NotReady",
        "message": "starting",
        "podUID": US.pod_uid,
    }
    stored = store.completed(None, [entry])
    stored["metadata"] |= {"resourceVersion": "7", "uid": "clique"}

    def answer(request: Request) -> Answer:
        assert request.line.startswith("GET "), "nothing is to be written"
        return 200, stored

    async def main() -> None:
        members = MemberList(RecordedApi(answer), store, US, lambda _: None)
        assert await members.report(STARTING) == 2
        assert members.entries() == [entry]  # though nothing is watched yet

    virtual_time.run_with_virtual_time(main)
