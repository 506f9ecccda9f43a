# SPDX-License-Identifier: Apache-2.0
"""`/metrics`: the registry in Prometheus' text format or, with exemplars, as OpenMetrics."""

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder


def route(registry: CollectorRegistry, path: str = "/metrics") -> web.RouteDef:
    """The route of the endpoint; `path` is `--metrics-path`."""

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    return web.get(path, metrics)
