# SPDX-License-Identifier: Apache-2.0
"""What is said where no CDI spec can be generated, and which specs claims may still need."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi import spec_updater
from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.cdi.spec_updater import SpecState, SpecUpdater
from nvdra_gpu_plugin.devices.spec_generation import SpecGeneration
from nvdra_gpu_plugin.driver.installation import FileID
from nvdra_gpu_plugin.driver.nvml_sessions import DriverUnavailable
from nvdra_runtime.node.host import Host
from nvdra_runtime.process.clock import SystemClock

LIBRARY = Path("/usr/lib/libnvidia-ml.so.1"), FileID(0, 0, 0, 0)


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
    with pytest.raises(DriverUnavailable) as caught:
        updater.update((), LIBRARY, None)
    assert caught.value.fault.text.endswith(f" below {root}{remark}")


def test_a_spec_that_was_replaced_is_kept_for_claims_that_are_being_prepared_from_it() -> None:
    state: Any = SimpleNamespace(replaced_at={})

    def see(name: str, now: float) -> None:
        spec: Any = SimpleNamespace(generation=SpecGeneration(name, {}))
        state.replaced_at = spec_updater.replaced(state.replaced_at, spec, now)

    def recent(now: float) -> set[str]:
        return set(SpecState.recent_generations(state, now))

    see("first", 100)
    see("second", 100)
    assert recent(100) == {"first", "second"}
    see("third", 699)
    assert recent(699) == {"first", "second", "third"}
    assert recent(700) == {"second", "third"}
    see("third", 1000)
    assert recent(9000) == {"third"}
    see("second", 9000)
    assert recent(9000) == {"second", "third"}
