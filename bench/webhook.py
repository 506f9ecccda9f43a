# SPDX-License-Identifier: Apache-2.0
"""How many admission requests the webhook answers, beside a handler that admits everything.

`python -m bench.webhook` runs this benchmark alone and prints its figures; `make bench` puts them
into the report. wrk (Debian's package) sends the mixed corpus over 16 TLS connections and compares
every verdict.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nvdra_api.gates import UNAVAILABLE_FEATURES, FeatureGates
from nvdra_testing import ports
from nvdra_testing.admission import config_corpus, reviews
from nvdra_webhook.admission import review
from nvdra_webhook.admission.cluster_names import ClusterNames
from nvdra_webhook.admission.decision import KEPT_CHECKS, Examiner
from nvdra_webhook.certificates import authority
from nvdra_webhook.endpoints import VALIDATE_PATH

CONNECTIONS, ROUNDS, SECONDS = 16, 3, 5
OURS, NEW, BARE = "webhook", "new_configs", "bare"
"""What is measured: the webhook; the webhook with configs it does not remember; the floor."""
UNKEPT = 4 * KEPT_CHECKS
"""So many different configs in turn that each was forgotten when it comes again."""
GATES = "TimeSlicingSettings=true,MPSSupport=true"

PROGRAM = (sys.executable, "-m", "nvdra_webhook")
"""The webhook of the checkout."""

KeyPair = tuple[Path, Path]
"""The files of a certificate and of its key."""

_SCRIPT = Path(__file__).with_name("reviews.lua")


@dataclass(frozen=True)
class Round:
    """One run of wrk against one server."""

    per_s: float
    p50_ms: float
    p99_ms: float
    resident_mib: float


def measure(rounds: int = ROUNDS, seconds: int = SECONDS) -> dict[str, Any]:
    """Measure both servers in turns. Returns the figures for the report.

    Raises:
        RuntimeError: A verdict was wrong, or a request failed.
    """
    program = wrk()
    load = round(os.getloadavg()[0], 1)
    found: dict[str, list[Round]] = {OURS: [], NEW: [], BARE: []}
    with tempfile.TemporaryDirectory(prefix="nvw-") as name:
        directory = Path(name)
        pair = _key_pair(directory)
        for _ in range(rounds):
            for kind, results in found.items():
                port = ports.free_ports(1)[0]
                bodies = _write_bodies(directory / f"{kind}.jsonl", kind)
                command = _bare(pair, port) if kind == BARE else _ours(pair, port)
                with _server(command, port, directory) as process:
                    results.append(_run(program, port, bodies, seconds, process.pid))
    ours, new, bare = map(_median, found.values())
    return {
        "load_before": load,
        "connections": CONNECTIONS,
        "bodies": config_corpus.SIZE,
        "rounds": rounds,
        OURS: ours,
        NEW: new,
        BARE: bare,
        "ratio": round(ours["per_s"] / bare["per_s"], 2),
        "new_ratio": round(new["per_s"] / bare["per_s"], 2),
        "processes": 1,
    }


def side_by_side(
    programs: Mapping[str, Path], rounds: int = 2 * ROUNDS, seconds: int = SECONDS
) -> dict[str, dict[str, dict[str, float]]]:
    """Measure several webhooks in turns, with configs that they remember and with new ones.

    Returns:
        The figures by the name of the program and the kind of configs.

    Raises:
        RuntimeError: A verdict was wrong, or a request failed.
    """
    wrk_program = wrk()
    found: dict[str, dict[str, list[Round]]] = {name: {OURS: [], NEW: []} for name in programs}
    with tempfile.TemporaryDirectory(prefix="nvw-") as name:
        directory = Path(name)
        pair = _key_pair(directory)
        bodies = {kind: _write_bodies(directory / f"{kind}.jsonl", kind) for kind in (OURS, NEW)}
        for number, kind in itertools.product(range(rounds), bodies):
            # In another order each time: a machine does not stay as fast as it is.
            for label in list(programs) if number % 2 else reversed(list(programs)):
                port = ports.free_ports(1)[0]
                command = _ours(pair, port, (str(programs[label]),))
                with _server(command, port, directory) as process:
                    result = _run(wrk_program, port, bodies[kind], seconds, process.pid)
                found[label][kind].append(result)
    return {
        label: {kind: _median(results) for kind, results in by_kind.items()}
        for label, by_kind in found.items()
    }


def lines(found: dict[str, Any]) -> Iterator[Sequence[str]]:
    """The rows of the report: measure, the webhook, the bare handler, target."""
    ours, bare = found[OURS], found[BARE]
    yield (
        "requests a second",
        f"{ours['per_s']:.0f}/s",
        f"{bare['per_s']:.0f}/s",
        f"{found['ratio']:.2f} x, ≥ 0.6 x and ≥ 8,000/s",
    )
    new = found[NEW]
    yield (
        "the same, every config one that it does not remember",
        f"{new['per_s']:.0f}/s, p99 {new['p99_ms']:.2f} ms",
        "",
        f"{found['new_ratio']:.2f} x, no target",
    )
    yield ("p50", f"{ours['p50_ms']:.2f} ms", f"{bare['p50_ms']:.2f} ms", "")
    yield ("p99", f"{ours['p99_ms']:.2f} ms", f"{bare['p99_ms']:.2f} ms", "≤ 10 ms")
    yield (
        "resident set of its process, which is the only one",
        f"{ours['resident_mib']:.0f} MiB",
        f"{bare['resident_mib']:.0f} MiB",
        "≤ 80 MiB",
    )


def wrk() -> str:
    """The path of wrk.

    Raises:
        SystemExit: It is not installed.
    """
    path = shutil.which("wrk")
    if path is None:
        raise SystemExit("wrk is not installed: apt-get install -y wrk")
    return path


def _key_pair(directory: Path) -> KeyPair:
    now = datetime.now(UTC)
    pair = authority.issue(authority.create(now), ["localhost"], now)
    certificate, key = directory / "tls.crt", directory / "tls.key"
    certificate.write_bytes(pair.certificate_pem)
    key.write_bytes(pair.key_pem)
    return certificate, key


def _write_bodies(path: Path, kind: str) -> Path:
    """Write one request a line. Its UID says what the verdict should be."""
    examiner = Examiner(FeatureGates.parse(GATES).without(UNAVAILABLE_FEATURES))
    with path.open("wb") as file:
        for index, config in enumerate(
            config_corpus.make(UNKEPT if kind == NEW else config_corpus.SIZE)
        ):
            resource = (reviews.CLAIMS, reviews.TEMPLATES)[index % 2]
            version = ("v1", "v1beta2", "v1beta1")[index % 3]
            entry = reviews.entry(config.parameters, config.driver)
            claim = reviews.claim_text([entry], resource=resource, version=version)
            body = reviews.review(claim, resource=resource, version=version, uid="UID")
            verdict = examiner.decide(review.decode(body), ClusterNames())
            allowed = json.dumps(kind == BARE or verdict.is_allowed)
            file.write(body.replace(b'"UID"', f'"{index}-{allowed}"'.encode()) + b"\n")
    return path


def _bare(pair: KeyPair, port: int) -> Sequence[str]:
    return (sys.executable, "-m", "bench.bare_webhook", *map(str, pair), str(port))


def _ours(pair: KeyPair, port: int, program: Sequence[str] = PROGRAM) -> Sequence[str]:
    certificate, key = map(str, pair)
    return (
        *(*program, "--tls-cert-file", certificate, "--tls-private-key-file", key),
        *("--bind-address=127.0.0.1", "--port", str(port)),
        *("--feature-gates", GATES, "--cluster-lookup-interval=0s"),
        *("--http-endpoint", f"127.0.0.1:{ports.free_ports(1)[0]}", "--debug-endpoint="),
        "--shutdown-grace-period=0s",
    )


@contextmanager
def _server(
    command: Sequence[str], port: int, directory: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    with (directory / "servers.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_listening(process, port)
        yield process
    finally:
        process.terminate()
        process.wait(20)


def _wait_listening(process: "subprocess.Popen[bytes]", port: int) -> None:
    table = Path(f"/proc/{process.pid}/net/tcp")
    for _ in range(600):
        if f":{port:04X} 00000000:0000 0A" in table.read_text():
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError("the server does not listen")


def _run(wrk: str, port: int, bodies: Path, seconds: int, pid: int) -> Round:
    url = f"https://127.0.0.1:{port}{VALIDATE_PATH}"
    argv = [wrk, "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(_SCRIPT), url, "--"]
    done = subprocess.run([*argv, str(bodies)], capture_output=True, text=True, check=True)
    line = next(each for each in done.stdout.splitlines() if each.startswith("RESULT "))
    said = json.loads(line.removeprefix("RESULT "))
    if said["wrong"] or said["failed"] or said["broken"] or not said["compared"]:
        raise RuntimeError(f"not every verdict was right: {said}")
    status = Path(f"/proc/{pid}/status").read_text()
    resident = next(each for each in status.splitlines() if each.startswith("VmHWM:"))
    return Round(
        said["requests"] / said["seconds"],
        said["p50_ms"],
        said["p99_ms"],
        int(resident.split()[1]) / 1024,
    )


def _median(rounds: Sequence[Round]) -> dict[str, float]:
    return {
        field: round(statistics.median(getattr(each, field) for each in rounds), 2)
        for field in ("per_s", "p50_ms", "p99_ms", "resident_mib")
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.webhook", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds ({ROUNDS})")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"of each ({SECONDS})")
    arguments = parser.parse_args()
    found = measure(arguments.rounds, arguments.seconds)
    print(json.dumps(found, indent=2))
    for row in lines(found):
        print("  ".join(filter(None, row)))


if __name__ == "__main__":
    main()
