# SPDX-License-Identifier: Apache-2.0
"""The floor of the webhook: its server with a handler that decodes the review and admits all.

python -m bench.bare_webhook CERTIFICATE KEY PORT
"""

import asyncio
import sys
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import msgspec
import uvloop
from nvdra_webhook.certificates import key_pair
from nvdra_webhook.certificates.tls import TlsKeyPair
from nvdra_webhook.serving import server
from nvdra_webhook.serving.connection import Limits
from nvdra_webhook.serving.exchange import HttpRequest, HttpResponse


def respond(request: HttpRequest) -> HttpResponse:
    """Admit. The review is decoded as a handler without types would do it."""
    review = msgspec.json.decode(request.body)
    response = {"uid": review["request"]["uid"], "allowed": True}
    answer = {"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response}
    return HttpResponse(HTTPStatus.OK, msgspec.json.encode(answer))


async def main(certificate: str, key: str, port: str) -> None:
    """Serve until the process ends."""
    pem = (Path(certificate).read_bytes(), Path(key).read_bytes())
    tls = TlsKeyPair("VersionTLS12", lambda: datetime.now(UTC))
    tls.use(key_pair.parse(*pem, datetime.now(UTC)))
    limits = Limits(8 << 20)
    async with server.serve(
        "127.0.0.1",
        int(port),
        tls.context,
        respond,
        limits,
        on_failure=lambda: None,
        on_dropped=lambda _server, _why: None,
    ):
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
