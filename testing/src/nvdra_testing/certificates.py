# SPDX-License-Identifier: Apache-2.0
"""Certificate authorities of the machine that runs the tests."""

import os

NO_SYSTEM_CERTIFICATES = {"SSL_CERT_FILE": os.devnull}
"""For a component's environment: it finds none of the machine's authorities.

Those of its API server and collector are in files of their own. aiohttp reads the machine's when it
is imported, which is a seventh of what a component's start costs; tests start hundreds.
"""
