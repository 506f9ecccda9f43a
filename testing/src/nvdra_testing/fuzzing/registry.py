# SPDX-License-Identifier: Apache-2.0
"""All targets, in the order in which they are tried: those that start nothing come first."""

from collections.abc import Sequence
from typing import Final

from nvdra_testing.fuzzing.target import Target
from nvdra_testing.fuzzing.targets import (
    admission,
    annotations,
    cdi_files,
    imex,
    kubelet_plugins,
    metadata,
    migration,
    mps_directory,
    node_files,
    nvml,
)

TARGETS: Final[Sequence[Target]] = (
    *node_files.TARGETS,
    *annotations.TARGETS,
    *imex.TARGETS,
    *cdi_files.TARGETS,
    *metadata.TARGETS,
    *migration.TARGETS,
    *mps_directory.TARGETS,
    *nvml.TARGETS,
    *admission.TARGETS,
    *kubelet_plugins.TARGETS,
)
