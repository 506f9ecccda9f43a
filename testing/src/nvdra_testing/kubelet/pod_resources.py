# SPDX-License-Identifier: Apache-2.0
"""The kubelet's PodResources service, by which Kata Containers learns the devices of a pod."""

from pathlib import Path

import grpc

MESSAGES = "nvdra_testing/kubelet/pod_resources.proto"
LIST = "/v1.PodResourcesLister/List"
TIMEOUT_S = 10.0


def cdi_ids(socket: Path, namespace: str, pod: str) -> dict[str, list[str]]:
    """The CDI ids of a pod's claims: device → ids, of all its containers.

    Args:
        socket: `pod-resources/kubelet.sock` of the kubelet's directory.
        namespace: The namespace of the pod.
        pod: The name of the pod.

    Raises:
        grpc.RpcError: The kubelet does not answer.
    """
    messages = grpc.protos(MESSAGES)
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        call = channel.unary_unary(
            LIST,
            request_serializer=messages.ListPodResourcesRequest.SerializeToString,
            response_deserializer=messages.ListPodResourcesResponse.FromString,
        )
        answer = call(messages.ListPodResourcesRequest(), timeout=TIMEOUT_S)
    return {
        device.device_name: [each.name for each in device.cdi_devices]
        for found in answer.pod_resources
        if (found.namespace, found.name) == (namespace, pod)
        for container in found.containers
        for claim in container.dynamic_resources
        for device in claim.claim_resources
    }
