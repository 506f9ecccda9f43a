# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.beside COMMIT`: this tree beside an earlier commit.

Plugin and webhook are installed from wheels of their tree, with the dependencies of this tree.
The plugins serve the same API server in turns, the webhooks the same requests. It says whether a
change made prepare, unprepare or admission slower.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from nvdra_lab import environment
from nvdra_lab.progress import Progress
from nvdra_testing.control_plane import apiserver

from bench import claims, installation, webhook
from bench.claims import Candidate

ROUNDS = 60

_COLUMNS = ("prepare_ms", "at_once_call_ms", "unprepare_ms")
_QUANTILES = ("p50", "p99")


def main() -> None:
    """Measure all and print two tables. This takes about five minutes."""
    parser = argparse.ArgumentParser(prog="python -m bench.beside", description=__doc__)
    parser.add_argument("commit", help="the earlier state")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of eight ({ROUNDS})")
    arguments = parser.parse_args()
    progress = Progress()
    places = environment.read()
    webhook.wrk()  # if it is missing, this is said now and not after three minutes
    with progress.step("wheels of both trees, installed", "about 60 s"):
        candidates = {
            "former": Candidate(installation.program_of(places, arguments.commit)),
            "now": Candidate(installation.program(places)),
        }
        name = installation.WEBHOOK
        webhooks = {
            "former": installation.program_of(places, arguments.commit, name),
            "now": installation.program(places, name),
        }
    with tempfile.TemporaryDirectory(prefix="nvb-") as name:
        directory = Path(name)
        (directory / "api").mkdir()
        with apiserver.run_apiserver(directory / "api") as server:
            found = asyncio.run(
                claims.side_by_side(server, directory, candidates, arguments.rounds, progress)
            )
    with progress.step("both webhooks", "about 80 s"):
        admission = webhook.side_by_side(webhooks)
    print(_row("milliseconds", "former", "now", "ratio"))
    for measure in _COLUMNS:
        for quantile in _QUANTILES:
            former, now = (found[candidate][measure][quantile] for candidate in candidates)
            label = f"{measure.removesuffix('_ms')} {quantile}"
            print(_row(label, f"{former:.3f}", f"{now:.3f}", f"{now / former:.2f}"))
    for kind, about in ((webhook.OURS, "known configs"), (webhook.NEW, "new configs")):
        for measure in ("per_s", "p50_ms", "p99_ms", "resident_mib"):
            former, now = (admission[candidate][kind][measure] for candidate in webhooks)
            label = f"webhook, {about}: {measure}"
            print(_row(label, f"{former:.2f}", f"{now:.2f}", f"{now / former:.2f}"))


def _row(label: str, former: str, now: str, ratio: str) -> str:
    return f"{label:40} {former:>9} {now:>9} {ratio:>7}"


if __name__ == "__main__":
    main()
