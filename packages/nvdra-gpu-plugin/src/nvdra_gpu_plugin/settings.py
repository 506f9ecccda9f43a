# SPDX-License-Identifier: Apache-2.0
"""The flags of this component; the only description of them.

`process.settings.load` fills the model once, from flags and environment; nothing else reads them.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from nvdra_api import names
from nvdra_api.gates import Feature
from nvdra_api.quantity import Quantity
from nvdra_runtime.kubeletplugin import settings
from nvdra_runtime.kubeletplugin.settings import PluginSettings
from nvdra_runtime.settings.flags import Flag
from pydantic import AfterValidator, Field, model_validator

from nvdra_gpu_plugin import share_policy
from nvdra_gpu_plugin.share_policy import SharePolicy


def _xids(text: str) -> frozenset[int]:
    """The numbers of a list.

    Raises:
        ValueError: An entry is not a number.
    """
    entries = [entry.strip() for entry in text.split(",")] if text.strip() else []
    for entry in entries:
        if not (entry.isascii() and entry.isdigit()):
            raise ValueError(f"{entry!r} is not an XID, which is a number such as 63")
    return frozenset(map(int, entries))


def _check_xids(text: str) -> str:
    _xids(text)
    return text


def _check_shares(text: str) -> str:
    share_policy.parse(text)
    return text


def _quantities(text: str) -> tuple[tuple[str, str], ...]:
    """Amounts by resource, as `kubectl set resources` takes them: `cpu=50m,memory=256Mi`.

    Raises:
        ValueError: An entry is no resource with an amount.
    """
    found: dict[str, str] = {}
    for entry in filter(None, (each.strip() for each in text.split(","))):
        resource, equals, amount = entry.partition("=")
        if not (resource and equals) or resource in found:
            raise ValueError(f"{entry!r} is not one amount of a resource, such as memory=256Mi")
        Quantity.parse(amount)
        found[resource] = amount
    return tuple(found.items())


def _check_quantities(text: str) -> str:
    _quantities(text)
    return text


Quantities = Annotated[str, AfterValidator(_check_quantities)]
"""Amounts by resource: `cpu=50m,memory=256Mi`."""


class Settings(PluginSettings):
    """DRA driver gpu.nvidia.com: hands the node's NVIDIA GPUs to pods that claim them.

    It publishes the GPUs as ResourceSlices, prepares claims for the kubelet and describes devices
    to the container runtime by CDI. In a cluster it runs as a DaemonSet (chart nvdra-gpu-plugin).
    """

    driver = names.GPU_DRIVER
    left_out: ClassVar[Mapping[str, str]] = {
        **settings.LEFT_OUT,
        "--host-root": "the host's root is not needed: --passthrough-proc-root (variable "
        "PASSTHROUGH_PROC_ROOT) names a /proc, where the processes that use a GPU are found",
    }

    additional_xids_to_ignore: Annotated[str, AfterValidator(_check_xids)] = Field(
        default="",
        description="XIDs that are no reason to taint a GPU, separated by commas, besides those "
        "that applications cause (13, 31, 43, 45, 68). For the gate NVMLDeviceHealthCheck.",
    )

    device_taint_effect: Literal["NoSchedule", "NoExecute"] = Field(
        default="NoSchedule",
        description="The effect of the taints of GPUs that are not well. NoSchedule keeps new pods "
        "away; NoExecute also deletes the pods that use such a GPU, if they do not tolerate the "
        "taint. For the gate NVMLDeviceHealthCheck.",
    )

    keep_mig_mode: bool = Field(
        default=False,
        description="Whether a GPU that was switched to MIG mode for a claim stays in it when its "
        "last MIG device is gone. A claim of the whole GPU switches it off. For the gate "
        "DynamicMIG, on nodes where switching takes long or other programs are in the way.",
    )

    consumable_shares: Annotated[str, AfterValidator(_check_shares)] = Field(
        default=share_policy.DISABLED,
        description="How several claims may have one GPU, or one MIG device that an administrator "
        "has made, at once: disabled; unlimited; memory, where a claim takes the memory that it "
        "asks for, or all of it; or a number of shares, of which a claim takes one or as many as "
        "it asks for. Kubernetes divides the device; nothing enforces it in the containers. For "
        "the gate ConsumableShares.",
    )

    share_configs: Literal["any", "class"] = Field(
        default="any",
        description="Whose sharing configs count for a device that several claims have: any; or "
        "class, which refuses a claim with a config of its own for a share. All claims of a device "
        "must agree, so that with any the first one decides for the others.",
    )

    passthrough_prebound: Literal["offer", "ignore"] = Field(
        default="offer",
        description="What becomes of GPUs that a vfio driver has and no claim, such as those that "
        "are bound to it at boot. offer: they are vfio devices, and stay on that driver; ignore: "
        "another program uses them, such as libvirt. For the gate PassthroughSupport.",
    )
    passthrough_proc_root: Path = Field(
        default=Path("/host/proc"),
        description="A /proc with all processes of the node, by which those that use a GPU are "
        "found; the plugin's own if there is no such directory. For the gate PassthroughSupport.",
    )
    passthrough_modules_root: Path = Field(
        default=Path("/lib/modules"),
        description="The node's /lib/modules. For the gate PassthroughSupport.",
    )

    namespace: Annotated[str, Flag(group="MPS")] = Field(
        default="default",
        min_length=1,
        description="Namespace of the Deployments of MPS control daemons, for the gate MPSSupport: "
        "that of the driver.",
    )
    image_name: str = Field(
        default="",
        description="Image of MPS control daemons: that of the plugin. Required with the gate "
        "MPSSupport.",
    )
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = Field(
        default="", description="When their image is pulled; empty for the default of Kubernetes."
    )
    image_pull_secrets: str = Field(
        default="", description="Names of the Secrets to pull it with, separated by commas."
    )
    service_account_name: str = Field(
        default="",
        description="Service account of their pods, which may be privileged; they get no token. "
        "Empty for the default of the namespace.",
    )
    mps_daemon_priority_class_name: str = Field(
        default="", description="Priority class of their pods; empty for none."
    )
    mps_daemon_requests: Quantities = Field(
        default="cpu=50m,memory=256Mi",
        description="Requests of their container, by resource.",
    )
    mps_daemon_limits: Quantities = Field(
        default="cpu=16,memory=32Gi",
        description="Its limits. They are far more than a daemon needs: without one, a default of "
        "a LimitRange in the namespace takes its place, and all clients of a daemon fail when the "
        "kernel ends its server.",
    )
    mps_daemon_termination_grace_period_seconds: int = Field(
        default=3600,
        ge=0,
        description="How long such a pod that is deleted, for instance in a drain, goes on until "
        "its claim is released: longer than the grace of the pods that use it.",
    )

    @model_validator(mode="after")
    def _check_image(self) -> Self:
        if self.feature_gates.is_enabled(Feature.MPS) and not self.image_name:
            raise ValueError(
                "--image-name (variable IMAGE_NAME) is required with the feature gate MPSSupport: "
                "the image of this plugin, for MPS control daemons"
            )
        return self

    @model_validator(mode="after")
    def _check_shares_gate(self) -> Self:
        is_on = self.feature_gates.is_enabled(Feature.CONSUMABLE_SHARES)
        if self.shares is not None and not is_on:
            raise ValueError(
                "--consumable-shares (variable CONSUMABLE_SHARES) requires feature gate "
                f"{Feature.CONSUMABLE_SHARES} to be enabled"
            )
        return self

    @property
    def shares(self) -> SharePolicy | None:
        """How devices are shared; None if they are not."""
        found = share_policy.parse(self.consumable_shares)
        if found is None:
            return None
        return replace(found, is_configured_by_class=self.share_configs == "class")

    @property
    def mps_requests(self) -> tuple[tuple[str, str], ...]:
        """The requests of an MPS control daemon, by resource."""
        return _quantities(self.mps_daemon_requests)

    @property
    def mps_limits(self) -> tuple[tuple[str, str], ...]:
        """Its limits."""
        return _quantities(self.mps_daemon_limits)

    @property
    def pull_secrets(self) -> tuple[str, ...]:
        """The names of the Secrets to pull the image of MPS control daemons with."""
        return tuple(filter(None, (name.strip() for name in self.image_pull_secrets.split(","))))

    @property
    def ignored_xids(self) -> frozenset[int]:
        """The XIDs of that setting."""
        return _xids(self.additional_xids_to_ignore)
