# SPDX-License-Identifier: Apache-2.0
"""Names of span attributes, metrics and metric labels.

Names of OpenTelemetry's semantic conventions are used where they exist. Other names begin with
`nvdra`. The names of spans are with the code that creates them.
Source: docs/reference/tracing.md, "Spans", "Metrics"; docs/reference/gpu-prepare.md, "Metrics and
timing logs".
"""

from enum import StrEnum
from typing import Final

# Attributes of the resource (docs/reference/tracing.md, "Spans").
SERVICE_NAMESPACE: Final = "service.namespace"
SERVICE_NAME: Final = "service.name"
SERVICE_VERSION: Final = "service.version"
K8S_NODE_NAME: Final = "k8s.node.name"
K8S_POD_UID: Final = "k8s.pod.uid"

# Span attributes: Kubernetes objects and hardware.
K8S_NAMESPACE_NAME: Final = "k8s.namespace.name"
K8S_RESOURCECLAIM_NAME: Final = "k8s.resourceclaim.name"
K8S_RESOURCECLAIM_UID: Final = "k8s.resourceclaim.uid"
HW_ID: Final = "hw.id"
"""UUIDs of the GPUs."""
HW_TYPE: Final = "hw.type"
HW_TYPE_GPU: Final = "gpu"
ERROR_TYPE: Final = "error.type"
"""A `nvdra_api.errors.Reason` (docs/reference/tracing.md, "Reason codes")."""

# Span attributes of nvdra.
ATTEMPT: Final = "nvdra.attempt"
"""Number of the attempt of this operation on this claim, from 1."""
OUTCOME: Final = "nvdra.outcome"
"""An `Outcome`."""
DEVICE_KIND: Final = "nvdra.device_kind"
"""Kind of the claim's devices: `gpu`, `mig` or `vfio`."""
DEVICES: Final = "nvdra.devices"
"""Names of the claim's devices on this node."""
HOLDER: Final = "nvdra.holder"
"""UID of the claim that held the lock for which the operation waited."""
LINK: Final = "nvdra.link"
"""Attribute of a link: the relation, one of the constants `LINK_…`."""
LINK_INBOUND: Final = "inbound"
"""The linked trace context was sent by a caller."""
NVML_FUNCTION: Final = "nvdra.nvml.function"
CLIQUE: Final = "nvdra.clique"
"""NVLink clique of the node."""
INDEX: Final = "nvdra.index"
"""Index of a daemon in its clique."""
PID: Final = "process.pid"

DOMAIN_NAME: Final = "nvdra.domain.name"
DOMAIN_UID: Final = "nvdra.domain.uid"
ABSENT_PEERS: Final = "nvdra.absent_peers"
"""Nodes of the clique whose daemons were not ready. The operation did not wait for them."""
LACKS: Final = "nvdra.lacks"
"""Why the daemon of the node was not ready."""
LINK_DOMAIN: Final = "domain"
"""The link of the trace of a claim, or of a member of a large domain, to the span of its node in
the trace of the domain."""
LINK_CLAIM: Final = "claim"
"""The link of a domain's trace to the trace of one of its claims."""
LINK_MEMBER: Final = "member"
"""The link of a large domain's trace to the trace of one of its members."""
MEMBERS: Final = "nvdra.members"
"""Number of nodes of a domain."""
WAITS_FOR: Final = "nvdra.waits_for"
"""What an operation was still waiting for when it ended."""

# Metrics of nvdra (docs/reference/tracing.md, "Metrics").
CLAIM_OPERATION_SECONDS: Final = "nvdra_claim_operation_seconds"
STEP_SECONDS: Final = "nvdra_step_seconds"
INSTANCE_ACTIVE: Final = "nvdra_instance_active"
CLAIMS_PREPARED: Final = "nvdra_claims_prepared"
OPERATIONS_IN_FLIGHT: Final = "nvdra_operations_in_flight"
LOCK_WAIT_SECONDS: Final = "nvdra_lock_wait_seconds"
NVML_CALL_SECONDS: Final = "nvdra_nvml_call_seconds"
RESOURCESLICE_WRITES: Final = "nvdra_resourceslice_writes"
DEVICES_METRIC: Final = "nvdra_devices"
KERNEL_DRIVERS_METRIC: Final = "nvdra_gpus_by_kernel_driver"
VFIO_WITHHELD_METRIC: Final = "nvdra_vfio_devices_withheld"
NVML_RELEASED_METRIC: Final = "nvdra_nvml_released"
DEVICE_HEALTH_EVENTS: Final = "nvdra_device_health_events"
API_REQUESTS_SECONDS: Final = "nvdra_api_requests_seconds"
WATCH_RESTARTS: Final = "nvdra_watch_restarts"
SPANS_DROPPED: Final = "nvdra_spans_dropped"
CONNECTIONS_DROPPED: Final = "nvdra_connections_dropped"
TASK_FAILURES: Final = "nvdra_task_failures"
IMEX_RESTARTS: Final = "nvdra_imex_restarts"
IMEX_PEERS: Final = "nvdra_imex_peers"

