// SPDX-License-Identifier: Apache-2.0

/* How GPUs lie to each other and to the processors: PCI roots, NUMA nodes, NVLinks (nvml-simulator.md §6.3). */
#include "sim.h"

enum { P2P_INDEX_NVLINK = 2, P2P_INDEX_COUNT = 5, P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };
enum { AFFINITY_SCOPES = 2 };

static unsigned common_ancestor(const struct gpu *one, const struct sim_gpu_spec *other)
{
    if (one->spec == other)
        return NVML_TOPOLOGY_INTERNAL;
    if (strcmp(one->spec->pcie_root, other->pcie_root) == 0)
        return NVML_TOPOLOGY_HOST_BRIDGE;
    bool same_node = one->spec->numa_node >= 0 && one->spec->numa_node == other->numa_node;
    return same_node ? NVML_TOPOLOGY_NUMA_NODE : NVML_TOPOLOGY_SYSTEM;
}

EXPORT nvml_code nvmlDeviceGetTopologyCommonAncestor(nvml_device one, nvml_device two, unsigned *level)
{
    struct gpu other;
    CALL(nvmlDeviceGetTopologyCommonAncestor);
    REQUIRE_POINTER(level);
    GPU(one);
    REQUIRE_OK(gpu_of(two, &call, &other));
    REQUIRE(!other.is_mig, NVML_NOT_SUPPORTED);
    *level = common_ancestor(&gpu, other.spec);
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetTopologyNearestGpus(
    nvml_device device, unsigned level, unsigned *count, nvml_device *nearest)
{
    CALL(nvmlDeviceGetTopologyNearestGpus);
    REQUIRE_POINTER(count);
    GPU(device);
    unsigned room = nearest == NULL ? 0 : *count, found = 0;
    for (unsigned other = 0; other < description()->gpu_count; other++) {
        if (other == gpu.number || !gpu_is_visible(other) ||
            common_ancestor(&gpu, &description()->gpus[other]) != level)
            continue;
        if (found < room)
            nearest[found] = handle_of(other);
        found++;
    }
    *count = found;
    RETURN(nearest == NULL || found <= room ? NVML_SUCCESS : NVML_INSUFFICIENT_SIZE);
}

EXPORT nvml_code nvmlDeviceGetP2PStatus(nvml_device one, nvml_device two, unsigned index, unsigned *status)
{
    struct gpu other;
    CALL(nvmlDeviceGetP2PStatus);
    REQUIRE_POINTER(status);
    REQUIRE(index < P2P_INDEX_COUNT, NVML_INVALID_ARGUMENT);
    GPU(one);
    REQUIRE_OK(gpu_of(two, &call, &other));
    REQUIRE(!other.is_mig, NVML_NOT_SUPPORTED);
    bool linked = gpu.spec->nvlinks > 0 && other.spec->nvlinks > 0;
    *status = index != P2P_INDEX_NVLINK || linked ? P2P_OK : P2P_NOT_SUPPORTED;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceOnSameBoard(nvml_device one, nvml_device two, int *same)
{
    struct gpu other;
    CALL(nvmlDeviceOnSameBoard);
    REQUIRE_POINTER(same);
    GPU(one);
    REQUIRE_OK(gpu_of(two, &call, &other));
    REQUIRE(!other.is_mig, NVML_NOT_SUPPORTED);
    *same = gpu.number == other.number;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetNvLinkState(nvml_device device, unsigned link, unsigned *active)
{
    CALL(nvmlDeviceGetNvLinkState);
    REQUIRE_POINTER(active);
    GPU(device);
    REQUIRE(gpu.spec->nvlinks > 0, NVML_NOT_SUPPORTED);
    REQUIRE(link < gpu.spec->nvlinks, NVML_INVALID_ARGUMENT);
    *active = 1;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetNumaNodeId(nvml_device device, unsigned *node)
{
    CALL(nvmlDeviceGetNumaNodeId);
    REQUIRE_POINTER(node);
    GPU(device);
    RETURN(answer_number(node, gpu.spec->memory_numa_node));
}

/* ---- affinity: bit sets of machine words -------------------------------------------------------------- */

enum { WORD_BITS = 8 * sizeof(unsigned long) };

static void set_bit(unsigned long *words, unsigned size, unsigned bit)
{
    if (bit / WORD_BITS < size)
        words[bit / WORD_BITS] |= 1UL << bit % WORD_BITS;
}

/* NUMA nodes have equal runs of processors, as the simulated sysfs says; an unknown one is near the first two. */
static void processors_of(int node, unsigned size, unsigned long *set)
{
    unsigned run = description()->cpus_per_numa_node;
    unsigned first = node < 0 ? 0 : (unsigned)node * run;
    unsigned end = node < 0 ? 2 * run : first + run;
    memset(set, 0, size * sizeof *set);
    for (unsigned processor = first; processor < end; processor++)
        set_bit(set, size, processor);
}

EXPORT nvml_code nvmlDeviceGetCpuAffinity(nvml_device device, unsigned size, unsigned long *set)
{
    CALL(nvmlDeviceGetCpuAffinity);
    REQUIRE(size > 0 && set != NULL, NVML_INVALID_ARGUMENT);
    GPU(device);
    processors_of(gpu.spec->numa_node, size, set);
    RETURN(NVML_SUCCESS);
}

/* The scopes, node and socket, are the same thing on every profile. */
EXPORT nvml_code nvmlDeviceGetCpuAffinityWithinScope(
    nvml_device device, unsigned size, unsigned long *set, unsigned scope)
{
    CALL(nvmlDeviceGetCpuAffinityWithinScope);
    REQUIRE(size > 0 && set != NULL && scope < AFFINITY_SCOPES, NVML_INVALID_ARGUMENT);
    GPU(device);
    processors_of(gpu.spec->numa_node, size, set);
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetMemoryAffinity(nvml_device device, unsigned size, unsigned long *set, unsigned scope)
{
    CALL(nvmlDeviceGetMemoryAffinity);
    REQUIRE(size > 0 && set != NULL && scope < AFFINITY_SCOPES, NVML_INVALID_ARGUMENT);
    GPU(device);
    REQUIRE(gpu.spec->numa_node >= 0, NVML_NOT_SUPPORTED);
    memset(set, 0, size * sizeof *set);
    set_bit(set, size, (unsigned)gpu.spec->numa_node);
    RETURN(NVML_SUCCESS);
}
