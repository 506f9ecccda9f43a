"""What each reason means and what to do about it, for people: `docs/reasons.md` is made from this.

Texts only; nothing in the driver reads them. A reason without an entry fails a unit test.
Source: spec/tracing.md §3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from nvdra_api.types.errors import Reason


class Mover(StrEnum):
    """Who has to do something before a call can succeed."""

    USER = "permanent: the user changes the claim, its config or the pod"
    ADMINISTRATOR = "permanent: the administrator changes the node, the driver or the hardware"
    NOBODY = "retryable: it passes by itself; the kubelet asks again"
    MIXED = "either: the text says whether somebody has to act"
    US = "a bug of the driver; the kubelet asks again"


@dataclass(frozen=True, slots=True)
class Explanation:
    """One section of the page.

    Attributes:
        meaning: What is the case.
        mover: Whether repeating the call can help, and if not, who must act.
        check: Commands that show it.
        remedy: What to do, in the order in which to try it.
        alert: When it deserves somebody's attention, in terms of the metrics.
    """

    meaning: str
    mover: Mover
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
_READY: Final = _STATUS + "   # what keeps it from being ready"

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


def _not_ready(plugin: str, how_long: str) -> str:
    """As kube-state-metrics has it; a pod is called after its release, too."""
    pods = f'pod=~".*nvdra-{plugin}-plugin-.*"'
    return f'`kube_pod_status_ready{{{pods},condition="true"}} == 0` for {how_long}.'


EXPLANATIONS: Final[Mapping[Reason, Explanation]] = MappingProxyType(
    {
        Reason.CLAIM_NOT_FOUND: Explanation(
            meaning="The kubelet asked for a claim that the API server does not have (any more): "
            "it was deleted while its pod was being started.",
            mover=Mover.USER,
            check=("kubectl -n NAMESPACE get resourceclaims", "kubectl -n NAMESPACE get pod POD"),
            remedy=(
                "Usually nothing: the pod is being deleted too, or its owner makes a new one.",
                "A pod that stays and refers to the claim by name: make the claim again and delete "
                "the pod, so that it is scheduled with the new one.",
            ),
            alert="Not by itself; many at once mean that something deletes claims in use.",
        ),
        Reason.CLAIM_UID_CHANGED: Explanation(
            meaning="There is a claim of this name, but it is another one than the pod was "
            "scheduled with: it was deleted and made again under the same name.",
            mover=Mover.USER,
            check=(_CLAIM + "   # metadata.uid", "kubectl -n NAMESPACE get pod POD -o yaml"),
            remedy=(
                "Delete the pod; its replacement is scheduled with the claim that is there now.",
            ),
            alert="Not by itself.",
        ),
        Reason.NOT_ALLOCATED: Explanation(
            meaning="The claim has no device of this driver: the scheduler has not decided yet, or "
            "the allocation was taken back.",
            mover=Mover.NOBODY,
            check=(_CLAIM + "   # status.allocation, status.reservedFor",),
            remedy=(
                "Nothing for a minute: the kubelet asks again and the scheduler decides.",
                "If it stays: a pod with `nodeName` set goes past the scheduler and never has its "
                "claims allocated; remove `nodeName`.",
            ),
            alert=_more_than(3, Reason.NOT_ALLOCATED, "10m"),
        ),
        Reason.UNKNOWN_DEVICE: Explanation(
            meaning="The claim was allocated a device that this node does not have, has under "
            "another identity now, or cannot hand out in its present mode.",
            mover=Mover.USER,
            check=(_SLICES, _STATUS),
            remedy=(
                "Delete the pod, so that it is scheduled anew with what the node offers now.",
                "A board that disappeared: see the node's kernel log and `nvidia-smi`.",
            ),
            alert="More than a few in an hour: boards come and go, or slices are stale "
            '(`nvdra_resourceslice_writes_total{outcome!="success"}`).',
        ),
        Reason.DEVICE_IN_USE: Explanation(
            meaning="Another claim still holds the device on this node. Typical after a pod was "
            "deleted by force: the API server gave the device to the next pod while the first "
            "one's containers were still running.",
            mover=Mover.NOBODY,
            check=(
                _STATUS + "   # who holds it, since when",
                "kubectl -n NAMESPACE get pods -o wide",
            ),
            remedy=(
                "Nothing: the device is handed over as soon as the kubelet has stopped the "
                "holder's containers and unprepared its claim.",
                "If the holder's pod still runs and should not, delete it.",
                "If the holder's pod is gone for more than a few minutes, see whether the node's "
                "kubelet works.",
            ),
            alert=_more_than(5, Reason.DEVICE_IN_USE, "10m"),
        ),
        Reason.DEVICE_UNHEALTHY: Explanation(
            meaning="The board is there and does not work: NVML answered with an error when it was "
            "asked right before the hand-over, or its health has been bad before.",
            mover=Mover.ADMINISTRATOR,
            check=("dmesg | grep -i xid   # on the node", "nvidia-smi -q -i UUID", _STATUS),
            remedy=(
                "Delete the pod to have it scheduled to another GPU.",
                "Reset the GPU (`nvidia-smi -r -i UUID`) once no container uses it, or reboot. "
                "The plugin has it open, too: delete its pod of the node as well.",
                "If it comes back, drain the node and have the board replaced.",
            ),
            alert="`increase(nvdra_device_health_events_total[10m]) > 0`.",
        ),
        Reason.DEVICE_NODE_MISSING: Explanation(
            meaning="A file that the container needs for the device is not on the node, or is "
            "another device now: a /dev node, a file of the driver, or the CDI spec naming them.",
            mover=Mover.ADMINISTRATOR,
            check=("ls -l /dev/nvidia*   # on the node", "ls -l /var/run/cdi", _STATUS),
            remedy=(
                "`nvidia-modprobe -c0 -u` on the node makes device nodes again.",
                "A driver that was changed: the plugin notices within seconds, no restart.",
                "A CDI directory that cannot be written or is full: repair it.",
            ),
            alert="`increase(nvdra_device_health_events_total[10m]) > 0`.",
        ),
        Reason.DRIVER_MISMATCH: Explanation(
            meaning="The NVIDIA driver of the node is missing, does not start or has changed: "
            "either no GPU can be used at all, or the claim would mix two driver versions.",
            mover=Mover.MIXED,
            check=(_READY, "nvidia-smi   # on the node", "kubectl describe node NODE"),
            remedy=(
                "No driver: install or repair it; the plugin notices within seconds, no restart.",
                "Library and kernel module of different versions: reload the module or reboot.",
                "Claims of an older driver version: delete the pod, so that all of its claims are "
                "prepared with one.",
            ),
            alert=_not_ready("(gpu|cd)", "ten minutes") + " Or an Event DriverMismatch on a Node.",
        ),
        Reason.INVALID_CONFIG: Explanation(
            meaning="The opaque config in the claim or in its device class is not valid, does not "
            "fit the device, or asks for what this version does not have; or a ComputeDomain's "
            "spec cannot be served. The text names every problem by its field.",
            mover=Mover.USER,
            check=(_CLAIM + "   # spec.devices.config", "kubectl get deviceclass CLASS -o yaml"),
            remedy=(
                "Correct the fields that are named; a claim cannot be changed, so change its "
                "template and delete the pod.",
            ),
            alert="Not by itself: it is one user's manifest.",
        ),
        Reason.FEATURE_GATE_DISABLED: Explanation(
            meaning="The config is valid, but needs a feature gate that is off on this node.",
            mover=Mover.ADMINISTRATOR,
            check=(_LOG + " | grep feature-gates", "helm -n nvdra-system get values RELEASE --all"),
            remedy=(
                "Administrator: switch the gate on (`global.featureGates` in the chart's values).",
                "User: leave out the part of the config that needs it.",
            ),
            alert="Not by itself.",
        ),
        Reason.LOCK_TIMEOUT: Explanation(
            meaning="Another claim was working on the same board until the caller's time was over; "
            "the text names it. Or a second plugin was started for the same node.",
            mover=Mover.NOBODY,
            check=(_STATUS, _TRACE + "   # of the claim that is named"),
            remedy=(
                "Nothing once; the kubelet asks again.",
                "If it stays, the board hangs: see DeadlineExceeded and DeviceUnhealthy.",
                "Two plugins: remove the one that is named second; it has ended by itself.",
            ),
            alert="`histogram_quantile(0.99, sum by (le) "
            "(rate(nvdra_lock_wait_seconds_bucket[10m]))) > 10`.",
        ),
        Reason.STATE_CORRUPT: Explanation(
            meaning="Which devices are in use cannot be told: a record of a prepared claim, or the "
            "file they are in, is damaged, and the kubelet's own record does not say either; or "
            "the file is of a newer version. Claims whose records are whole are not affected.",
            mover=Mover.ADMINISTRATOR,
            check=(
                "ls -l /var/lib/kubelet/plugins/gpu.nvidia.com   # on the node",
                "ls -l /var/lib/kubelet/dra_manager_state   # on the node",
                _LOG,
            ),
            remedy=(
                "A record that cannot be read: delete the pods of the claim that is named.",
                "A damaged file is set aside as `state.sqlite.corrupt-TIME`; keep it for a report. "
                "What it said is taken from the kubelet's `dra_manager_state`: where the text says "
                "that this cannot be read, mend that (the chart mounts the kubelet's directory).",
                "Nothing helps: drain the node and reboot it, or remove the file that the text "
                "names once no pod of the node uses a GPU.",
                "Written by a newer version: install that version again.",
            ),
            alert=_more_than(0, Reason.STATE_CORRUPT, "10m"),
        ),
        Reason.STATE_UNAVAILABLE: Explanation(
            meaning="The state file cannot be written: its disk is full, read-only or broken. "
            "Nothing is prepared or unprepared meanwhile; what is held stays held and is answered.",
            mover=Mover.NOBODY,
            check=(
                "df -h /var/lib/kubelet; mount | grep /var/lib/kubelet   # on the node",
                _READY,
                _LOG,
            ),
            remedy=("Make room or repair the disk; nothing else is needed, it goes on by itself.",),
            alert=_more_than(0, Reason.STATE_UNAVAILABLE, "10m"),
        ),
        Reason.API_UNAVAILABLE: Explanation(
            meaning="The API server did not answer, refused, or answered with nonsense. Claims "
            "that are prepared already are not affected.",
            mover=Mover.NOBODY,
            check=(
                "kubectl get --raw /readyz",
                _LOG,
                "kubectl auth can-i get resourceclaims "
                "--as=system:serviceaccount:nvdra-system:SERVICE_ACCOUNT",
            ),
            remedy=(
                "Nothing for an outage: the kubelet asks again, and so does the driver.",
                "401 or 403 in the text: restore the driver's service account and its role "
                "(`helm upgrade` does).",
                "Connection refused or timed out only from this node: see the node's network.",
            ),
            alert='`increase(nvdra_api_requests_seconds_count{code!~"2..|404"}[5m]) > 10`.',
        ),
        Reason.DEADLINE_EXCEEDED: Explanation(
            meaning="Something did not answer in the time the kubelet gives a call (45 s): usually "
            "a board that hangs in the NVIDIA driver. Only claims for that board wait.",
            mover=Mover.NOBODY,
            check=(
                "dmesg | grep -i xid   # on the node",
                "timeout 10 nvidia-smi -i UUID; echo $?",
                _TRACE + "   # its longest bar is what was waited for",
            ),
            remedy=(
                "Nothing once: the work goes on, and the kubelet's next call finds it.",
                "If it stays: reset the GPU or reboot the node; delete the pod to have it "
                "scheduled elsewhere.",
            ),
            alert=_more_than(2, Reason.DEADLINE_EXCEEDED, "15m"),
        ),
        Reason.DOMAIN_NOT_FOUND: Explanation(
            meaning="The ComputeDomain that a claim names or a daemon works for is not there (any "
            "more), is being deleted, or another one has its name.",
            mover=Mover.MIXED,
            check=("kubectl get computedomains -A", _DAEMONS),
            remedy=(
                "Nothing while the domain is being deleted: its pods go with it.",
                "Pods that stay: see the controller's log; delete the DaemonSet "
                "computedomain-daemon-DOMAIN_UID.",
                "A claim that was made by hand: use the claim template that the domain names. Of a "
                "domain that was made anew, delete the pods of the old one.",
            ),
            alert="Not by itself.",
        ),
        Reason.NAMESPACE_MISMATCH: Explanation(
            meaning="A claim is in a namespace where it may not be: a channel's in another than "
            "its ComputeDomain, or a daemon's outside the driver's namespaces.",
            mover=Mover.USER,
            check=(_CLAIM, "kubectl get computedomains -A"),
            remedy=(
                "A workload uses the claim template that its domain names, and is in the domain's "
                "namespace.",
                "The class compute-domain-daemon.nvidia.com is for the controller's own pods; "
                "nothing else needs it.",
            ),
            alert="Claims of the daemons' class from other namespaces: somebody tries what they "
            "should not.",
        ),
        Reason.NODE_IN_OTHER_DOMAIN: Explanation(
            meaning="The node works for another ComputeDomain; it can be in one at a time.",
            mover=Mover.NOBODY,
            check=(
                "kubectl get node NODE -L resource.nvidia.com/computeDomain   # the domain's UID",
                "kubectl get computedomains -A "
                "-o custom-columns=NS:.metadata.namespace,NAME:.metadata.name,UID:.metadata.uid",
                _CD_STATUS + "   # who holds the node's channels",
            ),
            remedy=(
                "Nothing while pods of the other domain end: the claim gets its turn as soon as "
                "the last of their channels is given back.",
                "The label is left over and no claim of that domain is held on the node: "
                "`kubectl label node NODE resource.nvidia.com/computeDomain-`.",
            ),
            alert=_more_than(5, Reason.NODE_IN_OTHER_DOMAIN, "30m"),
        ),
        Reason.NOT_A_DAEMON: Explanation(
            meaning="A claim of class compute-domain-daemon.nvidia.com is used by a pod that is "
            "not its domain's own daemon on that node.",
            mover=Mover.USER,
            check=(_CLAIM, _DAEMONS),
            remedy=(
                "Delete the pod. Daemons are made by the controller, one DaemonSet a domain.",
                "It is the controller's own pod: see that the labels and the owner of the "
                "DaemonSet's pods are left alone by admission webhooks.",
            ),
            alert="Every one: somebody tries what they should not.",
        ),
        Reason.DOMAIN_FULL: Explanation(
            meaning="As many nodes of one NVLink clique work in the domain as one IMEX domain may "
            "have (18, or the chart's `nvdra-cd-controller.controller.maxNodesPerImexDomain`). The "
            "daemon of one more node waits until another leaves.",
            mover=Mover.MIXED,
            check=(_DOMAIN, _CLIQUES + "   # daemons: who has which index", _DAEMONS),
            remedy=(
                "Run the workload on fewer nodes of one clique, or as two domains.",
                "Raise that value (`helm upgrade`) as far as the hardware's documentation allows, "
                "and make the domain anew.",
                "Entries of nodes that are gone: the controller removes them; see that it runs.",
            ),
            alert="Every one: a workload waits.",
        ),
        Reason.DAEMON_NOT_READY: Explanation(
            meaning="The IMEX daemon of a node is not READY; the text says what it lacks. Pods of "
            "that node that want a channel of the domain wait for it; its peers do not.",
            mover=Mover.MIXED,
            check=(_DOMAIN, _CLIQUES + "   # daemons: status and message", _DAEMON_LOG),
            remedy=(
                "Nothing for half a minute after the start.",
                "Its DaemonSet could not make the pod: the text has the API server's words, a "
                "quota or a policy of the driver's namespace for instance. There is no DaemonSet: "
                "see whether the controller runs (`kubectl -n nvdra-system get pods`).",
                "Its own claim is refused: the reason in the text has an entry of its own here.",
                "nvidia-imex ends by itself: its last line says why, all of it is in the pod's "
                "log. Often another nvidia-imex runs on the node: `systemctl disable --now "
                "nvidia-imex` and mask it.",
                "It stays INITIALIZING: see the fabric of the node (`nvidia-smi -q`, section "
                "Fabric) and the fabric manager.",
                "It waits for a quorum: the nodes it was connected with before are away; delete "
                "the daemon's pod to form anew without them.",
            ),
            alert="`increase(nvdra_imex_restarts_total[10m]) > 3`.",
        ),
        Reason.IMEX_BINARY_MISSING: Explanation(
            meaning="nvidia-imex or nvidia-imex-ctl cannot be run in the daemon's container. Both "
            "come from the node's driver installation, by CDI.",
            mover=Mover.ADMINISTRATOR,
            check=(
                _DOMAIN + "   # which node",
                "ls -l /usr/bin/nvidia-imex /usr/bin/nvidia-imex-ctl   # below the driver root",
                "kubectl -n nvdra-system exec DAEMON_POD -- nvdra-imex-daemon check",
            ),
            remedy=(
                "Install the package nvidia-imex of exactly the driver's version on the node.",
                "Delete the daemon's pod: its container is made with what is there then.",
            ),
            alert='`increase(nvdra_imex_restarts_total{reason="refused"}[10m]) > 3`.',
        ),
        Reason.FABRIC_ERROR: Explanation(
            meaning="The GPUs of a node have not joined their NVLink fabric, failed to, or are in "
            "different cliques: nobody can tell with whom the node shares memory. Nothing is "
            "offered for ComputeDomains there.",
            mover=Mover.MIXED,
            check=(
                "nvidia-smi -q | grep -A8 Fabric   # on the node",
                _CD_STATUS + "   # which GPU, and what it lacks",
            ),
            remedy=(
                "Nothing for the first minutes after a boot; the plugin looks every 5 s and goes "
                "on by itself.",
                "It stays: see the fabric manager of the rack, and reset the GPUs that are named.",
                "The node is to be used without fabric: `global.featureGates` in the chart's "
                "values, `CrashOnNVLinkFabricErrors: false`.",
            ),
            alert=_not_ready("cd", "fifteen minutes") + " No claim tells it: such a node offers "
            "nothing that one could ask for.",
        ),
        Reason.NAME_TAKEN: Explanation(
            meaning="A ComputeDomain cannot be given one of its objects, because another object of "
            "that name is there already and is not the domain's: usually a ResourceClaimTemplate "
            "that somebody made by hand, or that of a second domain which names the same template.",
            mover=Mover.USER,
            check=(
                _DOMAIN + "   # what has its name",
                "kubectl -n NAMESPACE get computedomains -o wide",
                "kubectl -n NAMESPACE get resourceclaimtemplates --show-labels",
            ),
            remedy=(
                "Delete or rename the object that is named, if it is not needed: the domain goes "
                "on within half a minute.",
                "Otherwise delete the domain and make it again with another name in "
                "`spec.channel.resourceClaimTemplate.name`.",
            ),
            alert="Not by itself: it is one user's manifest.",
        ),
        Reason.INTERNAL: Explanation(
            meaning="Something happened that the driver does not know: a bug. The log has the "
            "stack, under the same trace ID.",
            mover=Mover.US,
            check=(_LOG + " | grep TRACE_ID",),
            remedy=(
                "Report it with that log and the claim's trace; delete the pod to start over.",
            ),
            alert=_more_than(0, Reason.INTERNAL, "1h"),
        ),
    }
)
