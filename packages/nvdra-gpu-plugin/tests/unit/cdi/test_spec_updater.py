# SPDX-License-Identifier: Apache-2.0
"""What is said where no CDI spec can be generated."""

from pathlib import Path

import pytest
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.cdi.spec_updater import SpecUpdater
from nvdra_gpu_plugin.driver.installation import FileID
from nvdra_gpu_plugin.driver.nvml_sessions import DriverUnavailable
from nvdra_runtime.node.host import Host
from nvdra_runtime.process.clock import SystemClock


@pytest.mark.parametrize(
    ("on_node", "remark"), [("/opt/nvidia", " (/opt/nvidia on the node)"), ("", "")]
)
def test_a_driver_without_its_libraries_is_told_with_its_path_on_the_node(
    tmp_path: Path, on_node: str, remark: str
) -> None:
    root = str(tmp_path)
    options = Options(driver_root=root, target_driver_root=on_node or root, dev_root=root)
    clock = SystemClock()
    specs = SpecFiles(tmp_path / "cdi", clock)
    updater = SpecUpdater(Host(proc=tmp_path), lambda: options, specs, clock)
    library = tmp_path / "libnvidia-ml.so.1", FileID(0, 0, 0, 0)
    with pytest.raises(DriverUnavailable) as caught:
        updater.update((), library, None, must_rebuild=True)
    assert caught.value.fault.text.endswith(f" below {root}{remark}")
