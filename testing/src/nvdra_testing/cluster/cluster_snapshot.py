# SPDX-License-Identifier: Apache-2.0
"""Everything that an installation can leave behind in a cluster, at one moment.

Objects of the API by kind, namespace and name; labels and annotations of nodes; files of nodes in
the directories that the driver writes to.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nvdra_testing.cluster.installation import Cluster

DIRECTORIES = (
    "/var/lib/kubelet/plugins",
    "/var/lib/kubelet/plugins_registry",
    "/var/run/cdi",
    "/etc/cdi",
    "/dev/nvidia-caps-imex-channels",
)
PASSING = ("events", "events.events.k8s.io", "componentstatuses", "leases.coordination.k8s.io")
"""Kinds that come and go by themselves, or are no objects."""


@dataclass(frozen=True)
class ClusterSnapshot:
    """What is there, a line each."""

    objects: frozenset[str]
    node_metadata: frozenset[str]
    files: frozenset[str]

    @classmethod
    def take(cls, cluster: Cluster) -> "ClusterSnapshot":
        """Look at everything once."""
        return cls(
            frozenset(_objects(cluster)),
            frozenset(_node_metadata(cluster)),
            frozenset(_files(cluster)),
        )

    def added_since(self, before: "ClusterSnapshot") -> set[str]:
        """The lines that are new."""
        return {
            *(self.objects - before.objects),
            *(self.node_metadata - before.node_metadata),
            *(self.files - before.files),
        }

    def gone_since(self, before: "ClusterSnapshot") -> set[str]:
        """The lines that are no more."""
        return before.added_since(self)


def _objects(cluster: Cluster) -> Iterator[str]:
    kinds = cluster.kubectl.run("api-resources", "--verbs=list", "-o", "name").split()
    listed = ",".join(sorted(set(kinds) - set(PASSING)))
    columns = "K:.kind,S:.metadata.namespace,N:.metadata.name"
    text = cluster.kubectl.run(
        "get", listed, "-A", "--no-headers", "--ignore-not-found", "-o", f"custom-columns={columns}"
    )
    for line in text.splitlines():
        kind, namespace, name = line.split()
        yield f"{kind} {name}" if namespace == "<none>" else f"{kind} {namespace}/{name}"


def _node_metadata(cluster: Cluster) -> Iterator[str]:
    for node in cluster.kubectl.get("nodes"):
        metadata = node["metadata"]
        for kind in ("labels", "annotations"):
            for key, value in metadata.get(kind, {}).items():
                yield f"{kind} of {metadata['name']}: {key}={value}"


def _files(cluster: Cluster) -> Iterable[str]:
    for node in cluster.nodes():
        found = cluster.exec_on_node(
            node, "sh", "-c", f"find {' '.join(DIRECTORIES)} 2> /dev/null || true"
        )
        yield from (f"{node}:{path}" for path in found.splitlines())
