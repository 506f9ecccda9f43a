/* Field values (nvml-simulator.md §6.5): what says how well a GPU is; every other field is not supported. */
#include "sim.h"

enum {
    FIELD_UNCORRECTED_ERRORS = 4, /* since the last reset */
    FIELD_REMAPPING_PENDING = 144,
    FIELD_REMAPPING_FAILED = 145,
    FIELD_RECOVERY_ACTION = 230,
};
enum { RECOVERY_ACTION_SINCE = 570, AMPERE = 7, UNCORRECTED = 1 };
enum { TYPE_UNSIGNED_INT = 1, TYPE_UNSIGNED_LONG_LONG = 3 };

static nvml_code answer(nvml_field_value *field, bool supported, uint32_t type, uint64_t value)
{
    if (!supported)
        return NVML_NOT_SUPPORTED;
    field->value_type = type;
    field->value = value;
    return NVML_SUCCESS;
}

static nvml_code answer_field(const struct gpu *gpu, nvml_field_value *field)
{
    bool remaps = gpu->spec->ecc && gpu->spec->architecture >= AMPERE;
    switch (field->field_id) {
    case FIELD_UNCORRECTED_ERRORS:
        return answer(field, gpu->spec->ecc, TYPE_UNSIGNED_LONG_LONG, gpu->now.ecc_volatile[UNCORRECTED]);
    case FIELD_REMAPPING_PENDING:
        return answer(field, remaps, TYPE_UNSIGNED_INT, gpu->now.row_remapping == SIM_REMAPPING_PENDING);
    case FIELD_REMAPPING_FAILED:
        return answer(field, remaps, TYPE_UNSIGNED_INT, gpu->now.row_remapping == SIM_REMAPPING_FAILED);
    case FIELD_RECOVERY_ACTION:
        return answer(
            field, description()->api_level >= RECOVERY_ACTION_SINCE, TYPE_UNSIGNED_INT, gpu->now.recovery_action);
    default:
        return NVML_NOT_SUPPORTED;
    }
}

EXPORT nvml_code nvmlDeviceGetFieldValues(nvml_device device, int count, nvml_field_value *fields)
{
    CALL(nvmlDeviceGetFieldValues);
    REQUIRE(count > 0 && fields != NULL, NVML_INVALID_ARGUMENT);
    GPU(device);
    for (int i = 0; i < count; i++)
        fields[i].code = answer_field(&gpu, &fields[i]);
    RETURN(NVML_SUCCESS);
}
