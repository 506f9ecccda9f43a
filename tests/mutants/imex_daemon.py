# SPDX-License-Identifier: Apache-2.0
"""Mutants of nvdra-imex-daemon: entries, peers, files, the supervised process."""

from typing import Final

from tests.mutants.mutant import Mutant

_DAEMON: Final = "packages/nvdra-imex-daemon/src/nvdra_imex_daemon"
_UNIT: Final = "packages/nvdra-imex-daemon/tests/unit"

_ENTRIES: Final = f"{_UNIT}/membership/test_entries.py"
_STORE: Final = f"{_UNIT}/membership/test_member_store.py"
_PROBLEMS: Final = f"{_UNIT}/membership/test_problems.py"
_PEERS: Final = f"{_UNIT}/configuration/test_peers.py"
_HOSTS: Final = f"{_UNIT}/configuration/test_hosts_file.py"
_LINKS: Final = "packages/nvdra-imex-daemon/tests/component/test_imex_links.py"
_LIFECYCLE: Final = f"{_UNIT}/process/test_lifecycle.py"

MUTANTS: Final = (
    Mutant(
        "links: the clique of the node's GPUs is not said",
        f"{_DAEMON}/membership/links_annotation.py",
        "replace(self._links, node_clique=self._node_clique)",
        "self._links",
        "A domain stays Ready while the GPUs of a node are in another clique.",
        component=(f"{_LINKS}::test_gpus_that_have_left_the_daemons_clique_are_told",),
    ),
    Mutant(
        "entry: a node that comes back gets another index",
        f"{_DAEMON}/membership/entries.py",
        "    index = _kept_index(stored, member, used)\n",
        "    index = None\n",
        "Peers know a daemon that was restarted under another name.",
        (_ENTRIES,),
    ),
    Mutant(
        "entry: an index that another one has is kept",
        f"{_DAEMON}/membership/entries.py",
        "not 0 <= index < member.max_nodes or index in used:",
        "not 0 <= index < member.max_nodes:",
        "Two daemons have one name, and IMEX connects to either.",
        (_ENTRIES,),
    ),
    Mutant(
        "entry: indexes of other cliques are used",
        f"{_DAEMON}/membership/entries.py",
        '        if each.get(node_field) != member.node and each.get("cliqueID") == member.clique',
        "        if each.get(node_field) != member.node",
        "Domains of several cliques are full too early.",
        (_ENTRIES,),
    ),
    Mutant(
        "entry: a successor's entry is removed",
        f"{_DAEMON}/membership/entries.py",
        "        if not (each.get(node_field) == member.node and is_written_by(each, member))",
        "        if not (each.get(node_field) == member.node)",
        "A daemon that ends takes the one that follows it out of the domain.",
        (_ENTRIES,),
    ),
    Mutant(
        "entry: the preferred index is not taken",
        f"{_DAEMON}/membership/entries.py",
        "        return preferred_index\n",
        "        pass\n",
        "After a clique was lost, peers know each other under wrong names.",
        (_ENTRIES,),
    ),
    Mutant(
        "entry: the message of an earlier problem stays",
        f"{_DAEMON}/membership/entries.py",
        '        entry.pop("message", None)\n',
        "",
        "A daemon that works is told to have a problem.",
        (_ENTRIES,),
    ),
    Mutant(
        "store: a patch does not test the entry",
        f"{_DAEMON}/membership/member_store.py",
        '        {"op": "test", "path": pointer, "value": old},\n',
        "",
        "A daemon overwrites the entry of another node.",
        (_STORE,),
    ),
    Mutant(
        "store: a patch changes the index",
        f"{_DAEMON}/membership/member_store.py",
        'if old is None or new is None or old.get("index") != new.get("index"):',
        "if old is None or new is None:",
        "Two daemons get the same index at the same time.",
        (_STORE,),
    ),
    Mutant(
        "store: a clique has no owner",
        f"{_DAEMON}/membership/member_store.py",
        "owners if is_owner else [*owners, self._pod.owner_reference()]",
        "owners",
        "Cliques of deleted domains stay.",
        (_STORE,),
    ),
    Mutant(
        "problems: a problem is reported at once",
        f"{_DAEMON}/membership/problems.py",
        "        return max(0.0, self.began + REPORT_AFTER_S - now)",
        "        return 0.0",
        "Every start of a domain is reported as a failure.",
        (_PROBLEMS,),
    ),
    Mutant(
        "problems: messages are written as fast as they change",
        f"{_DAEMON}/membership/problems.py",
        "    return max(0.0, written_at + MESSAGE_INTERVAL_S - now)",
        "    return 0.0",
        "Each start of a rack is thousands of writes.",
        (_PROBLEMS,),
    ),
    Mutant(
        "peers: two entries of one index are both used",
        f"{_DAEMON}/configuration/peers.py",
        "if is_own or (indexes[peer.index] == 1 and addresses[peer.ip] == 1):",
        "if is_own or addresses[peer.ip] == 1:",
        "IMEX connects to the wrong node.",
        (_PEERS,),
    ),
    Mutant(
        "peers: two entries of one address are both used",
        f"{_DAEMON}/configuration/peers.py",
        "if is_own or (indexes[peer.index] == 1 and addresses[peer.ip] == 1):",
        "if is_own or indexes[peer.index] == 1:",
        "IMEX connects to the wrong node.",
        (_PEERS,),
    ),
    Mutant(
        "peers: those of other cliques are used",
        f"{_DAEMON}/configuration/peers.py",
        '        if entry.get("cliqueID") == member.clique:',
        "        if True:",
        "IMEX waits for nodes that NVLink does not reach.",
        (_PEERS,),
    ),
    Mutant(
        "hosts: lines of others are removed",
        f"{_DAEMON}/configuration/hosts_file.py",
        "    kept = [line for line in text.splitlines(keepends=True) if not _is_in_block(line)]",
        "    kept: list[str] = []",
        "localhost does not resolve in the daemon's pod.",
        (_HOSTS,),
    ),
    Mutant(
        "clique: the daemon does not say that the node has left it",
        f"{_DAEMON}/membership/node_clique_monitor.py",
        "other = None if now is None or now == self._own else now",
        "other = None",
        "A domain is Ready with nothing wrong, and a node is in another fabric.",
        (f"{_UNIT}/membership/test_node_clique_monitor.py",),
    ),
    Mutant(
        "monitor: a hung IMEX is left alone",
        f"{_DAEMON}/process/imex_monitor.py",
        "            self._end_if_hung(problem, supervisor)\n",
        "",
        "A node is lost for its domain until somebody deletes the daemon's pod.",
        component=(
            "packages/nvdra-imex-daemon/tests/component/test_hung_imex.py::"
            "test_an_imex_that_gives_no_answer_is_started_again_with_an_event",
        ),
    ),
    Mutant(
        "monitor: an IMEX that waits for others counts as hung",
        f"{_DAEMON}/process/imex_monitor.py",
        'if not is_asked or imex_ctl.is_answer("" if problem is None else problem.message):',
        "if problem is None:",
        "A member that waits for a lost node is restarted every five minutes.",
        component=(
            "packages/nvdra-imex-daemon/tests/component/test_hung_imex.py::"
            "test_an_imex_that_answers_and_is_not_ready_is_left_alone",
        ),
    ),
    Mutant(
        "names: those of all domains are the same",
        f"{_DAEMON}/configuration/dns_names.py",
        "    if kind != PeerNames.DOMAIN:",
        "    if True:",
        "IMEX is connected to another tenant's that has got a peer's address.",
        (f"{_UNIT}/configuration/test_dns_names.py",),
        component=(
            "packages/nvdra-imex-daemon/tests/component/test_other_domains.py::"
            "test_a_daemon_of_another_domain_with_a_peers_address_is_refused",
        ),
    ),
    Mutant(
        "links: a connection to a stranger stays",
        f"{_DAEMON}/process/link_monitor.py",
        "            self._end_connections()\n",
        "",
        "IMEX keeps the connection to an address that another domain has got.",
        (f"{_UNIT}/process/test_link_monitor.py",),
    ),
    Mutant(
        "links: each look signals again",
        f"{_DAEMON}/process/link_monitor.py",
        "            self._signalled |= dict.fromkeys(due, now)\n",
        "",
        "Connections in use are made again every ten seconds.",
        (f"{_UNIT}/process/test_link_monitor.py",),
    ),
    Mutant(
        "links: what was wrong once is reported",
        f"{_DAEMON}/process/link_monitor.py",
        "imex_links.lasting(self._last, now), now",
        "now, now",
        "Every signal makes the domain Degraded for a moment.",
        (f"{_UNIT}/process/test_link_monitor.py",),
    ),
    Mutant(
        "hosts: places without a peer are not named",
        f"{_DAEMON}/configuration/hosts_file.py",
        "        for index, name in enumerate(names.all(name_count))",
        "        for index, name in enumerate(names.all(name_count))\n        if index in ips",
        "IMEX asks DNS for them every few seconds, for ever.",
        (_HOSTS,),
    ),
    Mutant(
        "peers: one that is only starting counts as reachable",
        f"{_DAEMON}/configuration/peers.py",
        "if peer.index != own_index and (peer.is_ready or known.get(peer.index) == peer.ip)",
        "if peer.index != own_index",
        "The signal comes before the peer listens, and IMEX tries again after minutes.",
        (_PEERS,),
    ),
    Mutant(
        "hosts: earlier peers stay",
        f"{_DAEMON}/configuration/hosts_file.py",
        "or dns_names.PREFIX in line",
        "",
        "A name resolves to the address of a daemon that is gone.",
        (_HOSTS,),
    ),
    Mutant(
        "process: restarts without a pause",
        f"{_DAEMON}/process/lifecycle.py",
        "    if life.phase is Phase.DOWN and is_wanted and now >= life.due:",
        "    if life.phase is Phase.DOWN and is_wanted:",
        "An IMEX that cannot start burns a processor.",
        (_LIFECYCLE,),
    ),
    Mutant(
        "process: signals without a pause",
        f"{_DAEMON}/process/lifecycle.py",
        "    return max(now + SIGNAL_DELAY_S, last_signal + SIGNAL_INTERVAL_S)",
        "    return now",
        "IMEX ignores a signal that comes too soon, and knows only some peers.",
        (_LIFECYCLE,),
    ),
    Mutant(
        "process: a stable child counts as failing",
        f"{_DAEMON}/process/lifecycle.py",
        "    failures = 1 if was_stable else life.failures + 1",
        "    failures = life.failures + 1",
        "After a month of rare crashes a restart takes half a minute.",
        (_LIFECYCLE,),
    ),
    Mutant(
        "process: a child that does not end is not killed",
        f"{_DAEMON}/process/lifecycle.py",
        "        return ChildAction.KILL\n",
        "        return ChildAction.NOTHING\n",
        "A daemon's pod does not end.",
        (_LIFECYCLE,),
    ),
    Mutant(
        "queries: IMEX is asked as often when it is READY",
        f"{_DAEMON}/process/query_interval.py",
        "        return READY_INTERVAL_S",
        "        return 0.0",
        "A daemon burns a processor.",
        (f"{_UNIT}/process/test_query_interval.py",),
    ),
    Mutant(
        "index: one of another clique is used",
        f"{_DAEMON}/membership/index_file.py",
        'or stored.get("cliqueID") != self._clique:',
        "or False:",
        "A node that moved takes an index that is another node's in its new clique.",
        (f"{_UNIT}/membership/test_index_file.py",),
    ),
    Mutant(
        "kill: temporary files of a killed daemon stay",
        f"{_DAEMON}/configuration/imex_files.py",
        "            remove_temporary_files(self._config.parent, names)\n",
        "            del names\n",
        "A daemon in a crash loop fills the node's directory of the domain.",
        (f"{_UNIT}/configuration/test_imex_files.py",),
    ),
    Mutant(
        "kill: an entry that is right already is not remembered",
        f"{_DAEMON}/membership/member_list.py",
        "                self._remember_read(obj)\n",
        "",
        "After a kill IMEX is started with a hosts file without this node, and ends.",
        (f"{_UNIT}/membership/test_member_list.py",),
    ),
    Mutant(
        "kill: the lock is held before IMEX is READY",
        f"{_DAEMON}/process/ready_lock_holder.py",
        "            self._descriptor = ready_lock.create(self._directory, self._pod)\n",
        "            self._descriptor = ready_lock.create(self._directory, self._pod)\n"
        "            ready_lock.hold(self._descriptor)\n",
        "After a kill the entry still says Ready, and channels are released without an IMEX.",
        (f"{_UNIT}/process/test_ready_lock_holder.py",),
    ),
)
