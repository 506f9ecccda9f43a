# SPDX-License-Identifier: Apache-2.0
"""How long an API server waits for a verdict while thousands of clients hold the webhook.

`python -m bench.many_clients` runs this benchmark alone. 5,000 connections and 200 slow bodies come
again as often as they are closed; the reviews go one after the other over one connection.
"""

import asyncio
import json
import os
import ssl
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
from nvdra_testing import many_clients
from nvdra_testing.admission import reviews, webhook_process
from nvdra_testing.many_clients import HALF, IDLE, SILENT, Crowd
from nvdra_testing.polling import wait_until
from nvdra_webhook.certificates import authority
from nvdra_webhook.endpoints import VALIDATE_PATH

REVIEWS: Final = 1_000
_BODY: Final = reviews.review(reviews.claim_text([]))


async def _p99_ms(port: int, trusted: ssl.SSLContext) -> float:
    """The 99th percentile of a number of reviews, one after the other.

    Raises:
        RuntimeError: A review was not answered.
    """
    seconds: list[float] = []
    clock = asyncio.get_running_loop().time
    connector = aiohttp.TCPConnector(ssl=trusted)
    async with aiohttp.ClientSession(connector=connector) as session:
        for _ in range(REVIEWS):
            began = clock()
            url = f"https://localhost:{port}{VALIDATE_PATH}"
            headers = {"Content-Type": "application/json"}
            async with session.post(url, data=_BODY, headers=headers) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"a review got {answer.status}")
                await answer.read()
            seconds.append(clock() - began)
            await asyncio.sleep(0.005)
    return round(sorted(seconds)[int(REVIEWS * 0.99)] * 1000, 2)


async def measure() -> dict[str, Any]:
    """Measure without and with the clients."""
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="nvw-") as name:
        directory, now = Path(name), datetime.now(UTC)
        signer = authority.create(now)
        pair = authority.issue(signer, ["localhost"], now)
        (directory / "tls.crt").write_bytes(pair.certificate_pem)
        (directory / "tls.key").write_bytes(pair.key_pem)
        trusted = ssl.create_default_context(cadata=signer.certificate_pem.decode())
        flags = (
            f"--tls-cert-file={directory}/tls.crt",
            f"--tls-private-key-file={directory}/tls.key",
            "--cluster-lookup-interval=0s",
            "-v=0",
        )
        with webhook_process.run_webhook(directory, *flags) as webhook:
            await wait_until(webhook.is_ready)
            alone = await _p99_ms(webhook.port, trusted)
            crowds = [
                Crowd(IDLE, 4_000, webhook.port),
                Crowd(SILENT, 1_000, webhook.port),
                Crowd(HALF, 200, webhook.port),
            ]
            with many_clients.run(crowds) as clients:
                await asyncio.to_thread(many_clients.has_come, clients)
                among = await _p99_ms(webhook.port, trusted)
            status = Path(f"/proc/{webhook.process.pid}/status").read_text().splitlines()
            resident = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    return {
        "load_before": load,
        "reviews": REVIEWS,
        "p99_alone_ms": alone,
        "p99_among_clients_ms": among,
        "target_p99_ms": 100,
        "resident_mib": round(resident / 1024),
        "target_resident_mib": 200,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure()), indent=2))
