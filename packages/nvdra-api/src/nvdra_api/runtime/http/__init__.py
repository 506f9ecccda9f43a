"""What the component serves over HTTP: probes, metrics, the debug pages.

Extra "http"; the only door to `aiohttp.web`.
"""
