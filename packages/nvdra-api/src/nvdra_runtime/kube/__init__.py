# SPDX-License-Identifier: Apache-2.0
"""A client for the API server, informers, leader election and events. Needs the extra `kube`.

This is the only package that imports the kubernetes package. Objects are JSON, not models, so that
fields of newer servers survive a read and a write.
"""

from nvdra_runtime.extras import require

require(__name__, "kube", "aiohttp", "kubernetes", "yaml")
