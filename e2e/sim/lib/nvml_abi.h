// SPDX-License-Identifier: Apache-2.0

/*
 * The part of NVML's binary interface that this library answers: types, codes and structures (nvml-simulator.md §5).
 * Written from the layouts alone; every size and every field that callers rely on is asserted here.
 * The names of functions are in names.txt.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef enum {
    NVML_SUCCESS = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_FUNCTION_NOT_FOUND = 13,
    NVML_GPU_IS_LOST = 15,
    NVML_RESET_REQUIRED = 16,
    NVML_OPERATING_SYSTEM = 17,
    NVML_LIB_RM_VERSION_MISMATCH = 18,
    NVML_IN_USE = 19,
    NVML_MEMORY = 20,
    NVML_INSUFFICIENT_RESOURCES = 23,
    NVML_VERSION_MISMATCH = 25,
    NVML_GPU_NOT_FOUND = 28,
    NVML_UNKNOWN = 999,
} nvml_code;

enum {
    NVML_INIT_NO_GPUS = 1,
    NVML_INIT_NO_ATTACH = 2,
    NVML_INIT_FORCE = 4,
};

enum { NVML_VIRTUALIZATION_VGPU = 2 };
enum {
    NVML_COMPUTE_DEFAULT = 0,
    NVML_COMPUTE_EXCLUSIVE_THREAD = 1,
    NVML_COMPUTE_PROHIBITED = 2,
    NVML_COMPUTE_EXCLUSIVE_PROCESS = 3
};

enum {
    NVML_TOPOLOGY_INTERNAL = 0,
    NVML_TOPOLOGY_HOST_BRIDGE = 30,
    NVML_TOPOLOGY_NUMA_NODE = 40,
    NVML_TOPOLOGY_SYSTEM = 50,
};

enum { NVML_EVENT_MIG_CHANGE = 0x100 };
enum { NVML_UUID_TYPE_ASCII = 1, NVML_UUID_TYPE_BINARY = 2 };
enum { NVML_GI_PROFILE_COUNT = 18, NVML_CI_PROFILE_COUNT = 9, NVML_CI_ENGINE_COUNT = 1 };
enum { NVML_FABRIC_NOT_STARTED = 1, NVML_FABRIC_IN_PROGRESS = 2, NVML_FABRIC_COMPLETED = 3 };

/* The word at the start of a versioned structure. */
#define NVML_VERSION_WORD(type, version) ((uint32_t)(sizeof(type) | ((version) << 24)))

struct nvml_device;
struct nvml_event_set;
typedef struct nvml_device *nvml_device;
typedef struct nvml_event_set *nvml_event_set;

#define NVML_ASSERT_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#define NVML_ASSERT_OFFSET(type, field, bytes) _Static_assert(offsetof(type, field) == (bytes), #type "." #field)

