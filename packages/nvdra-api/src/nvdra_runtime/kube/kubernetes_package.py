# SPDX-License-Identifier: Apache-2.0
"""Imports the parts of the kubernetes package that we use, without the others.

The `__init__` modules of `kubernetes` and `kubernetes.aio` import the synchronous client, OAuth,
requests, watches and leader election. We use modules of `kubernetes.aio.client` and
`kubernetes.aio.config`, whose models load lazily since 37.

Measured with CPython 3.11 on two idle cores, in seconds of import and MiB of resident set: aiohttp
alone 0.21 and 34; with `import kubernetes.aio.client, kubernetes.aio.config` 0.75 and 58; with this
module 0.30 and 46, of which pydantic and yaml, which every component needs, are 0.07 and 7.
"""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SKIPPED_PACKAGES = ("kubernetes", "kubernetes.aio")


@contextmanager
def _without_package_init() -> Iterator[None]:
    """Make submodules importable without running the `__init__` of their packages.

    Empty packages with the right paths replace the two meanwhile. They are removed afterwards, so
    that `import kubernetes` elsewhere in the process imports the real package.
    """
    absent = [name for name in _SKIPPED_PACKAGES if name not in sys.modules]
    for name in absent:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(
                "the kubernetes package is not installed; pip install 'nvdra-api[kube]'", name=name
            )
        sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


with _without_package_init():
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.client.rest import RESTClientObject, RESTResponse
    from kubernetes.aio.config.config_exception import ConfigException
    from kubernetes.aio.config.incluster_config import load_incluster_config
    from kubernetes.aio.config.kube_config import load_kube_config

__all__ = [
    "ConfigException",
    "Configuration",
    "RESTClientObject",
    "RESTResponse",
    "load_incluster_config",
    "load_kube_config",
]
