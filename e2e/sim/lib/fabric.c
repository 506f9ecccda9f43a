// SPDX-License-Identifier: Apache-2.0

/* The NVLink fabric as one GPU sees it (nvml-simulator.md §9), in the four shapes the question has had. */
#include <time.h>

#include "sim.h"

/*
 * What a GPU says while its fabric comes up: for half of the time that nothing has begun, then that it goes on. It
 * knows of no cluster before the end.
 */
static void come_up(struct sim_gpu_state *now)
{
    struct timespec clock;
    uint64_t whole_ns = description()->fabric_bring_up_ms * UINT64_C(1000000);
    if (now->fabric_since_ns == 0 || now->fabric_state != NVML_FABRIC_COMPLETED)
        return;
    clock_gettime(CLOCK_REALTIME, &clock);
    uint64_t passed_ns = (uint64_t)clock.tv_sec * UINT64_C(1000000000) + (uint64_t)clock.tv_nsec - now->fabric_since_ns;
    if (passed_ns >= whole_ns)
        return;
    now->fabric_state = passed_ns < whole_ns / 2 ? NVML_FABRIC_NOT_STARTED : NVML_FABRIC_IN_PROGRESS;
    now->fabric_status = NVML_SUCCESS;
    now->fabric_clique = 0;
    memset(now->fabric_uuid, 0, sizeof now->fabric_uuid);
}

static void describe(const struct sim_gpu_state *now, nvml_fabric_info *info)
{
    *info = (nvml_fabric_info){
        .status = now->fabric_status, .clique = now->fabric_clique, .state = (uint8_t)now->fabric_state};
    memcpy(info->cluster_uuid, now->fabric_uuid, sizeof info->cluster_uuid);
}

EXPORT nvml_code nvmlDeviceGetGpuFabricInfo(nvml_device device, nvml_fabric_info *info)
{
    CALL(nvmlDeviceGetGpuFabricInfo);
    REQUIRE_POINTER(info);
    GPU(device);
    REQUIRE(description()->fabric_supported, NVML_NOT_SUPPORTED);
    come_up(&gpu.now);
    describe(&gpu.now, info);
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetGpuFabricInfoV(nvml_device device, nvml_fabric_info_v3 *info)
{
    CALL(nvmlDeviceGetGpuFabricInfoV);
    REQUIRE_POINTER(info);
    bool third = info->v2.version == NVML_VERSION_WORD(nvml_fabric_info_v3, 3);
    REQUIRE(third || info->v2.version == NVML_VERSION_WORD(nvml_fabric_info_v2, 2), NVML_VERSION_MISMATCH);
    GPU(device);
    REQUIRE(description()->fabric_supported, NVML_NOT_SUPPORTED);
    come_up(&gpu.now);
    describe(&gpu.now, &info->v2.info);
    info->v2.health_mask = gpu.now.fabric_health_mask;
    if (third) {
        info->health_summary = (uint8_t)gpu.now.fabric_health_summary;
        memset(info->padding, 0, sizeof info->padding);
    }
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetGpuFabricInfo_v4(nvml_device device, nvml_fabric_info_v4 *info)
{
    CALL(nvmlDeviceGetGpuFabricInfo_v4);
    REQUIRE_POINTER(info);
    GPU(device);
    REQUIRE(description()->fabric_supported, NVML_NOT_SUPPORTED);
    come_up(&gpu.now);
    memset(info, 0, sizeof *info);
    memcpy(info->cluster_uuid, gpu.now.fabric_uuid, sizeof info->cluster_uuid);
    info->status = gpu.now.fabric_status;
    info->state = (uint8_t)gpu.now.fabric_state;
    info->health_mask = gpu.now.fabric_health_mask;
    info->health_summary = (uint8_t)gpu.now.fabric_health_summary;
    if (gpu.now.fabric_state == NVML_FABRIC_COMPLETED) {
        info->clique_count = 1;
        info->cliques[0].id = gpu.now.fabric_clique;
    }
    RETURN(NVML_SUCCESS);
}
