# SPDX-License-Identifier: Apache-2.0
"""Explanations of every reason for users.

`scripts/document_reasons.py` writes docs/reasons.md from them. The driver does not read them. A
unit test fails if a reason has no explanation.
Source: docs/reference/tracing.md, "Reason codes".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from nvdra_api.errors import Reason


class ActionBy(StrEnum):
    """Who has to act before a retry can succeed."""

    USER = "permanent: the user changes the claim, its config or the pod"
    ADMINISTRATOR = "permanent: the administrator changes the node, the driver or the hardware"
    NOBODY = "retryable: it passes without any action; the kubelet retries"
    MIXED = "either: the message says whether somebody has to act"
    DEVELOPERS = "a bug of the driver; the kubelet retries"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one reason.

    Attributes:
        meaning: What has happened.
        action_by: Whether a retry can succeed and, if not, who must act.
        check: Commands that show the problem.
        remedy: What to do, in the order in which to try it.
        alert: When to alert on it, in terms of the metrics.
    """

    meaning: str
    action_by: ActionBy
    check: tuple[str, ...]
    remedy: tuple[str, ...]
    alert: str


_CLAIM: Final = "kubectl -n NAMESPACE get resourceclaim CLAIM -o yaml"
_STATUS: Final = "kubectl -n nvdra-system exec PLUGIN_POD -- nvdra-gpu-plugin status"
_CD_STATUS: Final = "kubectl -n nvdra-system exec CD_PLUGIN_POD -- nvdra-cd-plugin status"
_SLICES: Final = "kubectl get resourceslices --field-selector spec.nodeName=NODE -o yaml"
_LOG: Final = "kubectl -n nvdra-system logs PLUGIN_POD"
_TRACE: Final = (
    "kubectl -n nvdra-system port-forward PLUGIN_POD 6060 & sleep 2; "
    "curl 'localhost:6060/debug/traces/CLAIM_UID?format=text'; kill %1"
)
_READY: Final = _STATUS + "   # why it is not ready"

_DOMAIN: Final = "kubectl -n NAMESPACE describe computedomain DOMAIN"
_CLIQUES: Final = (
    "kubectl -n nvdra-system get computedomaincliques -o yaml"
    " -l resource.nvidia.com/computeDomain=DOMAIN_UID"
)
_DAEMONS: Final = (
    "kubectl -n nvdra-system get pods -o wide -l resource.nvidia.com/computeDomain=DOMAIN_UID"
)
_DAEMON_LOG: Final = "kubectl -n nvdra-system logs DAEMON_POD"


def _more_than(count: int, reason: Reason, window: str) -> str:
    series = f'nvdra_claim_operation_seconds_count{{reason="{reason}"}}'
    return f"`increase({series}[{window}]) > {count}`."


def _not_ready(plugin: str, duration: str) -> str:
    """Return an alert on a metric of kube-state-metrics. A pod's name begins with its release."""
    pods = f'pod=~".*nvdra-{plugin}-plugin-.*"'
    return f'`kube_pod_status_ready{{{pods},condition="true"}} == 0` for {duration}.'


