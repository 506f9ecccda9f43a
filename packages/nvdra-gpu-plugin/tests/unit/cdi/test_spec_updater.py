# SPDX-License-Identifier: Apache-2.0
"""What is said where no CDI spec can be generated, and which specs claims may still need."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from nvdra_cdi.nvidia.options import Options
from nvdra_gpu_plugin.cdi.spec_files import SpecFiles
from nvdra_gpu_plugin.cdi.spec_updater import SpecUpdater
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
        updater.update((), LIBRARY)
    assert caught.value.fault.text.endswith(f" below {root}{remark}")


class Clock(SystemClock):
    seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


def test_a_spec_that_was_replaced_is_kept_for_claims_that_are_being_prepared_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, specs = Clock(), SpecFiles(tmp_path, SystemClock())
    updater = SpecUpdater(Host(proc=tmp_path), Options, specs, clock)

    def see(name: str) -> None:
        spec = SimpleNamespace(generation=SpecGeneration(name, {}))
        monkeypatch.setattr(updater, "_updated", lambda *_: SimpleNamespace(spec=spec))
        updater.update((), LIBRARY)

    see("first")
    see("second")
    assert set(updater.recent_generations) == {"first", "second"}
    clock.seconds += 599
    see("third")
    assert set(updater.recent_generations) == {"first", "second", "third"}
    clock.seconds += 1
    assert set(updater.recent_generations) == {"second", "third"}
    clock.seconds += 3600
    assert set(updater.recent_generations) == {"third"}
