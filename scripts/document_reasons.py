"""Writes docs/reasons.md from `nvdra_api.types.reasons`: `python scripts/document_reasons.py`.

A unit test fails when the page says something else than the code.
"""

from pathlib import Path

from nvdra_api.types.errors import Reason
from nvdra_api.types.reasons import EXPLANATIONS, Explanation

PAGE = Path(__file__).parents[1] / "docs" / "reasons.md"

HEAD = """\
# Reasons

<!-- Made by scripts/document_reasons.py from nvdra_api/types/reasons.py: change it there. -->

Whatever the drivers cannot do, they say with one of these words, the same in five places: the
kubelet's message, the Events of the claim and its pods (of the Node, where it is about the node),
the label `reason` of `nvdra_claim_operation_seconds`, the log's field `reason`, and `error.type`
of the span in the claim's trace. What is about a ComputeDomain, its conditions and Events say, too.
The message reads

```text
<Reason>: <what, on which object, since when>; <what to do> (trace <id>)
```

"Since" is when the driver first refused the claim for this reason, unless the reason knows when it
really began. The trace ID is the claim's UID without dashes: `/debug/traces/<id>` on the plugin of
that node, or your tracing backend. A reason that passes by itself is waited out inside the call
where that makes sense, and answered two seconds before the kubelet's deadline.

The reasons are an interface: a new one is a line in the changelog, a changed name a breaking
change.

**Where to begin.** A pod that claims a GPU: `kubectl -n NAMESPACE describe pod POD`. One that
claims the channel of a ComputeDomain: `kubectl -n NAMESPACE describe computedomain DOMAIN` first,
which says how many nodes of how many are ready, which one is not, and what its daemon lacks; then
its pod. Neither takes rights in the driver's namespace. The rest is for whoever runs the driver.

In the commands stand

| | is | which one |
|---|---|---|
{placeholders}
The charts are taken to be installed in nvdra-system. What is told of `nvdra-gpu-plugin` and its
PLUGIN_POD holds for a claim of compute-domain.nvidia.com with `nvdra-cd-plugin` and CD_PLUGIN_POD,
and its directory is `/var/lib/kubelet/plugins/compute-domain.nvidia.com`.
"""

_PODS = "kubectl -n nvdra-system get pods -o wide -l"
PLACEHOLDERS = {
    "NAMESPACE": ("the namespace of the pod, its claim, its domain", ""),
    "POD": ("the pod that is stuck", "kubectl -n NAMESPACE get pods"),
    "NODE": ("the node that it was sent to", "kubectl -n NAMESPACE get pods -o wide"),
    "CLAIM": (
        "its claim: the Events name it, and so does its status",
        "kubectl -n NAMESPACE get pod POD -o jsonpath='{.status.resourceClaimStatuses}'",
    ),
    "CLAIM_UID": (
        "the claim's UID",
        "kubectl -n NAMESPACE get resourceclaim CLAIM -o jsonpath='{.metadata.uid}'",
    ),
    "TRACE_ID": ("the same without dashes; every message ends in it", ""),
    "CLASS": ("the device class that the claim asks for", "kubectl get deviceclasses"),
    "UUID": (
        "a GPU's UUID; the status has it, too",
        "kubectl -n nvdra-system exec PLUGIN_POD -- nvdra-gpu-plugin status",
    ),
    "PLUGIN_POD": (
        "the GPU plugin's pod on NODE",
        f"{_PODS} app.kubernetes.io/name=nvdra-gpu-plugin",
    ),
    "CD_PLUGIN_POD": (
        "the ComputeDomain plugin's pod on NODE",
        f"{_PODS} app.kubernetes.io/name=nvdra-cd-plugin",
    ),
    "DOMAIN": ("the ComputeDomain", "kubectl -n NAMESPACE get computedomains"),
    "DOMAIN_UID": (
        "its UID",
        "kubectl -n NAMESPACE get computedomain DOMAIN -o jsonpath='{.metadata.uid}'",
    ),
    "DAEMON_POD": (
        "the domain's IMEX daemon on NODE",
        f"{_PODS} resource.nvidia.com/computeDomain=DOMAIN_UID",
    ),
    "RELEASE": ("the charts' release", "helm -n nvdra-system list"),
    "SERVICE_ACCOUNT": ("the plugin's account", "kubectl -n nvdra-system get serviceaccounts"),
}
"""What commands leave to be filled in → what it is, and the command that shows it."""


def page() -> str:
    """The whole page."""
    sections = [_section(reason, EXPLANATIONS[reason]) for reason in Reason]
    index = "".join(f"- [{reason}](#{reason.lower()})\n" for reason in Reason)
    rows = (
        f"| `{name}` | {what} | {f'`{command}`' if command else ''} |\n"
        for name, (what, command) in PLACEHOLDERS.items()
    )
    return "\n".join([HEAD.format(placeholders="".join(rows)), index, *sections])


def _section(reason: Reason, told: Explanation) -> str:
    checks = "\n".join(told.check)
    steps = "".join(f"{number}. {step}\n" for number, step in enumerate(told.remedy, 1))
    remedy = steps if len(told.remedy) > 1 else f"{told.remedy[0]}\n"
    kind, _, who = told.mover.partition(": ")
    nature = f"{kind.capitalize()}: {who}." if who else f"{kind.capitalize()}."
    return (
        f"## {reason}\n\n{told.meaning}\n\n*{nature}*\n\nTo check:\n\n"
        f"```sh\n{checks}\n```\n\nWhat to do:\n\n{remedy}\nAlert: {told.alert}\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page())
