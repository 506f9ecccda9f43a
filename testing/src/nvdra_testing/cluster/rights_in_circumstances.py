# SPDX-License-Identifier: Apache-2.0
"""Rights that the charts grant and that the installation's tests need not use, each with why.

The audit of such a run fails on any other right that no request needed. A line is added here only
if the circumstance cannot be brought about there.
"""

from collections.abc import Mapping
from typing import Final

_REPEATED: Final = "an Event that was written is to be written again: its count is increased"
REASONS: Final[Mapping[str, dict[str, str]]] = {
    "compute-domain-daemon-service-account": {"patch events": _REPEATED},
    "nvdra-nvdra-cd-controller": {
        "patch events": _REPEATED,
        "list events in nvdra-system": "the DaemonSet of a domain may not create its pods, as by a "
        "quota of the namespace",
        "create apiextensions.k8s.io/customresourcedefinitions computedomains.resource.nvidia.com/"
        "computedomaincliques.resource.nvidia.com": "a definition does not exist: it is applied, "
        "which the audit calls patch and the API server allows by this right, too",
        "get resource.nvidia.com/computedomaincliques in nvdra-system": "a clique has lost the "
        "labels by which it is found, and no daemon puts them back before the controller does",
    },
    "nvdra-nvdra-cd-plugin": {"patch events": _REPEATED},
    "nvdra-test": {
        "list events in nvdra-system": "a plugin has no pod: its DaemonSet may not create one",
    },
}
"""Account → right → the circumstance in which it is used."""