typedef struct {
    char bus_id_legacy[16];
    uint32_t domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvml_pci_info;
NVML_ASSERT_SIZE(nvml_pci_info, 68);
NVML_ASSERT_OFFSET(nvml_pci_info, pci_subsystem_id, 32);
NVML_ASSERT_OFFSET(nvml_pci_info, bus_id, 36);

/* nvmlDetachGpuState_t and nvmlPcieLinkState_t */
enum { NVML_DETACH_GPU_KEEP = 0, NVML_DETACH_GPU_REMOVE = 1 };
enum { NVML_PCIE_LINK_KEEP = 0, NVML_PCIE_LINK_SHUT_DOWN = 1 };

typedef struct {
    char bus_id[16];
    uint32_t domain, bus, device, pci_device_id;
} nvml_pci_info_v1;
NVML_ASSERT_SIZE(nvml_pci_info_v1, 32);

typedef struct {
    nvml_pci_info_v1 v1;
    uint32_t pci_subsystem_id, reserved[4];
} nvml_pci_info_v2;
NVML_ASSERT_SIZE(nvml_pci_info_v2, 52);

typedef struct {
    uint32_t version, domain, bus, device, pci_device_id, pci_subsystem_id, base_class, sub_class;
    char bus_id[32];
} nvml_pci_info_ext;
NVML_ASSERT_SIZE(nvml_pci_info_ext, 64);
NVML_ASSERT_OFFSET(nvml_pci_info_ext, bus_id, 32);

/* Events of the whole node: a driver takes or leaves a GPU. */
enum { NVML_SYSTEM_EVENT_UNBIND = 1, NVML_SYSTEM_EVENT_BIND = 2 };

struct nvml_system_event_set;
typedef struct nvml_system_event_set *nvml_system_event_set;

/* Of nvmlSystemEventSetCreate and nvmlSystemEventSetFree. */
typedef struct {
    uint32_t version;
    nvml_system_event_set set;
} nvml_system_event_set_request;
NVML_ASSERT_SIZE(nvml_system_event_set_request, 16);

typedef struct {
    uint32_t version;
    unsigned long long types;
    nvml_system_event_set set;
} nvml_system_event_registration;
NVML_ASSERT_SIZE(nvml_system_event_registration, 24);

typedef struct {
    unsigned long long type;
    uint32_t gpu_id; /* domain << 16 | bus << 8 | device */
} nvml_system_event;
NVML_ASSERT_SIZE(nvml_system_event, 16);

typedef struct {
    uint32_t version, timeout_ms;
    nvml_system_event_set set;
    nvml_system_event *data;
    uint32_t data_size, event_count;
} nvml_system_event_wait;
NVML_ASSERT_SIZE(nvml_system_event_wait, 32);

typedef struct {
    uint64_t total, free, used;
} nvml_memory;
NVML_ASSERT_SIZE(nvml_memory, 24);
typedef nvml_memory nvml_bar1_memory;

typedef struct {
    uint32_t version;
    uint64_t total, reserved, free, used;
} nvml_memory_v2;
NVML_ASSERT_SIZE(nvml_memory_v2, 40);
NVML_ASSERT_OFFSET(nvml_memory_v2, total, 8);

typedef struct {
    uint32_t multiprocessors, copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
    uint32_t gpu_instance_slices, compute_instance_slices;
    uint64_t memory_mib;
} nvml_device_attributes;
NVML_ASSERT_SIZE(nvml_device_attributes, 40);

typedef struct {
    uint32_t multiprocessors, copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
} nvml_device_attributes_v1;
NVML_ASSERT_SIZE(nvml_device_attributes_v1, 24);

typedef struct {
    uint32_t start, size;
} nvml_placement;
NVML_ASSERT_SIZE(nvml_placement, 8);

typedef struct {
    uint32_t id, p2p, slices, instances, multiprocessors;
    uint32_t copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
    uint64_t memory_mib;
} nvml_gi_profile;
NVML_ASSERT_SIZE(nvml_gi_profile, 48);
NVML_ASSERT_OFFSET(nvml_gi_profile, memory_mib, 40);

typedef struct {
    uint32_t version, id, p2p, slices, instances, multiprocessors;
    uint32_t copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
    uint64_t memory_mib;
    char name[96];
} nvml_gi_profile_v2;
NVML_ASSERT_SIZE(nvml_gi_profile_v2, 152);
NVML_ASSERT_OFFSET(nvml_gi_profile_v2, memory_mib, 48);
NVML_ASSERT_OFFSET(nvml_gi_profile_v2, name, 56);

typedef struct {
    uint32_t version, id, slices, instances, multiprocessors;
    uint32_t copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
    uint64_t memory_mib;
    char name[96];
    uint32_t capabilities;
} nvml_gi_profile_v3;
NVML_ASSERT_SIZE(nvml_gi_profile_v3, 152);
NVML_ASSERT_OFFSET(nvml_gi_profile_v3, memory_mib, 40);
NVML_ASSERT_OFFSET(nvml_gi_profile_v3, name, 48);
NVML_ASSERT_OFFSET(nvml_gi_profile_v3, capabilities, 144);

typedef struct {
    nvml_device device;
    uint32_t id, profile_id;
    nvml_placement placement;
} nvml_gi_info;
NVML_ASSERT_SIZE(nvml_gi_info, 24);

typedef struct {
    uint32_t id, slices, instances, multiprocessors;
    uint32_t copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
} nvml_ci_profile;
NVML_ASSERT_SIZE(nvml_ci_profile, 36);

typedef struct {
    uint32_t version;
    nvml_ci_profile profile;
    char name[96];
} nvml_ci_profile_v2;
NVML_ASSERT_SIZE(nvml_ci_profile_v2, 136);
NVML_ASSERT_OFFSET(nvml_ci_profile_v2, name, 40);

typedef struct {
    nvml_ci_profile_v2 v2;
    uint32_t capabilities;
} nvml_ci_profile_v3;
NVML_ASSERT_SIZE(nvml_ci_profile_v3, 140);

typedef struct {
    nvml_device device;
    void *gpu_instance;
    uint32_t id, profile_id;
    nvml_placement placement;
} nvml_ci_info;
NVML_ASSERT_SIZE(nvml_ci_info, 32);

typedef struct {
    nvml_device device;
    void *gpu_instance;
    uint32_t id, profile_id;
} nvml_ci_info_v1;
NVML_ASSERT_SIZE(nvml_ci_info_v1, 24);

typedef struct {
    nvml_device device;
    uint64_t type, data;
} nvml_event_v1;
NVML_ASSERT_SIZE(nvml_event_v1, 24);

typedef struct {
    nvml_event_v1 v1;
    uint32_t gpu_instance, compute_instance;
} nvml_event;
NVML_ASSERT_SIZE(nvml_event, 32);

typedef struct {
    uint8_t cluster_uuid[16];
    uint32_t status, clique;
    uint8_t state, padding[3]; /* pynvml reads four bytes */
} nvml_fabric_info;
NVML_ASSERT_SIZE(nvml_fabric_info, 28);

typedef struct {
    uint32_t version;
    nvml_fabric_info info;
    uint32_t health_mask;
} nvml_fabric_info_v2;
NVML_ASSERT_SIZE(nvml_fabric_info_v2, 36);
NVML_ASSERT_OFFSET(nvml_fabric_info_v2, health_mask, 32);

typedef struct {
    nvml_fabric_info_v2 v2;
    uint8_t health_summary, padding[3];
} nvml_fabric_info_v3;
NVML_ASSERT_SIZE(nvml_fabric_info_v3, 40);
NVML_ASSERT_OFFSET(nvml_fabric_info_v3, health_summary, 36);

typedef struct {
    uint8_t cluster_uuid[16];
    uint32_t status;
    struct {
        uint8_t type, padding[3];
        uint32_t id;
    } cliques[64];
    uint32_t clique_count;
    uint8_t state, padding1[3];
    uint32_t health_mask;
    uint8_t health_summary, padding2[3];
} nvml_fabric_info_v4;
NVML_ASSERT_SIZE(nvml_fabric_info_v4, 548);

typedef struct {
    uint32_t enabled;
} nvml_c2c_info;
NVML_ASSERT_SIZE(nvml_c2c_info, 4);

typedef struct {
    uint32_t version, value;
} nvml_versioned_value; /* addressing mode, device capabilities */
NVML_ASSERT_SIZE(nvml_versioned_value, 8);

typedef struct {
    uint32_t version;
    uint8_t ib_guid[16];
    uint8_t chassis[16]; /* serial number; in version 1 the rack's GUID */
    uint8_t slot, tray, host, peer_type, module_id;
} nvml_platform_info;
NVML_ASSERT_SIZE(nvml_platform_info, 44);
NVML_ASSERT_OFFSET(nvml_platform_info, slot, 36);
NVML_ASSERT_OFFSET(nvml_platform_info, module_id, 40);

typedef struct {
    uint32_t pid;
    uint64_t memory;
} nvml_process_v1;
NVML_ASSERT_SIZE(nvml_process_v1, 16);

typedef struct {
    nvml_process_v1 v1;
    uint32_t gpu_instance, compute_instance;
} nvml_process;
NVML_ASSERT_SIZE(nvml_process, 24);

typedef struct {
    uint32_t version, type;
    union {
        char text[41];
        uint8_t bytes[16];
    } value;
} nvml_uuid;
NVML_ASSERT_SIZE(nvml_uuid, 52);

typedef struct {
    uint32_t field_id, scope_id;
    int64_t timestamp, latency_us;
    uint32_t value_type, code;
    uint64_t value;
} nvml_field_value;
NVML_ASSERT_SIZE(nvml_field_value, 40);
enum { NVML_FIELD_RECOVERY_ACTION = 230 };

typedef struct {
    uint32_t version;
    char branch[80];
} nvml_driver_branch;
NVML_ASSERT_SIZE(nvml_driver_branch, 84);

typedef struct {
    nvml_pci_info pci;
    char uuid[80];
} nvml_excluded_device;
NVML_ASSERT_SIZE(nvml_excluded_device, 148);

typedef struct {
    uint64_t l1_cache, l2_cache, device_memory, register_file;
} nvml_ecc_counts;
NVML_ASSERT_SIZE(nvml_ecc_counts, 32);

typedef struct {
    uint32_t version, sensor;
    int32_t temperature;
} nvml_temperature;
NVML_ASSERT_SIZE(nvml_temperature, 12);

typedef struct {
    uint32_t gpu, memory;
} nvml_utilization;
NVML_ASSERT_SIZE(nvml_utilization, 8);
