# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.cdi_load`: how long a cache takes to load 500 spec files.

Each round is a process of its own, which loads copies of the worked example of a GPU (8 kB, 480
values each). The floor is libyaml, which only parses the same files. `--against DIR` alternates
with another source tree, for example that of the last release: `git worktree add DIR
nvdra-cdi-v0.1.0`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from nvdra_cdi import codec, files

FILES = 500
ROUNDS = 7
_PACKAGE = Path(__file__).parents[1] / "packages/nvdra-cdi"
_EXAMPLE = _PACKAGE / "tests/unit/golden/full-gpu.yaml"
_ROUND = """
import json, sys, time
from pathlib import Path
import yaml

def took(act):
    before = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - before[0], time.process_time() - before[1]

def parse():
    for path in Path(sys.argv[1]).iterdir():
        parser = yaml.CSafeLoader(path.read_bytes())
        while parser.get_event() is not None:
            pass

def load():
    global cache
    cache = Cache([sys.argv[1]])

floor = took(parse)
from nvdra_cdi.cache import Cache
loaded = took(load)
assert len(cache.list_devices()) == int(sys.argv[2])
print(json.dumps({"libyaml alone": floor, "load": loaded,
    "an unknown name": took(lambda: cache.get_device("x.com/y=z"))}))
"""


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, metavar="DIR", help="a checkout to compare with")
    other: Path | None = parser.parse_args().against
    sources = {"this tree": _PACKAGE / "src"}
    if other is not None:
        sources[str(other)] = other / "packages/nvdra-cdi/src"
    with tempfile.TemporaryDirectory(prefix="nvb-") as directory:
        _write_specs(directory)
        rounds = {name: list[dict[str, list[float]]]() for name in sources}
        for _ in range(ROUNDS):
            for name, source in sources.items():
                rounds[name].append(_round(source, directory))
    print(f"{FILES} files, median of {ROUNDS} processes; load {os.getloadavg()[0]:.1f}")
    for name, measured in rounds.items():
        for what in measured[0]:
            wall, cpu = (statistics.median(each[what][i] for each in measured) for i in (0, 1))
            print(f"{name}: {what}: {wall:.3f} s, {cpu:.3f} s of CPU")


def _write_specs(directory: str) -> None:
    example = codec.loads(_EXAMPLE.read_bytes())
    for index in range(FILES):
        device = replace(example.devices[0], name=f"gpu-{index}")
        files.write(replace(example, devices=(device,)), Path(directory, f"{index}.yaml"))


def _round(source: Path, directory: str) -> dict[str, list[float]]:
    done = subprocess.run(
        [sys.executable, "-c", _ROUND, directory, str(FILES)],
        env={**os.environ, "PYTHONPATH": str(source)},
        check=True,
        capture_output=True,
    )
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
