"""The flags of this component; the only description of them.

`process.settings.load` fills the model once, from flags and environment; nothing else reads them.
"""

from collections.abc import Mapping
from typing import ClassVar

from nvdra_api import names
from nvdra_runtime.kubeletplugin import settings
from nvdra_runtime.kubeletplugin.settings import PluginSettings


class Settings(PluginSettings):
    """DRA driver gpu.nvidia.com: hands the node's NVIDIA GPUs to pods that claim them.

    It publishes the GPUs as ResourceSlices, prepares claims for the kubelet and describes devices
    to the container runtime by CDI. In a cluster it runs as a DaemonSet (chart nvdra-gpu-plugin).
    """

    driver = names.GPU_DRIVER
    left_out: ClassVar[Mapping[str, str]] = {
        **settings.LEFT_OUT,
        **dict.fromkeys(
            (
                "--image-name",
                "--image-pull-secrets",
                "--image-pull-policy",
                "--service-account-name",
                "--namespace",
            ),
            "it is for MPS, which is not part of this release",
        ),
        "--consumable-shares": "sharing is not part of this release",
        "--host-root": "passthrough is not part of this release",
        "--additional-xids-to-ignore": "XIDs are not looked at in this release",
    }