EXPLANATIONS: Final[Mapping[Reason, Explanation]] = MappingProxyType(
    {
        Reason.CLAIM_NOT_FOUND: Explanation(
            meaning="The kubelet asked for a claim that the API server does not have. The claim "
            "was deleted while its pod was starting.",
            action_by=ActionBy.USER,
            check=("kubectl -n NAMESPACE get resourceclaims", "kubectl -n NAMESPACE get pod POD"),
            remedy=(
                "Usually nothing: the pod is being deleted too, or its owner creates a new one.",
                "If the pod stays and refers to the claim by name: create the claim again and "
                "delete the pod, so that it is scheduled with the new claim.",
            ),
            alert="Not on a single one. Many at once mean that something deletes claims in use.",
        ),
        Reason.CLAIM_UID_CHANGED: Explanation(
            meaning="There is a claim with this name, but it is not the claim that the pod was "
            "scheduled with. That one was deleted, and a new one was created with the same name.",
            action_by=ActionBy.USER,
            check=(_CLAIM + "   # metadata.uid", "kubectl -n NAMESPACE get pod POD -o yaml"),
            remedy=("Delete the pod. Its replacement is scheduled with the present claim.",),
            alert="None.",
        ),
        Reason.NOT_ALLOCATED: Explanation(
            meaning="No device of this driver is allocated to the claim. The scheduler has not "
            "allocated one yet, or the claim was deallocated.",
            action_by=ActionBy.NOBODY,
            check=(_CLAIM + "   # status.allocation, status.reservedFor",),
            remedy=(
                "Wait a minute: the kubelet retries, and the scheduler allocates a device.",
                "If it persists: a pod with `nodeName` set bypasses the scheduler, so its claims "
                "are never allocated. Remove `nodeName`.",
            ),
            alert=_more_than(3, Reason.NOT_ALLOCATED, "10m"),
        ),
        Reason.UNKNOWN_DEVICE: Explanation(
            meaning="The allocated device is not on this node, is another device now, or cannot be "
            "prepared in its present mode. Or a MIG device cannot be made, because an instance "
            "that no claim has made is in its place: the plugin never destroys such an instance.",
            action_by=ActionBy.USER,
            check=(_SLICES, _STATUS),
            remedy=(
                "Delete the pod, so that it is scheduled with a device that the node offers now.",
                "If a GPU has disappeared: see the kernel log of the node and `nvidia-smi`.",
                "If an instance is in the way: `nvidia-smi mig -lgi` shows it, `nvidia-smi mig "
                "-dci` and `-dgi` destroy it.",
            ),
            alert="More than a few in an hour: GPUs come and go, or ResourceSlices are stale "
            '(`nvdra_resourceslice_writes_total{outcome!="success"}`).',
        ),
        Reason.DEVICE_IN_USE: Explanation(
            meaning="The device is still in use; the message says by what. Mostly it is another "
            "claim on this node, typically after a pod was deleted by force: the scheduler "
            "allocated the device to the next pod while the containers of the first one were "
            "still running. If that claim is of another namespace, its names are in the plugin's "
            "log, its status and the trace only. Or claims that share the GPU have another time "
            "slice. Or another client of the driver uses the GPU, such as nvidia-persistenced, "
            "DCGM or a program that has outlived its pod: then the driver switches no MIG mode, "
            "and makes or destroys no MIG instance. Or an MPS control daemon has not ended yet. In "
            "an answer to a request to release NVML: a claim has a GPU, or a GPU would lose "
            "settings.",
            action_by=ActionBy.MIXED,
            check=(
                _STATUS + "   # which claim holds it, since when",
                "kubectl -n NAMESPACE get pods -o wide",
                "nvidia-smi   # on the node: processes that use the GPU",
            ),
            remedy=(
                "If a claim holds it, wait: the next claim gets the device as soon as the kubelet "
                "has stopped the other pod's containers and has unprepared its claim. If the other "
                "pod should not run any more, delete it. If it has been gone for more than a few "
                "minutes, check the node's kubelet.",
                "If claims share the GPU with another time slice, wait until they end, or give all "
                "claims that share a GPU the same `sharing` config.",
                "If another client of the driver uses the GPU, and it lasts, stop that client on "
                "the node. The kubelet and the plugin try again by themselves.",
                "If an MPS control daemon has not ended, the message names its pod: look why that "
                "pod does not end; if its node or its container runtime does not respond, end the "
                "processes on the node.",
                "If NVML is to be released, drain the node first, or force the release.",
            ),
            alert=_more_than(5, Reason.DEVICE_IN_USE, "10m"),
        ),
        Reason.DEVICE_UNHEALTHY: Explanation(
            meaning="The GPU is on the node but does not work. NVML returned an error when the "
            "plugin checked the GPU right before the container started, or in an earlier health "
            "check. Or no GPU tells the ComputeDomain plugin which NVLink clique the node "
            "belongs to; if some GPUs do not, they are only named.",
            action_by=ActionBy.ADMINISTRATOR,
            check=("dmesg | grep -i xid   # on the node", "nvidia-smi -q -i UUID", _STATUS),
            remedy=(
                "Delete the pod to have it scheduled to another GPU.",
                "Reset the GPU when no container uses it, or reboot the node. The plugins and "
                "persistence mode hold the GPU open, so before: `nvdra-gpu-plugin release` in the "
                "GPU plugin's pod, and `nvidia-smi -pm 0 -i UUID`, then `nvidia-smi --gpu-reset "
                "-i UUID`.",
                "If the error comes back, drain the node and have the GPU replaced.",
            ),
            alert="`increase(nvdra_device_health_events_total[10m]) > 0`.",
        ),
        Reason.DEVICE_NODE_MISSING: Explanation(
            meaning="A file that the container needs for the device is missing on the node or "
            "belongs to another device now: a device node in /dev, a file of the NVIDIA driver, "
            "or the CDI spec that names them.",
            action_by=ActionBy.ADMINISTRATOR,
            check=("ls -l /dev/nvidia*   # on the node", "ls -l /var/run/cdi", _STATUS),
            remedy=(
                "Run `nvidia-modprobe -c0 -u` on the node, or in the driver container. It loads "
                "the modules and creates missing device nodes.",
                "If `/dev/nvidia-uvm` is missing after every boot, have that run at the boot, by a "
                "udev rule or a unit of systemd: neither the other modules nor `nvidia-smi` "
                "create it.",
                "After a driver upgrade: wait a few seconds. The plugin detects it without a "
                "restart.",
                "If `/proc/devices` lists no `nvidia-caps`: correct the chart's `global.procRoot`, "
                "which is not the node's procfs, or load the kernel module nvidia.",
                "If the CDI directory is full or not writable: repair it.",
            ),
            alert="`increase(nvdra_device_health_events_total[10m]) > 0`.",
        ),
        Reason.DRIVER_MISMATCH: Explanation(
            meaning="The node's NVIDIA driver is missing, does not start or has changed. Either no "
            "GPU can be used, or the claim would mix two driver versions.",
            action_by=ActionBy.MIXED,
            check=(_READY, "nvidia-smi   # on the node", "kubectl describe node NODE"),
            remedy=(
                "No driver: install or repair it, or correct the chart's value "
                "`global.nvidiaDriverRoot`, the driver's directory on the nodes (`/`, or "
                "`/run/nvidia/driver` of the GPU Operator; docs/platforms.md has those of other "
                "platforms). The plugin detects it within seconds, without a restart.",
                "Library and kernel module have different versions: reload the module or reboot.",
                "Claims of an older driver version: delete the pod, so that all of its claims are "
                "prepared with one version.",
            ),
            alert=_not_ready("(gpu|cd)", "ten minutes") + " Or an Event DriverMismatch on a Node.",
        ),
        Reason.MIG_MODE_REQUIRES_RESET: Explanation(
            meaning="A claim needs a GPU in MIG mode, or out of it, and the GPU changes its mode "
            "with a reset only: it is older than Hopper, or NVML has accepted the mode and not put "
            "it in force.",
            action_by=ActionBy.ADMINISTRATOR,
            check=(
                "nvidia-smi --query-gpu=index,mig.mode.current,mig.mode.pending --format=csv"
                "   # on the node",
                _STATUS,
            ),
            remedy=(
                "Delete the pod to have it scheduled to another GPU.",
                "Drain the node, set the mode that is wanted (`nvidia-smi -i UUID -mig 1`, or "
                "`-mig 0`) and reset the GPU: see `DeviceUnhealthy` for how, or reboot the node.",
            ),
            alert=_more_than(0, Reason.MIG_MODE_REQUIRES_RESET, "10m"),
        ),
        Reason.NVML_RELEASED: Explanation(
            meaning="An administrator works on the GPUs of the node: resets one, switches a MIG "
            "mode, or replaces the driver. The GPU plugin was asked to release NVML for that, so "
            "that it cannot verify any GPU, and a container that starts would be in the way. The "
            "ComputeDomain plugin uses no NVML either; only where it does not know the node's "
            "clique yet, claims of domains wait.",
            action_by=ActionBy.NOBODY,
            check=(
                _STATUS + "   # since when, until when, and how it ends",
                "kubectl get node NODE -o yaml | grep gpu.nvidia.com/release-nvml",
            ),
            remedy=(
                "Wait: the pod goes on as soon as NVML is used again.",
                "Administrator, when the work is done: remove the annotation "
                "(`kubectl annotate node NODE gpu.nvidia.com/release-nvml-`), or run "
                "`nvdra-gpu-plugin resume` in the GPU plugin's pod. A release for a time ends by "
                "itself. Where no GPU plugin runs any more: delete "
                "`plugins/gpu.nvidia.com/nvml-release.json` below the kubelet's directory.",
            ),
            alert="`nvdra_nvml_released == 1` for two hours: somebody has forgotten to resume.",
        ),
        Reason.MPS_NOT_READY: Explanation(
            meaning="The claim shares its devices by MPS, and its MPS control daemon, which runs "
            "in a pod of its own in the driver's namespace, is not ready. The message has what "
            "that pod says. The claim keeps its devices meanwhile.",
            action_by=ActionBy.MIXED,
            check=(
                "kubectl -n nvdra-system get deployments,pods | grep mps-control-daemon-CLAIM_UID",
                "kubectl -n nvdra-system get pods -o name | grep mps-control-daemon-CLAIM_UID | "
                "xargs -n 1 kubectl -n nvdra-system logs",
            ),
            remedy=(
                "Wait, if the image is being pulled or the node has just been booted: the kubelet "
                "repeats the prepare, which goes on where it was.",
                "If the pod cannot be created: the message has the API server's error. The "
                "driver's namespace must allow privileged pods, and have room in its quota.",
                "If the daemon ends or refuses a setting: the message has its last line, and the "
                "log of its pod the others (`kubectl logs --previous`). nvidia-cuda-mps-control "
                "must be in the driver root.",
                "If processes of one user wait for those of another: give all containers of the "
                "claim the same runAsUser, or set multiUser in mpsConfig.",
                "If the pipe directory of the claim holds what no MPS daemon makes: a container "
                "that an earlier version of the driver has prepared has written there. Delete the "
                "claim's pods; the directory goes with them.",
            ),
            alert="On every one that lasts five minutes: a workload waits.",
        ),
        Reason.VFIO_DEVICE_BUSY: Explanation(
            meaning="A GPU is to be given to a virtual machine, or taken back from one, and a "
            "process still has it open; or the kernel has begun to unbind its driver and waits for "
            "such a process. Nothing is unbound while a process is known to use the GPU, because "
            "the kernel would wait for it without end. The message has the process; its pod is in "
            "the plugin's log, its status and the trace.",
            action_by=ActionBy.MIXED,
            check=(
                _STATUS + "   # which process has the GPU, and of which pod",
                "nvidia-smi   # on the node: processes that use the GPU",
                "dmesg | grep -e 'Device is currently in use' -e 'non-zero usage count'"
                "   # on the node",
            ),
            remedy=(
                "Wait: the kubelet repeats the prepare, which goes on when the process has ended.",
                "If it lasts, end the process or delete its pod. On nodes with virtual machines, "
                "run DCGM 4.5 or later with a dcgm-exporter for it, or neither, and no display "
                "server.",
                "After a virtual machine, a QEMU process can outlive its pod: end it on the node.",
            ),
            alert=_more_than(5, Reason.VFIO_DEVICE_BUSY, "10m"),
        ),
        Reason.VFIO_BIND_FAILED: Explanation(
            meaning="The kernel has not given a PCI function the driver that a claim needs: vfio "
            "for a virtual machine, or afterwards the driver that it had before. The message has "
            "the function, the step and the kernel's error.",
            action_by=ActionBy.MIXED,
            check=(
                _STATUS,
                "lspci -nnk   # on the node: drivers of all functions",
                "dmesg | grep -i -e vfio -e nvrm   # on the node",
            ),
            remedy=(
                "Wait: what was begun is undone, and the prepare is repeated.",
                "If another driver has taken the function meanwhile: keep it from loading.",
                "If the GPU does not come back on the NVIDIA driver after a virtual machine, reset "
                "it or reboot the node.",
            ),
            alert=_more_than(3, Reason.VFIO_BIND_FAILED, "10m"),
        ),
        Reason.VFIO_NOT_POSSIBLE: Explanation(
            meaning="The GPU cannot be given to a virtual machine on this node: the IOMMU is off, "
            "the GPU shares its IOMMU group with other devices, has virtual functions or MIG "
            "devices, has another driver, or the kernel has no module of vfio for it. The message "
            "has the cause.",
            action_by=ActionBy.ADMINISTRATOR,
            check=(
                _STATUS + "   # what stands in the way, for each GPU",
                "find /sys/kernel/iommu_groups -type l   # on the node",
                "lspci -nnk   # on the node: drivers of all functions",
            ),
            remedy=(
                "Delete the pod to have it scheduled to another GPU.",
                "Remove the cause that the message names, mostly in the firmware or in the boot "
                "options of the node's kernel, and reboot the node.",
            ),
            alert=_more_than(0, Reason.VFIO_NOT_POSSIBLE, "10m"),
        ),
        Reason.INVALID_CONFIG: Explanation(
            meaning="The opaque config in the claim or in its DeviceClass is invalid, does not fit "
            "the device, or asks for a feature that this version does not have; or the claim was "
            "allocated part of a GPU (`consumedCapacity`) on a node that hands GPUs out whole, "
            "usually because `--consumable-shares` was switched off in between; or the spec of a "
            "ComputeDomain is invalid. The message names every problem with its field.",
            action_by=ActionBy.USER,
            check=(_CLAIM + "   # spec.devices", "kubectl get deviceclass CLASS -o yaml"),
            remedy=(
                "Correct the named fields. A claim cannot be changed: change its template and "
                "delete the pod.",
                "If part of a GPU was allocated, delete the pod, so that its claim is allocated "
                "anew from what the node offers now. To share GPUs, set `--consumable-shares` on "
                "all nodes.",
            ),
            alert="None: it is an error in one user's manifest.",
        ),
        Reason.FEATURE_GATE_DISABLED: Explanation(
            meaning="The config is valid, but it needs a feature gate that is disabled on this "
            "node. In an Event of a Node: a feature that is enabled there needs a gate of "
            "Kubernetes that is disabled.",
            action_by=ActionBy.ADMINISTRATOR,
            check=(_LOG + " | grep feature-gates", "helm -n nvdra-system get values RELEASE --all"),
            remedy=(
                "Administrator: enable the gate (`global.featureGates` in the chart's values), or "
                "the gate of Kubernetes that the Event names.",
                "If it was enabled just now: wait until the rollout has replaced the plugin of "
                "the node (`helm upgrade --wait` does). The kubelet tries the pod again within 90 "
                "seconds.",
                "User: remove the part of the config that needs it.",
            ),
            alert="None.",
        ),
        Reason.LOCK_TIMEOUT: Explanation(
            meaning="Another claim was using the same GPU until the deadline of the call; the "
            "plugin's log names it. Or a plugin's lock file was removed and another plugin locked "
            "the new one first.",
            action_by=ActionBy.NOBODY,
            check=(_STATUS, _TRACE + "   # of the claim that the log names"),
            remedy=(
                "Nothing if it happens once; the kubelet retries.",
                "If it persists, the GPU hangs: see DeadlineExceeded and DeviceUnhealthy.",
                "Two plugins: one of them has exited and starts again, to stand by for the other.",
            ),
            alert="`histogram_quantile(0.99, sum by (le) "
            "(rate(nvdra_lock_wait_seconds_bucket[10m]))) > 10`.",
        ),
        Reason.STATE_CORRUPT: Explanation(
            meaning="The plugin does not know which devices are in use. Either the record of a "
            "prepared claim or the state file is damaged and the kubelet's checkpoint does not "
            "have the information, or a newer version wrote the file. Claims with an intact "
            "record are not affected.",
            action_by=ActionBy.ADMINISTRATOR,
            check=(
                "ls -l /var/lib/kubelet/plugins/gpu.nvidia.com   # on the node",
                "ls -l /var/lib/kubelet/dra_manager_state   # on the node",
                _LOG,
            ),
            remedy=(
                "If a record cannot be read: delete the pods of the claim that the log names.",
                "A damaged state file is renamed to `state.sqlite.corrupt-TIME`; keep it for a bug "
                "report. The records are rebuilt from the kubelet's `dra_manager_state`. If the "
                "message says that this file cannot be read, repair that (the chart mounts the "
                "kubelet's directory).",
                "If nothing else helps: drain the node and reboot it, or remove the file that the "
                "message names when no pod of the node uses a GPU.",
                "If a newer version wrote the file: install that version again.",
            ),
            alert=_more_than(0, Reason.STATE_CORRUPT, "10m"),
        ),
        Reason.STATE_UNAVAILABLE: Explanation(
            meaning="The state file cannot be written, because its disk is full, read-only or "
            "broken. Until it can be written, no claim is prepared or unprepared. Claims that are "
            "prepared already are not affected.",
            action_by=ActionBy.NOBODY,
            check=(
                "df -h /var/lib/kubelet; mount | grep /var/lib/kubelet   # on the node",
                _READY,
                _LOG,
            ),
            remedy=("Free some space or repair the disk. The plugin then continues by itself.",),
            alert=_more_than(0, Reason.STATE_UNAVAILABLE, "10m"),
        ),
        Reason.API_UNAVAILABLE: Explanation(
            meaning="The API server did not answer, refused the request, or sent an invalid "
            "response. Claims that are prepared already are not affected.",
            action_by=ActionBy.NOBODY,
            check=(
                "kubectl get --raw /readyz",
                _LOG,
                "kubectl auth can-i get resourceclaims "
                "--as=system:serviceaccount:nvdra-system:SERVICE_ACCOUNT",
            ),
            remedy=(
                "Nothing during an outage: the kubelet and the driver retry.",
                "If the message has the code 401 or 403: restore the driver's service account and "
                "its role (`helm upgrade` does).",
                "Connection refused or timed out on one node only: check the node's network.",
            ),
            alert='`increase(nvdra_api_requests_seconds_count{code!~"2..|404"}[5m]) > 10`.',
        ),
        Reason.FIELDS_DROPPED: Explanation(
            meaning="The CustomResourceDefinition of ComputeDomains that the cluster has is not "
            "the one of this version: the API server drops fields that the driver writes. "
            "Another project has installed it, such as the GPU Operator or the reference driver, "
            "and the driver leaves it alone. Domains work; `kubectl get` and `kubectl describe` "
            "say less about them.",
            action_by=ActionBy.ADMINISTRATOR,
            check=(
                "kubectl get events --namespace default --field-selector reason=FieldsDropped",
                "kubectl get crd computedomains.resource.nvidia.com "
                "--output jsonpath='{.metadata.annotations}'",
            ),
            remedy=(
                "Let the controller write it: `crds.install=always` of the chart "
                "nvdra-cd-controller. Not while another tool writes it, too, such as GitOps with "
                "the other project's chart: the two would take turns.",
                "Or apply it by yourself: `nvdra-cd-controller crds | kubectl apply --server-side "
                "--force-conflicts -f -`.",
            ),
            alert="None: domains work.",
        ),
        Reason.DEADLINE_EXCEEDED: Explanation(
            meaning="An operation did not finish in the time that the kubelet allows for a call "
            "(45 s). Usually a GPU hangs in the NVIDIA driver. Only claims for that GPU wait.",
            action_by=ActionBy.NOBODY,
            check=(
                "dmesg | grep -i xid   # on the node",
                "timeout 10 nvidia-smi -i UUID; echo $?",
                _TRACE + "   # the longest bar is the step that took the time",
            ),
            remedy=(
                "Nothing if it happens once: the operation continues, and the kubelet's next call "
                "gets its result.",
                "If it persists: reset the GPU or reboot the node. Delete the pod to have it "
                "scheduled elsewhere.",
            ),
            alert=_more_than(2, Reason.DEADLINE_EXCEEDED, "15m"),
        ),
        Reason.DOMAIN_NOT_FOUND: Explanation(
            meaning="The ComputeDomain that a claim or an IMEX daemon belongs to does not exist "
            "(any more) or is being deleted, or a new ComputeDomain has the same name.",
            action_by=ActionBy.MIXED,
            check=("kubectl get computedomains -A", _DAEMONS),
            remedy=(
                "Nothing while the domain is being deleted: its pods are deleted with it.",
                "If pods stay: see the controller's log, and delete the DaemonSet "
                "computedomain-daemon-DOMAIN_UID.",
                "A claim that was created by hand: use the claim template that the domain names. "
                "If the domain was created again, delete the pods of the old domain.",
            ),
            alert="None.",
        ),
        Reason.NAMESPACE_MISMATCH: Explanation(
            meaning="A claim is in the wrong namespace. A claim for a channel must be in the "
            "namespace of its ComputeDomain, and the claim of a daemon in a namespace of the "
            "driver.",
            action_by=ActionBy.USER,
            check=(_CLAIM, "kubectl get computedomains -A"),
            remedy=(
                "Run the workload in the namespace of the domain, with the claim template that the "
                "domain names.",
                "The class compute-domain-daemon.nvidia.com is for the controller's own pods. Do "
                "not use it for other pods.",
            ),
            alert="On claims of the daemons' class in other namespaces: somebody tries to use what "
            "is reserved for the driver.",
        ),
        Reason.NODE_IN_OTHER_DOMAIN: Explanation(
            meaning="The node belongs to another ComputeDomain. A node can belong to one at a "
            "time.",
            action_by=ActionBy.NOBODY,
            check=(
                "kubectl get node NODE -L resource.nvidia.com/computeDomain   # the domain's UID",
                "kubectl get computedomains -A "
                "-o custom-columns=NS:.metadata.namespace,NAME:.metadata.name,UID:.metadata.uid",
                _CD_STATUS + "   # which claims hold the node's channels",
            ),
            remedy=(
                "Wait while pods of the other domain end: the claim is prepared as soon as the "
                "last of their channels is released.",
                "If the label is left over and no claim of that domain is prepared on the node: "
                "`kubectl label node NODE resource.nvidia.com/computeDomain-`.",
            ),
            alert=_more_than(5, Reason.NODE_IN_OTHER_DOMAIN, "30m"),
        ),
        Reason.NOT_A_DAEMON: Explanation(
            meaning="A pod uses a claim of the class compute-domain-daemon.nvidia.com, but it is "
            "not the daemon of that domain on that node.",
            action_by=ActionBy.USER,
            check=(_CLAIM, _DAEMONS),
            remedy=(
                "Delete the pod. The controller creates the daemons, with one DaemonSet for each "
                "domain.",
                "If it is the controller's own pod: make sure that admission webhooks do not "
                "change the labels and the owner of the DaemonSet's pods.",
            ),
            alert="On every one: somebody tries to use what is reserved for the driver.",
        ),
        Reason.DOMAIN_FULL: Explanation(
            meaning="The ComputeDomain has as many nodes of one NVLink clique as an IMEX domain "
            "may have (18, or `nvdra-cd-controller.controller.maxNodesPerImexDomain` in the "
            "chart's values). The daemon of an additional node waits until another node leaves.",
            action_by=ActionBy.MIXED,
            check=(_DOMAIN, _CLIQUES + "   # daemons: which node has which index", _DAEMONS),
            remedy=(
                "Run the workload on fewer nodes of one clique, or as two domains.",
                "Raise the value (`helm upgrade`) as far as the hardware's documentation allows, "
                "and create the domain again.",
                "Entries of nodes that no longer exist: the controller removes them. Make sure "
                "that it runs.",
            ),
            alert="On every one: a workload waits.",
        ),
        Reason.DAEMON_NOT_READY: Explanation(
            meaning="The IMEX daemon of a node is not READY; the message says why. Pods on that "
            "node that use a channel of the domain wait for it. Other nodes do not.",
            action_by=ActionBy.MIXED,
            check=(_DOMAIN, _CLIQUES + "   # daemons: status and message", _DAEMON_LOG),
            remedy=(
                "Wait half a minute after the start of the daemon.",
                "If the DaemonSet cannot create the pod: the message has the API server's error, "
                "for instance a quota or a policy of the driver's namespace. If there is no "
                "DaemonSet: check whether the controller runs "
                "(`kubectl -n nvdra-system get pods`).",
                "If the daemon's own claim fails: see the reason in the message on this page.",
                "If nvidia-imex exits: the message has its last line, and the pod's log has all of "
                "them. Often another nvidia-imex runs on the node: "
                "`systemctl disable --now nvidia-imex` and mask it.",
                "If it stays INITIALIZING: check the fabric of the node (`nvidia-smi -q`, section "
                "Fabric) and the fabric manager.",
                "If it waits for a quorum: the nodes that it was connected with are gone. Delete "
                "the daemon's pod to form the domain again without them.",
            ),
            alert="`increase(nvdra_imex_restarts_total[10m]) > 3`.",
        ),
        Reason.IMEX_BINARY_MISSING: Explanation(
            meaning="nvidia-imex or nvidia-imex-ctl cannot be run in the daemon's container. Both "
            "are part of the node's driver installation and are mounted with CDI.",
            action_by=ActionBy.ADMINISTRATOR,
            check=(
                _DOMAIN + "   # which node",
                "ls -l /usr/bin/nvidia-imex /usr/bin/nvidia-imex-ctl   # below the driver root",
                "kubectl -n nvdra-system exec DAEMON_POD -- nvdra-imex-daemon check",
            ),
            remedy=(
                "Install the package nvidia-imex on the node, in exactly the driver's version.",
                "Delete the daemon's pod, so that a container with these files is created.",
            ),
            alert='`increase(nvdra_imex_restarts_total{reason="refused"}[10m]) > 3`.',
        ),
        Reason.FABRIC_ERROR: Explanation(
            meaning="The GPUs of a node have not joined their NVLink fabric (yet), have left it, "
            "or are in different cliques. The plugin does not know which nodes can share memory "
            "with this node, and offers no channel on it, unless it has known the clique in this "
            "boot.",
            action_by=ActionBy.MIXED,
            check=(
                "nvidia-smi -q | grep -A8 Fabric   # on the node",
                _CD_STATUS + "   # which GPU, and what it lacks",
            ),
            remedy=(
                "Wait a few minutes after a boot. The plugin checks every 5 s and continues by "
                "itself.",
                "If it persists: check the fabric manager of the rack, and reset the GPUs that the "
                "status names.",
                "To use the node without fabric: set `CrashOnNVLinkFabricErrors: false` below "
                "`global.featureGates` in the chart's values.",
            ),
            alert=_not_ready("cd", "fifteen minutes") + " No claim fails: such a node offers "
            "nothing that a claim could ask for.",
        ),
        Reason.NAME_TAKEN: Explanation(
            meaning="An object that a ComputeDomain needs cannot be created, because another "
            "object has its name. Usually it is a ResourceClaimTemplate that was created by hand, "
            "or the template of a second domain with the same template name.",
            action_by=ActionBy.USER,
            check=(
                _DOMAIN + "   # which object has the name",
                "kubectl -n NAMESPACE get computedomains -o wide",
                "kubectl -n NAMESPACE get resourceclaimtemplates --show-labels",
            ),
            remedy=(
                "Delete or rename the object that the message names, if it is not needed. The "
                "domain continues within half a minute.",
                "Otherwise delete the domain and create it again with another name in "
                "`spec.channel.resourceClaimTemplate.name`.",
            ),
            alert="None: it is an error in one user's manifest.",
        ),
        Reason.INTERNAL: Explanation(
            meaning="A bug of the driver. The log has the stack trace, with the same trace ID.",
            action_by=ActionBy.DEVELOPERS,
            check=(_LOG + " | grep TRACE_ID",),
            remedy=(
                "Report it with that log and the claim's trace. Delete the pod to start again.",
            ),
            alert=_more_than(0, Reason.INTERNAL, "1h"),
        ),
    }
)
