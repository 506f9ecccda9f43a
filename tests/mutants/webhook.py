# SPDX-License-Identifier: Apache-2.0
"""Mutants of nvdra-webhook: verdicts, certificates, the connection."""

from typing import Final

from tests.mutants.mutant import Mutant

_WEBHOOK: Final = "packages/nvdra-webhook/src/nvdra_webhook"
_UNIT: Final = "packages/nvdra-webhook/tests/unit"

MUTANTS: Final = (
    Mutant(
        "webhook: large requests are answered as they come",
        f"{_WEBHOOK}/serving/connection.py",
        "        elif len(body) > turns.SMALL_BYTES:\n",
        "        elif False:\n",
        "Sixty connections of one pod keep API servers from their answers.",
        (f"{_UNIT}/serving/test_connection.py",),
    ),
    Mutant(
        "webhook: an address with many large requests is served first",
        f"{_WEBHOOK}/serving/turns.py",
        "            self._waiting[address] = jobs  # behind all others\n",
        "            self._waiting = {address: jobs, **self._waiting}\n",
        "A large claim waits for all large bodies of a pod.",
        (f"{_UNIT}/serving/test_turns.py",),
    ),
    Mutant(
        "webhook: an object that is being deleted is examined",
        f"{_WEBHOOK}/admission/decision.py",
        "            if new.is_being_deleted:\n",
        "            if False:\n",
        "A claim that a newer release refuses keeps its finalizer, and its namespace stays.",
        (f"{_UNIT}/admission/test_decision.py",),
    ),
    Mutant(
        "webhook: configs that are there already are examined again",
        f"{_WEBHOOK}/admission/decision.py",
        "            if before and entry.content() in before:\n",
        "            if False:\n",
        "An update is refused for what it does not change.",
        (f"{_UNIT}/admission/test_decision.py",),
    ),
    Mutant(
        "webhook: a check that is kept says the place of the first one",
        f"{_WEBHOOK}/admission/decision.py",
        '                texts.append(f"{begin}{where}{end}")',
        '                texts.append(f"{begin}{path}{end}")',
        "Users do not find the config that is wrong.",
        (f"{_UNIT}/admission/test_decision.py",),
    ),
    Mutant(
        "webhook: objects without a config of ours can be refused",
        f"{_WEBHOOK}/endpoints.py",
        "        if request.path == WARN_PATH:\n",
        "        if False:\n",
        "Claims of other drivers fail, whose form this release does not know.",
        component=("packages/nvdra-webhook/tests/component/test_warnings_path.py",),
    ),
    Mutant(
        "webhook: a monitor that waits for claims is not warned of",
        f"{_WEBHOOK}/admission/warnings.py",
        "                yield from _of_monitors(kind, where, gates)\n",
        "                pass\n",
        "A monitor with admin access stays Pending beside dynamic MIG, and users are not told why.",
        (f"{_UNIT}/admission/test_decision.py",),
    ),
    Mutant(
        "webhook: monitors are warned of without dynamic MIG",
        f"{_WEBHOOK}/admission/warnings.py",
        "MigDeviceConfig.kind) and gates.is_enabled(Feature.DYNAMIC_MIG):",
        "MigDeviceConfig.kind):",
        "Users are told that pods stay Pending which start.",
        (f"{_UNIT}/admission/test_decision.py",),
    ),
    Mutant(
        "webhook: what a container cannot compute on beside MPS is not warned of",
        f"{_WEBHOOK}/admission/warnings.py",
        "        if mps:\n",
        "        if False:\n",
        "CUDA sees one of two GPUs, and nothing says why.",
        (f"{_UNIT}/admission/test_decision.py",),
    ),
    Mutant(
        "webhook: GPUs of one MPS control daemon are said to have several",
        f"{_WEBHOOK}/admission/warnings.py",
        "index if each.kind == GpuConfig.kind else each.name\n",
        "each.name\n",
        "Users are told that CUDA sees one of two GPUs, and it sees both.",
        (f"{_UNIT}/admission/test_decision.py",),
    ),
    Mutant(
        "webhook: a config that a later one overrides is said to fit nothing",
        f"{_WEBHOOK}/admission/requests.py",
        "    for index in reversed(range(len(configs))):\n",
        "    for index in range(len(configs)):\n",
        "Users are told that pods will not start which start.",
        (f"{_UNIT}/admission/test_decision.py",),
    ),
    Mutant(
        "webhook: alternatives of one request count as two back ends",
        f"{_WEBHOOK}/admission/passthrough.py",
        "        if len(policies) == 1 and",
        "        if policies and",
        "Claims are refused that can be prepared.",
        (f"{_UNIT}/admission/test_passthrough.py",),
    ),
    Mutant(
        "webhook: an authority signs before API servers know it",
        f"{_WEBHOOK}/certificates/rotation.py",
        "        if each.certificate_pem in published and now",
        "        if now",
        "API servers do not trust the webhook, and no claim of ours can be created.",
        (f"{_UNIT}/certificates/test_rotation.py",),
    ),
    Mutant(
        "webhook: a former authority is never forgotten",
        f"{_WEBHOOK}/certificates/rotation.py",
        "    if now - (serving.certificate.not_valid_before_utc + BACKDATED) >= KEPT:\n",
        "    if False:\n",
        "A key that leaked years ago is trusted still.",
        (f"{_UNIT}/certificates/test_rotation.py",),
    ),
    Mutant(
        "webhook: draining ends requests that are half received",
        f"{_WEBHOOK}/serving/connection.py",
        "        if self.is_idle:\n            self._close()\n",
        "        self._close()\n",
        "A rollout costs API servers answers.",
        (f"{_UNIT}/serving/test_connection.py",),
    ),
)
