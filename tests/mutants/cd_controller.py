"""Mutants of nvdra-cd-controller: its writes, members, status, teardown."""

from typing import Final

from tests.mutants.mutant import Mutant

_CONTROLLER: Final = "packages/nvdra-cd-controller/src/nvdra_cd_controller"
_UNIT: Final = "packages/nvdra-cd-controller/tests/unit"

_WRITER: Final = f"{_UNIT}/test_object_writer.py"
_CLIQUE: Final = f"{_UNIT}/test_clique_plan.py"
_MEMBERS: Final = f"{_UNIT}/test_members.py"
_STATUS: Final = f"{_UNIT}/test_status.py"
_TEARDOWN: Final = f"{_UNIT}/test_teardown.py"

MUTANTS: Final = (
    Mutant(
        "templates: they are received with their specs",
        f"{_CONTROLLER}/informers.py",
        "                metadata_only=bool(kind),",
        "                metadata_only=False,",
        "A tenant's templates keep the controller busy for minutes.",
        component=(
            "packages/nvdra-cd-controller/tests/component/test_large_objects.py::"
            "test_templates_of_a_tenant_with_a_domains_label",
        ),
    ),
    Mutant(
        "templates: the spec of the one before",
        f"{_CONTROLLER}/template_specs.py",
        'return known.spec if known and known.uid == template["metadata"]["uid"] else None',
        "return known.spec if known else None",
        "A template that was created again with another spec is taken for the domain's.",
        (f"{_UNIT}/test_template_specs.py",),
    ),
    Mutant(
        "unlabel: every refusal is another domain's label",
        f"{_CONTROLLER}/object_writer.py",
        "            if await self._has_label(node, snapshot.uid):\n                raise\n",
        "",
        "A node keeps the label of a domain that is gone.",
        (_WRITER,),
    ),
    Mutant(
        "settings: a copied annotation counts",
        "packages/nvdra-api/src/nvdra_runtime/computedomain/domain_settings.py",
        ' or stored.get("uid", None if needs_uid else uid) != uid',
        "",
        "A domain that is restored from a backup has the limit of another one.",
        (f"{_UNIT}/test_fixed_settings.py",),
    ),
    Mutant(
        "unlabel: without `test`",
        f"{_CONTROLLER}/object_writer.py",
        '            {"op": "test", "path": path, "value": snapshot.uid},\n',
        "",
        "A node loses the label of another domain.",
        (_WRITER,),
    ),
    Mutant(
        "finalizers: written without a resourceVersion",
        f"{_CONTROLLER}/object_writer.py",
        'return {"resourceVersion": version, "finalizers": finalizers or None}',
        'return {"finalizers": finalizers or None}',
        "A finalizer that somebody has just added is removed.",
        (_WRITER,),
    ),
    Mutant(
        "delete: without a UID",
        f"{_CONTROLLER}/object_writer.py",
        "_deadline(), uid=uid, accept=",
        "_deadline(), accept=",
        "The DaemonSet of a domain that was made anew is deleted.",
        (_WRITER,),
    ),
    Mutant(
        "adopt: whatever has the name",
        f"{_CONTROLLER}/object_writer.py",
        "        if not children.belongs_to_domain(found.object, desired):",
        "        if False:",
        "A user's claim template is overwritten.",
        (_WRITER,),
    ),
    Mutant(
        "clique: entries of nodes that stay are removed",
        f"{_CONTROLLER}/clique_plan.py",
        'if each.get("nodeName") not in inputs.stale',
        'if each.get("nodeName") in inputs.stale',
        "A formed domain falls apart when a node leaves.",
        (_CLIQUE,),
    ),
    Mutant(
        "clique: two daemons get one index",
        f"{_CONTROLLER}/clique_plan.py",
        "            given[one.node] = wish\n            taken.add(wish)",
        "            given[one.node] = wish",
        "IMEX of two nodes has one name.",
        (_CLIQUE,),
    ),
    Mutant(
        "clique: an index of a daemon that writes itself is given away",
        f"{_CONTROLLER}/clique_plan.py",
        '    taken = {_index(each) for each in kept if each["nodeName"] not in said} | set(',
        "    taken = set(",
        "IMEX of two nodes has one name in a domain with daemons of the reference driver.",
        (_CLIQUE,),
    ),
    Mutant(
        "clique: writes do not wait for each other",
        f"{_CONTROLLER}/write_pace.py",
        "2.0 ** min(self.count - 1, 30)",
        "1.0",
        "A clique of n daemons is written n times and sent to n daemons each time.",
        (f"{_UNIT}/test_write_pace.py",),
    ),
    Mutant(
        "children: others' finalizers are removed",
        f"{_CONTROLLER}/children.py",
        "        return [*stored, *(each for each in desired if each not in stored)]",
        "        return desired",
        "An object goes before another controller is done with it.",
        (f"{_UNIT}/test_children.py",),
    ),
    Mutant(
        "members: a predecessor's word counts",
        f"{_CONTROLLER}/members.py",
        "        and is_current\n        and entry",
        "        and entry",
        "A domain is Ready by the word of a daemon that is gone.",
        (_MEMBERS,),
    ),
    Mutant(
        "members: a dead daemon's word counts",
        f"{_CONTROLLER}/members.py",
        "        and not pod.down_because\n",
        "",
        "A domain stays Ready after a tray is powered off.",
        (_MEMBERS,),
    ),
    Mutant(
        "members: a pod that has finished counts",
        f"{_CONTROLLER}/members.py",
        "        if pod.node and not pod.is_finished:",
        "        if pod.node:",
        "A node whose daemon has ended is a member.",
        (_MEMBERS,),
    ),
    Mutant(
        "members: entries of labelled nodes are stale",
        f"{_CONTROLLER}/members.py",
        "            return entry.node_name not in labelled",
        "            return True",
        "A daemon that restarts gets another index, and its peers lose it.",
        (_MEMBERS,),
    ),
    Mutant(
        "members: a pod that is being deleted is the current one",
        f"{_CONTROLLER}/members.py",
        "key=lambda pod: (not pod.is_terminating, pod.created, pod.uid)",
        "key=lambda pod: (pod.is_terminating, pod.created, pod.uid)",
        "The status of a node is that of a daemon that ends.",
        (_MEMBERS,),
    ),
    Mutant(
        "status: Ready with nodes that are missing",
        f"{_CONTROLLER}/status.py",
        "    if len(members) < domain.spec.num_nodes:",
        "    if False:",
        "Users are told that a domain is formed before it is.",
        (_STATUS,),
    ),
    Mutant(
        "status: every write changes the time of a condition",
        f"{_CONTROLLER}/status.py",
        "stored.last_transition_time if stored and stored.status == status else None",
        "None",
        "The status is written again and again.",
        (_STATUS,),
    ),
    Mutant(
        "status: an empty list of nodes",
        f"{_CONTROLLER}/status.py",
        '        **({"nodes": nodes} if nodes else {}),',
        '        "nodes": nodes,',
        "Scripts that wait for the field go on too early.",
        (_STATUS,),
    ),
    Mutant(
        "status: two daemons of one index are no conflict",
        f"{_CONTROLLER}/status.py",
        "        elif used[member.clique, member.index] > 1:",
        "        elif False:",
        "Nobody is told why IMEX does not connect.",
        (_STATUS,),
    ),
    Mutant(
        "teardown: daemons go before the workload's template",
        f"{_CONTROLLER}/teardown.py",
        "    _delete_phase(_workload_children),\n    _delete_phase(_daemon_children),\n",
        "    _delete_phase(_daemon_children),\n    _delete_phase(_workload_children),\n",
        "A claim that is made meanwhile waits for a daemon that never comes.",
        (_TEARDOWN,),
    ),
    Mutant(
        "teardown: the domain goes before its children",
        f"{_CONTROLLER}/teardown.py",
        "        if waits_for:\n            return Step((), waits_for)\n",
        "",
        "Children of a deleted domain stay for ever.",
        (_TEARDOWN,),
    ),
    Mutant(
        "trace: the root is written again by the next controller",
        f"{_CONTROLLER}/domain_root_span.py",
        "            or _is_annotated(snapshot)\n",
        "",
        "A domain's trace has a root for each controller that led.",
        (f"{_UNIT}/test_domain_root_span.py",),
    ),
)
