# SPDX-License-Identifier: Apache-2.0
"""Records of real boards, and the node that the simulator has to be in order to answer like one.

Records are made by `nvml_answers.py`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvdra_sim.configuration import gpus, hardware_catalog

RECORDED = Path(__file__).parent / "recorded"

Answer = dict[str, Any]
NOT_SUPPORTED: Answer = {"error": "NOT_SUPPORTED"}


@dataclass(frozen=True)
class Board:
    """What one board has answered, by call; those of fields are called `field 230`."""

    name: str
    driver: str
    answers: dict[str, Answer]

    def value(self, call: str) -> Any:
        return self.answers[call]["value"]

    def answered(self, call: str) -> Any:
        """The value; None if the board answered an error, or was not asked."""
        return self.answers.get(call, {}).get("value")


def names() -> list[str]:
    """The records, without those of files."""
    return sorted(path.stem for path in RECORDED.glob("*.json") if not path.stem.endswith("-files"))


def names_with_files() -> list[str]:
    """The records beside which the files of the driver were recorded."""
    return [name for name in names() if (RECORDED / f"{name}-files.json").exists()]


def files(name: str) -> dict[str, Any]:
    """The files of the driver on the machine of a board, made by `node_files.py`."""
    found: dict[str, Any] = json.loads((RECORDED / f"{name}-files.json").read_text("utf-8"))
    return found


def board(name: str) -> Board:
    return of_record(json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8")))


def of_record(record: dict[str, Any]) -> Board:
    fields = {f"field {number}": answer for number, answer in record["fields"].items()}
    return Board(record["board"], record["driver"], record["calls"] | fields)


def node(board: Board) -> dict[str, Any]:
    """Sections of a node file: the same board and driver in the same kind of machine.

    What the board did not answer is left to the simulator.

    Raises:
        LookupError: The simulator has no such board.
    """
    pci = board.value("nvmlDeviceGetPciInfo")
    models = {key: row.name for key, row in hardware_catalog.gpu_models().items()}
    gpu = {
        "model": _key(board.name, models),
        "bus_id": f"{pci['domain']:04x}:{pci['bus']:02x}:{pci['device']:02x}.0",
        "virtualization": board.value("nvmlDeviceGetVirtualizationMode"),
    }
    if (module := board.answered("nvmlDeviceGetModuleId")) is not None:
        gpu["module_id"] = module
    if (mode := board.answered("nvmlDeviceGetAddressingMode")) is not None:
        gpu["addressing"] = _key(mode, gpus.ADDRESSING)
    if board.answers["nvmlDeviceGetNvLinkState 0"] == NOT_SUPPORTED:
        gpu["nvlinks"] = 0
    found: dict[str, Any] = {"driver": {"version": board.driver}, "gpus": [gpu]}
    if branch := board.answered("nvmlSystemGetDriverBranch"):
        found["driver"]["branch"] = branch["branch"]
    if fabric := board.answered("nvmlDeviceGetGpuFabricInfoV c_nvmlGpuFabricInfo_v2_t"):
        found["fabric"] = {"state": _key(fabric["state"], gpus.FABRIC_STATES)}
    return found


def _key(value: Any, of: dict[str, Any]) -> str:
    for key, each in of.items():
        if each == value:
            return key
    raise LookupError(
        f"the simulator knows no {value!r}; it knows {', '.join(map(str, of.values()))}"
    )
