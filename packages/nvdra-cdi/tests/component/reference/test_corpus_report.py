# SPDX-License-Identifier: Apache-2.0
"""REPORT.md of the corpus says what a run says."""

import pytest
from cdi_corpus import report
from cdi_corpus.comparison import Compared
from cdi_corpus.tally import Tally

pytestmark = pytest.mark.timeout(300)  # the first test builds the oracle and asks for it all


def test_the_report_is_what_this_run_would_write(
    compared: list[Compared], injected: Tally, named: Tally
) -> None:
    remedy = "run `python -m cdi_corpus` in packages/nvdra-cdi/tests"
    assert report.PLACE.read_text() == report.written(compared, (injected, named)), remedy
