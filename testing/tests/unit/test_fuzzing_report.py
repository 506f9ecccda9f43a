# SPDX-License-Identifier: Apache-2.0
"""What the report of `make fuzz` says of targets that were hardly tried."""

from pathlib import Path

from nvdra_testing.fuzzing import campaign
from nvdra_testing.fuzzing.campaign import LEAST_CASES, TargetResult

HERE = Path("out/fuzz")
ENOUGH = TargetResult("index-file", 7, LEAST_CASES)
FEW = TargetResult("gpu-claim", 7, LEAST_CASES - 1)


def test_a_target_with_too_few_cases_is_no_success() -> None:
    assert campaign.conclusion([ENOUGH], HERE) == "✓ no faults"
    assert campaign.conclusion([ENOUGH, FEW], HERE).startswith(
        "no faults, but too few cases of gpu-claim"
    )
    assert f"gpu-claim: too few cases, {FEW.cases} of at least {LEAST_CASES}" in campaign.table(
        [FEW]
    )
    assert campaign.count_faults([ENOUGH, FEW]) == 0


def test_a_target_that_does_not_work_counts_as_a_fault() -> None:
    failed = TargetResult("gpu-claim", 7, 0, failure="no answer")
    assert campaign.count_faults([failed]) == 1
    assert campaign.conclusion([FEW, failed], HERE) == "✗ 1 faults, see out/fuzz"
