# SPDX-License-Identifier: Apache-2.0
"""What claims of the property test of the GPU plugin ask for, as Hypothesis draws it.

Three GPUs are used whole and in parts. A fourth has a MIG device of an administrator, which is made
after each boot, and leaves room for one that is made for a claim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from hypothesis import strategies

from nvdra_testing import extreme_json
from nvdra_testing.crash_campaigns import claim_model
from nvdra_testing.crash_campaigns.claim_model import parts
from nvdra_testing.crash_campaigns.node_agreement import GpuModes
from nvdra_testing.crash_campaigns.plugin_sandbox import DIVIDING_GPU_PLUGIN, H100_PARTITIONS

GPUS = ("gpu-0", "gpu-1", "gpu-2")
"""Few, so that claims meet."""
MADE = tuple(
    f"{gpu}-mig-{part}"
    for gpu in ("gpu-1", "gpu-2")
    for part in ("1g10gb-19-0", "1g10gb-19-3", "2g20gb-14-2", "3g40gb-9-4")
)
"""MIG devices; the second and third of a GPU take the same place."""
DIVIDED = "gpu-3"
STATIC = f"{DIVIDED}-mig-3g40gb-9-4"
"""A MIG device that an administrator makes after each boot."""
BESIDE = f"{DIVIDED}-mig-2g20gb-14-2"
"""A MIG device that is made on the same GPU."""
STATIC_PLACE = claim_model.instance_of(STATIC)
DIVIDED_AS_NEW = GpuModes(frozenset({STATIC_PLACE}), is_in_mig_mode=True)
USED_GPUS = (*GPUS, DIVIDED)
LEFT = {
    "1g10gb-19": range(4),
    "1g10gb-me-20": range(4),
    "1g20gb-15": (0, 2),
    "2g20gb-14": (0, 2),
    "3g40gb-9": (0,),
    "4g40gb-5": (0,),
}
"""What can be made on a GPU beside that device."""


def _names(gpu: str, partitions: Mapping[str, Sequence[int]]) -> set[str]:
    return {f"{gpu}-mig-{each}-{start}" for each, starts in partitions.items() for start in starts}


TESTED: Final = replace(
    DIVIDING_GPU_PLUGIN,
    devices=sorted(
        {*DIVIDING_GPU_PLUGIN.devices} - {DIVIDED} - _names(DIVIDED, H100_PARTITIONS)
        | _names(DIVIDED, LEFT)
        | {STATIC}
    ),
    kept_files=["gpu-health.json", "gpu-numbers.json"],
)


PASSED = ("gpu-vfio-0", "gpu-vfio-1", "gpu-vfio-2")
"""Some of the same GPUs, for virtual machines."""
PASSING = replace(
    TESTED,
    devices=sorted(
        {*TESTED.devices, *(f"gpu-vfio-{index}" for index in range(8))}
        - {DIVIDED.replace("gpu-", "gpu-vfio-")}
    ),
    kept_files=[*TESTED.kept_files, "nvml.lock", "passthrough.json"],
    is_passing=True,
)
"""The same with the feature gate PassthroughSupport; a GPU that an administrator divides is not
passed."""


def _is_possible(devices: list[str]) -> bool:
    """Whether the scheduler could allocate them to one claim."""
    return len(parts(devices)) == sum(len(parts([each])) for each in devices)


DEVICES = strategies.lists(
    strategies.sampled_from(GPUS) | strategies.sampled_from((*MADE, STATIC, BESIDE)),
    min_size=1,
    max_size=2,
).filter(_is_possible)
PASSED_DEVICES = strategies.lists(
    strategies.sampled_from(PASSED) | strategies.sampled_from((*PASSED, *GPUS)),
    min_size=1,
    max_size=2,
).filter(lambda devices: _is_possible(devices) and not {*devices}.isdisjoint(PASSED))
INTERVALS = strategies.sampled_from(("Short", "Long"))


class Wanted(NamedTuple):
    """What a claim asks for, beside shares."""

    devices: tuple[str, ...]
    is_admin: bool = False
    interval: str = ""
    has_daemon: bool = False
    hostile: str = ""
    """What is extreme about its configuration, as in `extreme_json.PARAMETERS`."""


CLAIMS = strategies.one_of(
    DEVICES.map(lambda devices: Wanted(tuple(devices))),
    strategies.sampled_from(GPUS).map(lambda gpu: Wanted((gpu,), is_admin=True)),
    strategies.builds(
        lambda gpu, interval: Wanted((gpu,), interval=interval),
        strategies.sampled_from(GPUS),
        INTERVALS,
    ),
    (strategies.sampled_from(GPUS) | strategies.sampled_from((*MADE, STATIC, BESIDE))).map(
        lambda device: Wanted((device,), has_daemon=True)
    ),
    strategies.builds(
        lambda gpu, hostile: Wanted((gpu,), hostile=hostile),
        strategies.sampled_from(GPUS),
        strategies.sampled_from(sorted(extreme_json.PARAMETERS)),
    ),
)
