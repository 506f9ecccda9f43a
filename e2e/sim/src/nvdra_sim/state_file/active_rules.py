# SPDX-License-Identifier: Apache-2.0
"""Fault rules as they are in the state file."""

from __future__ import annotations

from dataclasses import dataclass

from nvdra_sim.description import Fault
from nvdra_sim.state_file import layout


@dataclass(frozen=True)
class ActiveRule:
    """A fault rule in the state file.

    Attributes:
        id: The number of the rule, which is never reused in this file.
        fault: The definition of the rule.
        hits: The number of calls that the rule has applied to.
    """

    id: int
    fault: Fault
    hits: int

    @property
    def is_spent(self) -> bool:
        """Whether the rule has reached its number of calls and no longer applies."""
        return self.fault.times is not None and self.hits >= self.fault.times


def fault(rule: layout.Rule) -> Fault:
    """What a record of a rule says."""
    return Fault(
        function=rule.function.decode(),
        gpu=None if rule.gpu == layout.ANY_GPU else rule.gpu,
        result=None if rule.result == layout.NO_RESULT else rule.result,
        activation_status=None
        if rule.activation_status == layout.NO_RESULT
        else rule.activation_status,
        times=rule.times or None,
        after_calls=rule.after_calls,
        probability=rule.chance / layout.ALWAYS,
        delay_ms=rule.delay_ms,
        do_work=bool(rule.do_work),
        abort=bool(rule.abort),
    )
