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

Whatever the driver cannot do, it says with one of these words, the same in five places: the
kubelet's message, the Events of the claim and its pods (of the Node, where it is about the node),
the label `reason` of `nvdra_claim_operation_seconds`, the log's field `reason`, and `error.type`
of the span in the claim's trace. The message reads

```text
<Reason>: <what, on which object, since when>; <what to do> (trace <id>)
```

"Since" is when the driver first refused the claim for this reason, unless the reason knows when it
really began. The trace ID is the claim's UID without dashes: `/debug/traces/<id>` on the plugin of
that node, or your tracing backend. A reason that passes by itself is waited out inside the call
where that makes sense, and answered two seconds before the kubelet's deadline.

The reasons are an interface: a new one is a line in the changelog, a changed name a breaking
change. In the commands, PLUGIN_POD is the plugin's pod on the node in question
(`kubectl -n nvdra-system get pods -o wide -l app.kubernetes.io/name=nvdra-gpu-plugin`).
"""


def page() -> str:
    """The whole page."""
    sections = [_section(reason, EXPLANATIONS[reason]) for reason in Reason]
    index = "".join(f"- [{reason}](#{reason.lower()})\n" for reason in Reason)
    return "\n".join([HEAD, index, *sections])


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
