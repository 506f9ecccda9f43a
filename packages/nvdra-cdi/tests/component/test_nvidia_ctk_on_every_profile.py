# SPDX-License-Identifier: Apache-2.0
"""Every node profile of the simulator, cut into MIG devices where it can be, in every mode.

Ours is the toolkit's document but for the deviations of `toolkit.DEVIATIONS`: a difference that is
not listed fails here, and so does a listed one that never shows. Needs root.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from nvdra_cdi import codec, transforms, version
from nvdra_cdi.errors import DiscoveryError
from nvdra_cdi.model import Spec
from nvdra_cdi.nvidia import generator
from nvdra_cdi.nvidia.options import Gpu, MigDevice, Naming, Options
from nvdra_sim.configuration import hardware_catalog, node_config
from nvdra_sim.description import Gpu as Board
from nvdra_sim.testing.node_fixtures import SimulatedNode, installed
from nvdra_testing.hardware import container_toolkit

KIND = "nvidia.com/gpu"
GRAPHICS = 2  # of a profile's capabilities
CHANNELS = (1, 10)  # besides channel 0, which the kernel module makes

# How the first boards of a node are cut: (compute slices, memory slices) → per board, instances of
# (profile enumerator, start, compute instances). A board with an empty list is in MIG mode only.
CUTS: dict[tuple[int, int], list[list[tuple[int, int, list[str]]]]] = {
    (7, 8): [
        [(2, 4, ["2c", "1c"]), (1, 0, ["1c", "1c"]), (7, 2, ["1c"])],
        [(3, 0, ["4c"]), (9, 4, ["1c"]), (0, 6, ["1c"])],
        [],
    ],
    (4, 12): [
        [(11, 0, ["2c"]), (10, 6, ["1c"]), (13, 9, ["1c"])],
        [(12, 0, ["2c", "2c"])],
        [],
    ],
    (4, 4): [[(1, 0, ["1c", "1c"]), (7, 2, ["1c"]), (0, 3, ["1c"])]],
}


@dataclass(frozen=True)
class Pair:
    """Two documents about one node, and the node."""

    ours: Spec
    theirs: Spec
    node: SimulatedNode


Compared = Callable[[str], dict[str, Pair]]


@pytest.fixture(scope="module")
def compared(nvidia_ctk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compared]:
    """Both documents of a profile in each mode; made once."""
    with ExitStack() as stack:

        @cache
        def both(profile: str) -> dict[str, Pair]:
            place = tmp_path_factory.mktemp(profile)
            sections = {
                **container_toolkit.REAL_DEVICE_NODES,
                **cut(profile),
                "node": {"imex": {"create_channel0": True}},
            }
            node = stack.enter_context(installed(profile, place, **sections))
            make_channels(node)
            return {
                mode: Pair(
                    ours=with_all(ours(node)),
                    theirs=container_toolkit.generate_spec(nvidia_ctk, node, f"--mode={mode}"),
                    node=node,
                )
                for mode, ours in OURS.items()
                if mode != "nvml" or node.description.gpus
            }

        yield both


def cut(profile: str) -> dict[str, Any]:
    """The overrides of the node file that cut the profile's first boards."""
    boards = node_config.from_profile(profile, "node-0").gpus
    able = [board for board in boards if board.mig is not None]
    overrides = []
    for board, instances in zip(able, _cuts_of(able), strict=False):
        assert board.mig is not None
        names = {one.enum: one.name for one in board.mig.table.profiles}
        wanted = [
            {"profile": names[enum], "start": start, "compute": compute}
            for enum, start, compute in instances
        ]
        overrides.append({"index": board.index, "mig": {"mode": True, "instances": wanted}})
    return {"overrides": {"gpus": overrides}}


def _cuts_of(boards: list[Board]) -> list[list[tuple[int, int, list[str]]]]:
    if not boards or boards[0].mig is None:
        return []
    table = boards[0].mig.table
    return CUTS[table.compute_slices, table.memory_slices]


def make_channels(node: SimulatedNode) -> None:
    major = node.description.majors.nvidia_caps_imex_channels
    for number in CHANNELS:
        path = node.roots.dev / "nvidia-caps-imex-channels" / f"channel{number}"
        os.mknod(path, 0o20666, os.makedev(major, number))


# Our side


def options(node: SimulatedNode) -> Options:
    return Options(
        driver_root=str(node.roots.driver),
        dev_root=str(node.roots.dev.parent),
        sys_root=str(node.roots.sys),
        proc_root=str(node.roots.proc),
        hook_path=container_toolkit.HOOK,
        driver_version=node.description.driver.version,
    )


def nvml(node: SimulatedNode) -> Spec:
    chosen = generator.select(devices(node))
    return generator.nvml_spec(options(node), chosen, [Naming.INDEX, Naming.UUID], KIND)


def imex(node: SimulatedNode) -> Spec:
    return generator.imex_spec(options(node), ["all"], KIND)


def management(node: SimulatedNode) -> Spec:
    return generator.management_spec(options(node), KIND)


OURS = {"nvml": nvml, "imex": imex, "management": management}


def with_all(spec: Spec) -> Spec:
    """As the toolkit does unless told otherwise: one more device that is all of them."""
    return version.with_minimum(transforms.merge(spec, skip_existing=True))


def devices(node: SimulatedNode) -> list[Gpu | MigDevice]:
    """The node's devices, from its description rather than from NVML, which the toolkit asks."""
    found: list[Gpu | MigDevice] = []
    for board in node.description.gpus:
        in_mig_mode = board.mig is not None and board.mig.enabled
        gpu = Gpu(board.uuid, board.minor, board.bus_id, board.index, in_mig_mode)
        found += [gpu, *mig_devices(gpu, board)]
    return found


