# SPDX-License-Identifier: Apache-2.0
"""Write the report: `python -m cdi_corpus`, from the folder of the package's tests."""

import tempfile
from pathlib import Path

from cdi_corpus import comparison, corpus, injections, namings, oracle, report


def main() -> None:
    """Ask both sides for everything, and write down what came of it."""
    with oracle.running() as process, tempfile.TemporaryDirectory() as top:
        compared = comparison.compare(corpus.documents(), process)
        tallies = (
            injections.compared(corpus.SEED, Path(top), process),
            namings.compared(corpus.SEED, process),
        )
    report.PLACE.write_text(report.written(compared, tallies))


main()