DOMAIN_INFO: Final = "nvdra_compute_domain_info"
DOMAIN_MEMBERS: Final = "nvdra_compute_domain_members"
DOMAIN_FORMATION_SECONDS: Final = "nvdra_compute_domain_formation_seconds"
DOMAIN_PHASE_SECONDS: Final = "nvdra_compute_domain_phase_seconds"
WORKQUEUE_DEPTH: Final = "nvdra_workqueue_depth"
WORKQUEUE_FAILING: Final = "nvdra_workqueue_failing"

WEBHOOK_REQUESTS: Final = "nvdra_webhook_requests"
WEBHOOK_DURATION_SECONDS: Final = "nvdra_webhook_duration_seconds"
WEBHOOK_CONFIG_ERRORS: Final = "nvdra_webhook_config_errors"
WEBHOOK_WARNINGS: Final = "nvdra_webhook_warnings"
WEBHOOK_BAD_REQUESTS: Final = "nvdra_webhook_bad_requests"
WEBHOOK_INTERNAL_ERRORS: Final = "nvdra_webhook_internal_errors"
WEBHOOK_CERTIFICATE_FAILURES: Final = "nvdra_webhook_certificate_failures"
WEBHOOK_CERTIFICATE_NOT_AFTER_SECONDS: Final = "nvdra_webhook_certificate_not_after_seconds"

# Metrics of the reference driver (docs/reference/gpu-prepare.md, "Metrics and timing logs").
REFERENCE_REQUESTS: Final = "nvidia_dra_requests"
REFERENCE_REQUEST_SECONDS: Final = "nvidia_dra_request_duration_seconds"
REFERENCE_REQUESTS_INFLIGHT: Final = "nvidia_dra_requests_inflight"
REFERENCE_PREPARED_DEVICES: Final = "nvidia_dra_prepared_devices"
REFERENCE_PREPARE_ERRORS: Final = "nvidia_dra_node_prepare_errors"
REFERENCE_UNPREPARE_ERRORS: Final = "nvidia_dra_node_unprepare_errors"
REFERENCE_DOMAIN_INFO: Final = "nvidia_dra_compute_domain_info"

# Labels of metrics. The name of a claim, a pod or a namespace is never a label.
LABEL_DRIVER: Final = "driver"
LABEL_NODE: Final = "node"
LABEL_OPERATION: Final = "operation"
LABEL_DEVICE_KIND: Final = "device_kind"
LABEL_DEVICE_TYPE: Final = "device_type"
LABEL_OUTCOME: Final = "outcome"
LABEL_REASON: Final = "reason"
LABEL_STEP: Final = "step"
LABEL_TASK: Final = "task"
LABEL_FUNCTION: Final = "function"
LABEL_VERB: Final = "verb"
LABEL_CODE: Final = "code"
LABEL_RESOURCE: Final = "resource"
LABEL_KIND: Final = "kind"
LABEL_STATE: Final = "state"
LABEL_KERNEL_DRIVER: Final = "kernel_driver"
LABEL_OBSTACLE: Final = "obstacle"
LABEL_STATUS: Final = "status"
LABEL_PHASE: Final = "phase"
LABEL_VERSION: Final = "version"
LABEL_VERDICT: Final = "verdict"
LABEL_SERVER: Final = "server"
LABEL_ERROR_TYPE: Final = "error_type"

# Operations on a claim: names of spans and values of the label `operation`.
PREPARE: Final = "prepare"
UNPREPARE: Final = "unprepare"


class Outcome(StrEnum):
    """The result of an operation or a step."""

    SUCCESS = "success"
    PERMANENT = "permanent"
    """A retry fails until an object, the node or the hardware changes."""
    RETRYABLE = "retryable"
    """The same call can succeed later."""
    INTERNAL = "internal"
    """A bug of the driver."""
    CANCELLED = "cancelled"
    """The process is shutting down."""