def mig_devices(gpu: Gpu, board: Board) -> list[MigDevice]:
    if board.mig is None:
        return []
    by_id = sorted(board.mig.instances, key=lambda instance: instance.id)
    graphics = {one.name for one in board.mig.table.profiles if one.capabilities & GRAPHICS}
    return [
        MigDevice(f"MIG-{compute.uuid}", gpu, instance.id, compute.id, index, is_graphics)
        for index, (instance, compute, is_graphics) in enumerate(
            (instance, compute, instance.profile in graphics)
            for instance in by_id
            for compute in instance.compute
        )
    ]


# The comparison


@pytest.mark.parametrize("profile", hardware_catalog.profile_names())
def test_every_mode_gives_the_toolkits_document(compared: Compared, profile: str) -> None:
    has_devices = any(devices(pair.node) for pair in compared(profile).values())
    assert {mode for mode in OURS if mode != "nvml" or has_devices} <= set(compared(profile))
    for mode, pair in compared(profile).items():
        assert pair.ours == container_toolkit.with_deviations(pair.theirs, pair.node), (
            f"{profile}, {mode}"
        )


@pytest.mark.parametrize("profile", ["dgx-a100", "gb200-nvl72", "rtx-pro-6000", "a30", "mixed"])
def test_a_profile_with_mig_is_compared_with_mig_devices(compared: Compared, profile: str) -> None:
    spec = compared(profile)["nvml"].ours
    assert sum(device.name.startswith("MIG-") for device in spec.devices) >= 4


@pytest.mark.parametrize("mode", OURS)
@pytest.mark.parametrize("profile", ["dgx-a100-shuffled", "rtx-pro-6000", "mixed"])
def test_the_command_asks_nvml_and_prints_the_same(
    compared: Compared, profile: str, mode: str
) -> None:
    pair = compared(profile)[mode]
    roots = pair.node.roots
    printed = pair.node.run(
        *(sys.executable, "-m", "nvdra_cdi", "generate", f"--mode={mode}", "--format=json"),
        *(f"--driver-root={roots.driver}", f"--dev-root={roots.dev.parent}"),
        *(f"--sys-root={roots.sys}", f"--proc-root={roots.proc}"),
        f"--nvidia-cdi-hook-path={container_toolkit.HOOK}",
    )
    assert printed.returncode == 0, printed.stderr
    assert codec.loads(printed.stdout.encode()) == pair.ours


@pytest.mark.parametrize("deviation", container_toolkit.DEVIATIONS, ids=lambda one: one.name)
def test_every_listed_deviation_shows(
    compared: Compared, deviation: container_toolkit.Deviation
) -> None:
    assert any(
        deviation.apply(pair.theirs, pair.node) != pair.theirs
        for profile in ("dgx-h100", "rtx-pro-6000")
        for pair in compared(profile).values()
    )


def test_without_a_gpu_neither_describes_one(nvidia_ctk: Path, compared: Compared) -> None:
    node = compared("none")["management"].node
    assert (
        "empty device edits"
        in container_toolkit.run_nvidia_ctk(nvidia_ctk, node, "--mode=nvml").stderr
    )
    with pytest.raises(DiscoveryError, match="no GPU"):
        nvml(node)


@pytest.mark.parametrize(
    "identifiers",
    [["0"], ["1:0", "0:1"], ["0:2", "3"], ["{gpu}"], ["{mig}"], ["3", "all"], ["none", "3"]],
)
def test_identifiers_mean_the_same_devices(
    nvidia_ctk: Path, compared: Compared, identifiers: list[str]
) -> None:
    node = compared("dgx-h100")["nvml"].node
    known = devices(node)
    names = {
        "gpu": next(one.uuid for one in known if isinstance(one, Gpu)),
        "mig": next(one.uuid for one in known if isinstance(one, MigDevice)),
    }
    given = [identifier.format(**names) for identifier in identifiers]
    theirs = container_toolkit.generate_spec(
        nvidia_ctk,
        node,
        *("--mode=nvml", "--no-all-device", "--device-name-strategy=type-index"),
        *(f"--device-id={identifier}" for identifier in given),
    )
    chosen = generator.select(known, given)
    ours = generator.nvml_spec(options(node), chosen, [Naming.TYPE_INDEX], KIND)
    assert ours == container_toolkit.with_deviations(theirs, node)


@pytest.mark.parametrize("identifiers", [["channel10", "0"], ["1"]])
def test_channels_mean_the_same_devices(
    nvidia_ctk: Path, compared: Compared, identifiers: list[str]
) -> None:
    node = compared("t4")["imex"].node
    given = [f"--device-id={identifier}" for identifier in identifiers]
    theirs = container_toolkit.generate_spec(
        nvidia_ctk, node, "--mode=imex", "--no-all-device", *given
    )
    ours = generator.imex_spec(options(node), identifiers, KIND)
    assert ours == container_toolkit.with_deviations(theirs, node)


@pytest.mark.parametrize("identifier", ["77", "channel", "-1", "1048576", "gpu0"])
def test_what_is_no_channel_is_refused_by_both(
    nvidia_ctk: Path, compared: Compared, identifier: str
) -> None:
    node = compared("t4")["imex"].node
    assert container_toolkit.run_nvidia_ctk(
        nvidia_ctk, node, "--mode=imex", f"--device-id={identifier}"
    ).returncode
    with pytest.raises(DiscoveryError, match=identifier):
        generator.imex_spec(options(node), [identifier], KIND)
