// SPDX-License-Identifier: Apache-2.0

/*
 * What the tables of monitoring tools show (nvml-simulator.md §3, tier B): an idle GPU with the limits of its model.
 * Everything else about load, clocks and counters is not supported.
 */
#include "sim.h"

enum { PCIE_LANES = 16, IDLE_STATE = 0, CLOCK_MEMORY = 2, CLOCK_VIDEO = 3, CLOCK_TYPES = 4, IDLE_CLOCK_MHZ = 345 };
enum { ECC_ERROR_TYPES = 2, ECC_COUNTERS = 2, AGGREGATE = 1, SENSORS = 1 };

/* A function of one board that answers one number. */
#define NUMBER(name, value)                                   \
    EXPORT nvml_code name(nvml_device device, unsigned *out)  \
    {                                                         \
        CALL(name);                                           \
        REQUIRE_POINTER(out);                                 \
        GPU(device);                                          \
        *out = (value);                                       \
        RETURN(NVML_SUCCESS);                                 \
    }
NUMBER(nvmlDeviceGetPowerUsage, gpu.spec->power_idle_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, gpu.spec->power_max_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, gpu.spec->power_max_mw)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, gpu.spec->power_max_mw)
NUMBER(nvmlDeviceGetPowerManagementMode, 1)
NUMBER(nvmlDeviceGetPerformanceState, IDLE_STATE)
NUMBER(nvmlDeviceGetPowerState, IDLE_STATE)
NUMBER(nvmlDeviceGetDisplayMode, 0)
NUMBER(nvmlDeviceGetDisplayActive, 0)
NUMBER(nvmlDeviceGetNumGpuCores, gpu.spec->cores)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, gpu.spec->pcie_generation)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, gpu.spec->pcie_generation)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, gpu.spec->pcie_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, PCIE_LANES)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, PCIE_LANES)

EXPORT nvml_code nvmlDeviceGetPowerManagementLimitConstraints(nvml_device device, unsigned *min, unsigned *max)
{
    CALL(nvmlDeviceGetPowerManagementLimitConstraints);
    REQUIRE_POINTER(min);
    REQUIRE_POINTER(max);
    GPU(device);
    *min = gpu.spec->power_min_mw;
    *max = gpu.spec->power_max_mw;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetTemperature(nvml_device device, unsigned sensor, unsigned *degrees)
{
    CALL(nvmlDeviceGetTemperature);
    REQUIRE(degrees != NULL && sensor < SENSORS, NVML_INVALID_ARGUMENT);
    GPU(device);
    *degrees = gpu.spec->temperature_c;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetTemperatureV(nvml_device device, nvml_temperature *temperature)
{
    CALL(nvmlDeviceGetTemperatureV);
    REQUIRE(temperature != NULL && temperature->sensor < SENSORS, NVML_INVALID_ARGUMENT);
    REQUIRE_VERSION(temperature, 1);
    GPU(device);
    temperature->temperature = (int32_t)gpu.spec->temperature_c;
    RETURN(NVML_SUCCESS);
}

EXPORT nvml_code nvmlDeviceGetUtilizationRates(nvml_device device, nvml_utilization *utilization)
{
    CALL(nvmlDeviceGetUtilizationRates);
    REQUIRE_POINTER(utilization);
    GPU(device);
    *utilization = (nvml_utilization){0, 0};
    RETURN(NVML_SUCCESS);
}

/* ---- clocks ------------------------------------------------------------------------------------------- */

static unsigned top_clock(const struct sim_gpu_spec *spec, unsigned type)
{
    switch (type) {
    case CLOCK_MEMORY:
        return spec->clock_memory_mhz;
    case CLOCK_VIDEO:
        return spec->clock_video_mhz;
    default:
        return spec->clock_graphics_mhz;
    }
}

EXPORT nvml_code nvmlDeviceGetMaxClockInfo(nvml_device device, unsigned type, unsigned *mhz)
{
    CALL(nvmlDeviceGetMaxClockInfo);
    REQUIRE(mhz != NULL && type < CLOCK_TYPES, NVML_INVALID_ARGUMENT);
    GPU(device);
    *mhz = top_clock(gpu.spec, type);
    RETURN(NVML_SUCCESS);
}

/* Idle: memory keeps its speed, everything else goes slow. */
EXPORT nvml_code nvmlDeviceGetClockInfo(nvml_device device, unsigned type, unsigned *mhz)
{
    CALL(nvmlDeviceGetClockInfo);
    REQUIRE_POINTER(mhz);
    GPU(device);
    REQUIRE(type < CLOCK_TYPES, NVML_NOT_SUPPORTED);
    *mhz = type == CLOCK_MEMORY ? gpu.spec->clock_memory_mhz : IDLE_CLOCK_MHZ;
    RETURN(NVML_SUCCESS);
}

/* ---- error correction --------------------------------------------------------------------------------- */

EXPORT nvml_code nvmlDeviceGetEccMode(nvml_device device, unsigned *current, unsigned *pending)
{
    CALL(nvmlDeviceGetEccMode);
    REQUIRE_POINTER(current);
    REQUIRE_POINTER(pending);
    GPU(device);
    *current = *pending = gpu.spec->ecc;
    RETURN(NVML_SUCCESS);
}

NUMBER(nvmlDeviceGetDefaultEccMode, gpu.spec->ecc)

EXPORT nvml_code nvmlDeviceGetTotalEccErrors(
    nvml_device device, unsigned error_type, unsigned counter, unsigned long long *errors)
{
    CALL(nvmlDeviceGetTotalEccErrors);
    REQUIRE(errors != NULL && error_type < ECC_ERROR_TYPES && counter < ECC_COUNTERS, NVML_INVALID_ARGUMENT);
    GPU(device);
    REQUIRE(gpu.spec->ecc, NVML_NOT_SUPPORTED);
    *errors = counter == AGGREGATE ? gpu.now.ecc_aggregate[error_type] : gpu.now.ecc_volatile[error_type];
    RETURN(NVML_SUCCESS);
}

/* The state knows what waits and what has failed, not how many rows were remapped. */
EXPORT nvml_code nvmlDeviceGetRemappedRows(
    nvml_device device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    CALL(nvmlDeviceGetRemappedRows);
    REQUIRE_POINTER(corrected);
    REQUIRE_POINTER(uncorrected);
    REQUIRE_POINTER(pending);
    REQUIRE_POINTER(failed);
    GPU(device);
    REQUIRE(remaps_rows(&gpu), NVML_NOT_SUPPORTED);
    *corrected = *uncorrected = 0;
    *pending = gpu.now.row_remapping == SIM_REMAPPING_PENDING;
    *failed = gpu.now.row_remapping == SIM_REMAPPING_FAILED;
    RETURN(NVML_SUCCESS);
}
