"""The NVML adapter on simulated boards, below an unmodified pynvml.

Each reading is a process of its own: pynvml keeps the first library it loads.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from nvdra_sim.description import Fault
from nvdra_sim.fixtures import SimulatedNode, installed

PROLOGUE = """
import json, sys
from pathlib import Path
from nvdra_api.runtime.node.host import Host
from nvdra_api.runtime.node.nvml import Code, Nvml, NvmlError

calls = []

def load():
    library = Host(driver_root=Path(sys.argv[1])).find_library("libnvidia-ml.so.1")
    return Nvml.load(library, lambda function, seconds, ok: calls.append((function, ok)))

def told(function, *arguments):
    try:
        return function(*arguments)
    except NvmlError as error:
        return {"code": error.code, "absent": error.is_absent, "text": str(error),
                "device": error.device, "hashable": hash(error) is not None}

def show(value):
    print(json.dumps(value))
"""


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., SimulatedNode]]:
    with ExitStack() as stack:
        yield lambda profile, **sections: stack.enter_context(
            installed(profile, tmp_path / profile, **sections)
        )


def read(node: SimulatedNode, script: str) -> Any:
    """What the script shows; nothing but the driver root says where the library is."""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + script, str(node.roots.driver)],
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fault(function: str, gpu: int | None = None, **changes: Any) -> Fault:
    rule: dict[str, Any] = {
        "function": function,
        "gpu": gpu,
        "result": None,
        "activation_status": None,
        "times": None,
        "after_calls": 0,
        "probability": 1.0,
        "delay_ms": 0,
        "do_work": False,
        "abort": False,
    }
    return Fault(**{**rule, **changes})


EVERYTHING = """
nvml = load()
gpus = [nvml.handle_by_index(i) for i in range(nvml.count())]
show([[gpu.uuid, nvml.minor(gpu), nvml.name(gpu), nvml.memory_total(gpu), nvml.architecture(gpu),
       nvml.brand(gpu), nvml.compute_capability(gpu), nvml.pci_bus_id(gpu), nvml.mig_mode(gpu),
       nvml.addressing_mode(gpu), nvml.module_id(gpu)] for gpu in gpus]
     + [nvml.driver_version(), nvml.cuda_driver_version()])
nvml.close()
"""


@pytest.mark.parametrize("profile", ["dgx-h100", "dgx-a100", "l40s", "t4"])
def test_everything_there_is_to_know_is_read(
    make_node: Callable[..., SimulatedNode], profile: str
) -> None:
    node = make_node(profile)
    *gpus, driver, cuda = read(node, EVERYTHING)
    assert driver == node.description.driver.version
    assert cuda >= 12000
    assert [gpu[0] for gpu in gpus] == [gpu.uuid for gpu in node.description.gpus]
    assert [gpu[1] for gpu in gpus] == [gpu.minor for gpu in node.description.gpus]
    assert [gpu[7] for gpu in gpus] == [str(gpu.address) for gpu in node.description.gpus]
