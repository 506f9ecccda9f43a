// SPDX-License-Identifier: Apache-2.0

/* Facts of a GPU as text, by the names of nvidia-smi --query-gpu. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "smi.h"

/* A reader that prints one number of one NVML call. */
#define NUMBER(reader, call, ...)                                  \
    static nvml_code reader(nvml_device device, char text[TEXT])   \
    {                                                              \
        unsigned value;                                            \
        nvml_code code = nvml.call(device, ##__VA_ARGS__, &value); \
        if (code == NVML_SUCCESS)                                  \
            snprintf(text, TEXT, "%u", value);                     \
        return code;                                               \
    }
/* Milliwatts as watts. */
#define WATTS(reader, call, arguments)                           \
    static nvml_code reader(nvml_device device, char text[TEXT]) \
    {                                                            \
        unsigned value, other;                                   \
        (void)other;                                             \
        nvml_code code = nvml.call arguments;                    \
        if (code == NVML_SUCCESS)                                \
            snprintf(text, TEXT, "%.2f", value / 1000.0);        \
        return code;                                             \
    }
#define TEXT_OF(reader, call)                                    \
    static nvml_code reader(nvml_device device, char text[TEXT]) \
    {                                                            \
        return nvml.call(device, text, TEXT);                    \
    }
#define MEMORY(reader, member)                                                      \
    static nvml_code reader(nvml_device device, char text[TEXT])                    \
    {                                                                               \
        nvml_memory_v2 memory = {.version = NVML_VERSION_WORD(nvml_memory_v2, 2)};  \
        nvml_code code = nvml.DeviceGetMemoryInfo(device, &memory);                 \
        if (code == NVML_SUCCESS)                                                   \
            snprintf(text, TEXT, "%llu", (unsigned long long)(memory.member >> 20)); \
        return code;                                                                \
    }
#define PCI(reader, format, ...)                                 \
    static nvml_code reader(nvml_device device, char text[TEXT]) \
    {                                                            \
        nvml_pci_info pci;                                       \
        nvml_code code = nvml.DeviceGetPciInfo(device, &pci);    \
        if (code == NVML_SUCCESS)                                \
            snprintf(text, TEXT, format, __VA_ARGS__);           \
        return code;                                             \
    }
/* A number of NVML's that people read as a word. */
#define WORD(reader, call, words)                                                              \
    static nvml_code reader(nvml_device device, char text[TEXT])                               \
    {                                                                                          \
        unsigned value;                                                                        \
        nvml_code code = nvml.call(device, &value);                                            \
        if (code == NVML_SUCCESS)                                                              \
            snprintf(text, TEXT, "%s", value < sizeof words / sizeof *words ? words[value] : "Unknown"); \
        return code;                                                                           \
    }

static const char *const SWITCH[] = {"Disabled", "Enabled"};
static const char *const COMPUTE_MODES[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
static const char *const ADDRESSING[] = {"None", "HMM", "ATS"};
static const char *const FABRIC_STATES[] = {"N/A", "Not Started", "In Progress", "Completed"};

NUMBER(index_of, DeviceGetIndex)
NUMBER(minor_of, DeviceGetMinorNumber)
NUMBER(module_of, DeviceGetModuleId)
NUMBER(temperature, DeviceGetTemperature, SENSOR_GPU)
NUMBER(fan, DeviceGetFanSpeed)
NUMBER(clock_graphics, DeviceGetClockInfo, CLOCK_GRAPHICS)
NUMBER(clock_sm, DeviceGetClockInfo, CLOCK_SM)
NUMBER(clock_memory, DeviceGetClockInfo, CLOCK_MEMORY)
NUMBER(clock_max_graphics, DeviceGetMaxClockInfo, CLOCK_GRAPHICS)
NUMBER(clock_max_sm, DeviceGetMaxClockInfo, CLOCK_SM)
NUMBER(clock_max_memory, DeviceGetMaxClockInfo, CLOCK_MEMORY)
NUMBER(link_generation, DeviceGetCurrPcieLinkGeneration)
NUMBER(link_generation_max, DeviceGetMaxPcieLinkGeneration)
NUMBER(link_width, DeviceGetCurrPcieLinkWidth)
NUMBER(link_width_max, DeviceGetMaxPcieLinkWidth)
WATTS(power_draw, DeviceGetPowerUsage, (device, &value))
WATTS(power_limit, DeviceGetPowerManagementLimit, (device, &value))
WATTS(power_enforced, DeviceGetEnforcedPowerLimit, (device, &value))
WATTS(power_min, DeviceGetPowerManagementLimitConstraints, (device, &value, &other))
WATTS(power_max, DeviceGetPowerManagementLimitConstraints, (device, &other, &value))
TEXT_OF(name_of, DeviceGetName)
TEXT_OF(uuid_of, DeviceGetUUID)
TEXT_OF(serial_of, DeviceGetSerial)
TEXT_OF(vbios_of, DeviceGetVbiosVersion)
TEXT_OF(part_number, DeviceGetBoardPartNumber)
MEMORY(memory_total, total)
MEMORY(memory_used, used)
MEMORY(memory_free, free)
MEMORY(memory_reserved, reserved)
PCI(bus_id, "%s", pci.bus_id)
PCI(pci_domain, "0x%04X", pci.domain)
PCI(pci_bus, "0x%02X", pci.bus)
PCI(pci_device, "0x%02X", pci.device)
PCI(pci_device_id, "0x%08X", pci.pci_device_id)
PCI(pci_sub_device_id, "0x%08X", pci.pci_subsystem_id)
WORD(persistence, DeviceGetPersistenceMode, SWITCH)
WORD(display_active, DeviceGetDisplayActive, SWITCH)
WORD(compute_mode, DeviceGetComputeMode, COMPUTE_MODES)

static nvml_code performance_state(nvml_device device, char text[TEXT])
{
    unsigned state;
    nvml_code code = nvml.DeviceGetPerformanceState(device, &state);
    if (code == NVML_SUCCESS)
        snprintf(text, TEXT, "P%u", state);
    return code;
}

static nvml_code compute_capability(nvml_device device, char text[TEXT])
{
    int major, minor;
    nvml_code code = nvml.DeviceGetCudaComputeCapability(device, &major, &minor);
    if (code == NVML_SUCCESS)
        snprintf(text, TEXT, "%d.%d", major, minor);
    return code;
}

static nvml_code mode_pair(nvml_code code, unsigned value, char text[TEXT])
{
    if (code == NVML_SUCCESS)
        snprintf(text, TEXT, "%s", SWITCH[value != 0]);
    return code;
}

#define MODE_PAIR(reader, call, which)                           \
    static nvml_code reader(nvml_device device, char text[TEXT]) \
    {                                                            \
        unsigned mode[2];                                        \
        nvml_code code = nvml.call(device, &mode[0], &mode[1]);  \
        return mode_pair(code, mode[which], text);               \
    }
MODE_PAIR(mig_current, DeviceGetMigMode, 0)
MODE_PAIR(mig_pending, DeviceGetMigMode, 1)
MODE_PAIR(ecc_current, DeviceGetEccMode, 0)
MODE_PAIR(ecc_pending, DeviceGetEccMode, 1)

#define UTILIZATION(reader, member)                                     \
    static nvml_code reader(nvml_device device, char text[TEXT])        \
    {                                                                   \
        nvml_utilization rates;                                         \
        nvml_code code = nvml.DeviceGetUtilizationRates(device, &rates); \
        if (code == NVML_SUCCESS)                                       \
            snprintf(text, TEXT, "%u", rates.member);                   \
        return code;                                                    \
    }
UTILIZATION(utilization_gpu, gpu)
UTILIZATION(utilization_memory, memory)

#define ECC_ERRORS(reader, kind)                                                                 \
    static nvml_code reader(nvml_device device, char text[TEXT])                                 \
    {                                                                                            \
        uint64_t count;                                                                          \
        nvml_code code = nvml.DeviceGetTotalEccErrors(device, kind, ECC_VOLATILE, &count);       \
        if (code == NVML_SUCCESS)                                                                \
            snprintf(text, TEXT, "%llu", (unsigned long long)count);                             \
        return code;                                                                             \
    }
ECC_ERRORS(ecc_corrected, ECC_CORRECTED)
ECC_ERRORS(ecc_uncorrected, ECC_UNCORRECTED)

static nvml_code addressing_mode(nvml_device device, char text[TEXT])
{
    nvml_versioned_value mode = {.version = NVML_VERSION_WORD(nvml_versioned_value, 1)};
    nvml_code code = nvml.DeviceGetAddressingMode(device, &mode);
    if (code == NVML_SUCCESS)
        snprintf(text, TEXT, "%s", mode.value < 3 ? ADDRESSING[mode.value] : "Unknown");
    return code;
}

static nvml_code fabric_state(nvml_device device, char text[TEXT])
{
    nvml_fabric_info_v2 fabric = {.version = NVML_VERSION_WORD(nvml_fabric_info_v2, 2)};
    nvml_code code = nvml.DeviceGetGpuFabricInfoV(device, &fabric);
    if (code == NVML_SUCCESS)
        snprintf(text, TEXT, "%s", fabric.info.state < 4 ? FABRIC_STATES[fabric.info.state] : "Unknown");
    return code;
}

static nvml_code recovery_action(nvml_device device, char text[TEXT])
{
    static const char *const actions[] = {"None", "Reset", "Reboot", "Drain P2P", "Drain and Reset",
                                          "Recover IMEX Domain", "Bus Reset", "System Reboot"};
    nvml_field_value field = {.field_id = NVML_FIELD_RECOVERY_ACTION};
    nvml_code code = nvml.DeviceGetFieldValues(device, 1, &field);
    if (code == NVML_SUCCESS)
        code = field.code;
    uint64_t action = field.value;
    if (code == NVML_SUCCESS)
        snprintf(text, TEXT, "%s", action < sizeof actions / sizeof *actions ? actions[action] : "Unknown");
    return code;
}

static nvml_code gsp_version(nvml_device device, char text[TEXT])
{
    return nvml.DeviceGetGspFirmwareVersion(device, text);
}

static nvml_code driver_version(nvml_device device, char text[TEXT])
{
    (void)device;
    return nvml.SystemGetDriverVersion(text, TEXT);
}

static nvml_code device_count(nvml_device device, char text[TEXT])
{
    (void)device;
    unsigned count;
    nvml_code code = nvml.DeviceGetCount(&count);
    if (code == NVML_SUCCESS)
        snprintf(text, TEXT, "%u", count);
    return code;
}

static nvml_code timestamp(nvml_device device, char text[TEXT])
{
    (void)device;
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    size_t length = strftime(text, TEXT, "%Y/%m/%d %H:%M:%S", &local);
    snprintf(text + length, TEXT - length, ".%03ld", now.tv_nsec / 1000000);
    return NVML_SUCCESS;
}

static const struct field FIELDS[] = {
    {"timestamp", NULL, NULL, timestamp},
    {"driver_version", NULL, NULL, driver_version},
    {"count", NULL, NULL, device_count},
    {"name", "gpu_name", NULL, name_of},
    {"serial", "gpu_serial", NULL, serial_of},
    {"uuid", "gpu_uuid", NULL, uuid_of},
    {"index", NULL, NULL, index_of},
    {"minor", NULL, NULL, minor_of},
    {"gpu_part_number", NULL, NULL, part_number},
    {"module_id", NULL, NULL, module_of},
    {"pci.bus_id", "gpu_bus_id", NULL, bus_id},
    {"pci.domain", NULL, NULL, pci_domain},
    {"pci.bus", NULL, NULL, pci_bus},
    {"pci.device", NULL, NULL, pci_device},
    {"pci.device_id", NULL, NULL, pci_device_id},
    {"pci.sub_device_id", NULL, NULL, pci_sub_device_id},
    {"pcie.link.gen.current", "pcie.link.gen.gpucurrent", NULL, link_generation},
    {"pcie.link.gen.max", NULL, NULL, link_generation_max},
    {"pcie.link.width.current", NULL, NULL, link_width},
    {"pcie.link.width.max", NULL, NULL, link_width_max},
    {"vbios_version", NULL, NULL, vbios_of},
    {"gpu_recovery_action", NULL, NULL, recovery_action},
    {"gsp_firmware_version", NULL, NULL, gsp_version},
    {"addressing_mode", NULL, NULL, addressing_mode},
    {"persistence_mode", NULL, NULL, persistence},
    {"display_active", NULL, NULL, display_active},
    {"compute_mode", NULL, NULL, compute_mode},
    {"compute_cap", NULL, NULL, compute_capability},
    {"mig.mode.current", NULL, NULL, mig_current},
    {"mig.mode.pending", NULL, NULL, mig_pending},
    {"memory.total", NULL, "MiB", memory_total},
    {"memory.reserved", NULL, "MiB", memory_reserved},
    {"memory.used", NULL, "MiB", memory_used},
    {"memory.free", NULL, "MiB", memory_free},
    {"utilization.gpu", NULL, "%", utilization_gpu},
    {"utilization.memory", NULL, "%", utilization_memory},
    {"ecc.mode.current", NULL, NULL, ecc_current},
    {"ecc.mode.pending", NULL, NULL, ecc_pending},
    {"ecc.errors.corrected.volatile.total", NULL, NULL, ecc_corrected},
    {"ecc.errors.uncorrected.volatile.total", NULL, NULL, ecc_uncorrected},
    {"temperature.gpu", NULL, NULL, temperature},
    {"fan.speed", NULL, "%", fan},
    {"pstate", NULL, NULL, performance_state},
    {"power.draw", NULL, "W", power_draw},
    {"power.limit", NULL, "W", power_limit},
    {"enforced.power.limit", NULL, "W", power_enforced},
    {"power.min_limit", NULL, "W", power_min},
    {"power.max_limit", NULL, "W", power_max},
    {"clocks.current.graphics", "clocks.gr", "MHz", clock_graphics},
    {"clocks.current.sm", "clocks.sm", "MHz", clock_sm},
    {"clocks.current.memory", "clocks.mem", "MHz", clock_memory},
    {"clocks.max.graphics", "clocks.max.gr", "MHz", clock_max_graphics},
    {"clocks.max.sm", NULL, "MHz", clock_max_sm},
    {"clocks.max.memory", "clocks.max.mem", "MHz", clock_max_memory},
    {"fabric.state", NULL, NULL, fabric_state},
};
enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };

static bool is_name(const char *candidate, const char *name, size_t length)
{
    return candidate != NULL && strlen(candidate) == length && strncmp(candidate, name, length) == 0;
}

const struct field *field_find(const char *name, size_t length)
{
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (is_name(FIELDS[i].name, name, length) || is_name(FIELDS[i].alias, name, length))
            return &FIELDS[i];
    return NULL;
}

void fields_print(void)
{
    for (size_t i = 0; i < FIELD_COUNT; i++)
        printf("%s%s%s\n", FIELDS[i].name, FIELDS[i].alias == NULL ? "" : " or ",
               FIELDS[i].alias == NULL ? "" : FIELDS[i].alias);
}

bool field_text(const struct field *field, nvml_device device, char text[TEXT])
{
    nvml_code code = field->read(device, text);
    if (code == NVML_NOT_SUPPORTED)
        snprintf(text, TEXT, "[N/A]");
    else if (code != NVML_SUCCESS)
        snprintf(text, TEXT, "[%s]", nvml.ErrorString(code));
    return code == NVML_GPU_IS_LOST;
}
