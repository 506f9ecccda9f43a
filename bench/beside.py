# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.beside COMMIT`: prepares of this tree beside those of an earlier commit.

Both plugins are installed from wheels of their tree, with this tree's versions of dependencies, and
serve the same API server in turns. It says whether a change made prepare or unprepare slower.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from nvdra_lab import environment
from nvdra_lab.progress import Progress
from nvdra_testing.control_plane import apiserver

from bench import claims, installation
from bench.claims import Candidate

ROUNDS = 60

_COLUMNS = ("prepare_ms", "at_once_call_ms", "unprepare_ms")
_QUANTILES = ("p50", "p99")


def main() -> None:
    """Measure both and print a table. This takes about three minutes."""
    parser = argparse.ArgumentParser(prog="python -m bench.beside", description=__doc__)
    parser.add_argument("commit", help="the earlier state")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of eight ({ROUNDS})")
    arguments = parser.parse_args()
    progress = Progress()
    places = environment.read()
    with progress.step("both plugins' wheels, installed", "about 30 s"):
        candidates = {
            "former": Candidate(installation.program_of(places, arguments.commit)),
            "now": Candidate(installation.program(places)),
        }
    with tempfile.TemporaryDirectory(prefix="nvb-") as name:
        directory = Path(name)
        (directory / "api").mkdir()
        with apiserver.run_apiserver(directory / "api") as server:
            found = asyncio.run(
                claims.side_by_side(server, directory, candidates, arguments.rounds, progress)
            )
    print(f"{'milliseconds':20} {'former':>9} {'now':>9} {'ratio':>7}")
    for measure in _COLUMNS:
        for quantile in _QUANTILES:
            former, now = (found[each][measure][quantile] for each in candidates)
            label = f"{measure.removesuffix('_ms')} {quantile}"
            print(f"{label:20} {former:9.3f} {now:9.3f} {now / former:7.2f}")


if __name__ == "__main__":
    main()
