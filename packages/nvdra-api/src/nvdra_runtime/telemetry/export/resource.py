# SPDX-License-Identifier: Apache-2.0
"""What exported spans and metrics say about the process that made them."""

from collections.abc import Mapping
from typing import Final

from nvdra_api.__about__ import __version__
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

SCOPE: Final = InstrumentationScope("nvdra_api", __version__)


def create_resource(attributes: Mapping[str, str]) -> Resource:
    """The process's attributes, overridden by OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME.

    `Resource.create` would let the attributes override the variables.
    """
    return Resource(attributes).merge(OTELResourceDetector().detect())
