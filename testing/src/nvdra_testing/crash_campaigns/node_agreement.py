# SPDX-License-Identifier: Apache-2.0
"""Compares a node with the claims that are prepared on it: GPUs, MPS daemons, CDI specs, slices.

What a plugin does by itself takes a moment, so each of these is waited for. GPUs that do not work
are left out, and those that share a claim with one: the plugin cannot finish anything there.
"""

import json
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from nvdra_testing.crash_campaigns import claim_model, node_checks
from nvdra_testing.crash_campaigns.claim_model import ClaimModel, ModelClaim
from nvdra_testing.crash_campaigns.plugin_sandbox import PluginSandbox
from nvdra_testing.hardware.gpu_faults import Simulated
from nvdra_testing.node.mps_pods import MpsPods

TIME_SLICES = ("Default", "Short", "Medium", "Long")
"""By the number that the driver has for them."""

_OWN_SPEC = re.compile(r"k8s\.gpu\.nvidia\.com-claim-device_(?P<uid>[0-9a-f-]{36})\.yaml")


@dataclass(frozen=True)
class GpuModes:
    """What claims change of a GPU.

    Attributes:
        instances: Profile and first memory slice of its GPU instances.
        is_in_mig_mode: Whether MIG mode is on.
        time_slice: The name of its time slice.
        is_exclusive: Whether one process alone may compute on it.
        driver: The driver that has it.
    """

    instances: frozenset[tuple[str, int]] = frozenset()
    is_in_mig_mode: bool = False
    time_slice: str = TIME_SLICES[0]
    is_exclusive: bool = False
    driver: str = "nvidia"


def wanted_modes(gpu: str, prepared: Iterable[ModelClaim], static: Iterable[str]) -> GpuModes:
    """How a GPU is while these claims are prepared, and an administrator has made these devices."""
    claims = [each for each in prepared if gpu in each.gpus and not each.is_admin]
    devices = [*static, *(device for claim in claims for device in claim.made)]
    instances = {
        claim_model.instance_of(each) for each in devices if claim_model.gpu_of(each) == gpu
    }
    whole = [claim for claim in claims if gpu in claim.devices]
    intervals = {claim.interval for claim in whole if claim.interval}
    assert len(intervals) <= 1, f"two time slices of one GPU: {whole}"
    return GpuModes(
        frozenset(instances),
        bool(instances),
        intervals.pop() if intervals else TIME_SLICES[0],
        any(claim.has_daemon for claim in whole),
        "vfio-pci"
        if any(claim_model.gpu_of(d) == gpu for c in claims for d in c.passed)
        else "nvidia",
    )


def found_modes(node: Simulated, gpus: Iterable[str]) -> Mapping[str, GpuModes]:
    """How GPUs are."""
    shown = {
        f"gpu-{each['gpu']}": each for each in json.loads(node.simctl("show", "--json"))["gpus"]
    }
    listed = json.loads(node.simctl("mig", "list", "--json"))
    return {
        gpu: GpuModes(
            frozenset(
                (str(each["profile"]), int(each["start"]))
                for each in listed
                if f"gpu-{each['gpu']}" == gpu
            ),
            bool(shown[gpu]["mig_mode"]),
            TIME_SLICES[shown[gpu]["time_slice"]],
            shown[gpu]["compute_mode"] == "exclusive_process",
            str(shown[gpu]["driver"]),
        )
        for gpu in gpus
    }


def find_problem(
    sandbox: PluginSandbox,
    pods: MpsPods,
    books: ClaimModel,
    gpus: Iterable[str],
    static: Iterable[str] = (),
) -> str:
    """How a node whose plugin runs differs from what the claims want; empty if it does not.

    It reads the records first, because the plugin may have removed claims that are gone.
    """
    records = node_checks.records(sandbox)
    books.check_records(records, node_checks.started_claims(sandbox))
    waiting = [
        claim
        for claim in books.undoing
        if not (books.is_away(claim) or books.is_monitored(claim) or books.is_lent(claim))
    ]
    if waiting:
        return f"begun and not undone yet: {waiting}"
    left_out = books.unsettled_gpus
    certain = [gpu for gpu in gpus if gpu not in left_out]
    for gpu, found in found_modes(sandbox.node, certain).items():
        wanted = wanted_modes(gpu, books.prepared, static)
        if found != wanted:
            return f"{gpu} has {found}, not {wanted}, for {books.prepared}"
    return _find_spec_problem(sandbox, books) or _find_daemon_problem(pods, books)


def offered_taints(sandbox: PluginSandbox) -> Mapping[str, Set[str]]:
    """The devices in the node's slices, each with the keys of its taints."""
    return {
        device["name"]: {taint["key"] for taint in device.get("taints", ())}
        for slice_ in sandbox.slices()
        for device in slice_["spec"].get("devices", ())
    }


def _find_spec_problem(sandbox: PluginSandbox, books: ClaimModel) -> str:
    paths = [path.name for path in sandbox.node.cdi.glob("*.yaml")]
    described = {found["uid"] for name in paths if (found := _OWN_SPEC.fullmatch(name))}
    if len(described) == len(paths):
        return "no CDI spec describes the node's devices"
    return _compare(
        "CDI specs", described, (each for each in books.prepared if each.has_own_spec), books
    )


def _find_daemon_problem(pods: MpsPods, books: ClaimModel) -> str:
    served = {name.rpartition("-")[0] for name in pods.running()}
    return _compare(
        "MPS daemons", served, (each for each in books.prepared if each.has_daemon), books
    )


def _compare(what: str, found: Set[str], wanted: Iterable[ModelClaim], books: ClaimModel) -> str:
    """Compare UIDs of claims with those of claims that want something."""
    claims = {claim.ref.uid: claim for claim in wanted}
    certain = {uid for uid, claim in claims.items() if not books.is_away(claim)}
    more = found - claims.keys() - {claim.ref.uid for claim in books.undoing}
    if more or certain - found:
        return f"{what}: lacking of {sorted(certain - found)}, there are some of {sorted(more)}"
    return ""
