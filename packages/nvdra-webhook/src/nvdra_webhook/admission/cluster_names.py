# SPDX-License-Identifier: Apache-2.0
"""What is known of the cluster, for warnings. It never changes a verdict.

Source: docs/reference/webhook.md, "Intended differences".
"""

from collections.abc import Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterNames:
    """The names that a look at the cluster has found.

    Attributes:
        classes: Names of all DeviceClasses; None if they are not known.
        profiles: MIG profiles that some node offers; None if they are not known, or if no node
            offers any GPU, which says nothing about profiles.
    """

    classes: Set[str] | None = None
    profiles: Set[str] | None = None
