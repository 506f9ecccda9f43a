# SPDX-License-Identifier: Apache-2.0
"""Whether a spec file is still as it was written. These calls block.

An `OSError` counts as a file that is not there: the caller writes it again, and learns why not.
"""

from pathlib import Path

from nvdra_cdi import codec
from nvdra_cdi.model import Spec

from nvdra_gpu_plugin.driver import installation
from nvdra_gpu_plugin.driver.installation import FileID


def file_id(path: Path) -> FileID | None:
    """Identity of the file at a path; None if there is none."""
    try:
        return installation.file_id(path)
    except OSError:
        return None


def has_content(path: Path, spec: Spec) -> bool:
    """Whether the file has exactly this spec."""
    try:
        return path.read_bytes() == codec.dumps(spec, "yaml")
    except OSError:
        return False
