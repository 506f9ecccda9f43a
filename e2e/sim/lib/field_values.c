// SPDX-License-Identifier: Apache-2.0

/* Field values (nvml-simulator.md §6.5): how well a GPU is, and how it does MIG; every other field is not supported. */
#include "mig.h"

enum {
    FIELD_ECC_MODE = 1,
    FIELD_ECC_MODE_PENDING = 2,
    FIELD_CORRECTED_ERRORS = 3, /* since the last reset */
    FIELD_UNCORRECTED_ERRORS = 4,
    FIELD_ALL_CORRECTED_ERRORS = 5,
    FIELD_ALL_UNCORRECTED_ERRORS = 6,
    FIELD_ROWS_CORRECTED = 142, /* how many were remapped after such errors */
    FIELD_ROWS_UNCORRECTED = 143,
    FIELD_REMAPPING_PENDING = 144,
    FIELD_REMAPPING_FAILED = 145,
    FIELD_MIG_NEEDS_NO_RESET = 184,
    FIELD_MIG_QUERIES_NEED_NO_MODE = 199,
};
enum { RECOVERY_ACTION_SINCE = 570, HOPPER = 9, CORRECTED = 0, UNCORRECTED = 1 };
enum { TYPE_UNSIGNED_INT = 1, TYPE_UNSIGNED_LONG_LONG = 3 };

/* Numbers that a driver of branch 580 does not know. */
static bool is_unknown(uint32_t field)
{
    return field == 274 || (field >= 289 && field <= 293) || field >= 296;
}

static nvml_code answer(nvml_field_value *field, uint32_t type, uint64_t value)
{
    field->value_type = type;
    field->value = value;
    return NVML_SUCCESS;
}

static nvml_code answer_errors(const struct gpu *gpu, nvml_field_value *field, uint64_t value)
{
    return gpu->spec->ecc ? answer(field, TYPE_UNSIGNED_LONG_LONG, value) : NVML_NOT_SUPPORTED;
}

static nvml_code answer_rows(const struct gpu *gpu, nvml_field_value *field, uint64_t value)
{
    return remaps_rows(gpu) ? answer(field, TYPE_UNSIGNED_LONG_LONG, value) : NVML_NOT_SUPPORTED;
}

static nvml_code answer_mig(const struct gpu *gpu, nvml_field_value *field, bool value)
{
    return can_do_mig(gpu) ? answer(field, TYPE_UNSIGNED_INT, value) : NVML_NOT_SUPPORTED;
}

static nvml_code answer_recovery_action(const struct gpu *gpu, nvml_field_value *field)
{
    if (description()->api_level < RECOVERY_ACTION_SINCE)
        return NVML_NOT_SUPPORTED;
    return answer(field, TYPE_UNSIGNED_INT, gpu->now.recovery_action);
}

static nvml_code answer_field(const struct gpu *gpu, nvml_field_value *field)
{
    switch (field->field_id) {
    case FIELD_ECC_MODE:
    case FIELD_ECC_MODE_PENDING:
        return answer_errors(gpu, field, gpu->spec->ecc);
    case FIELD_CORRECTED_ERRORS:
        return answer_errors(gpu, field, gpu->now.ecc_volatile[CORRECTED]);
    case FIELD_UNCORRECTED_ERRORS:
        return answer_errors(gpu, field, gpu->now.ecc_volatile[UNCORRECTED]);
    case FIELD_ALL_CORRECTED_ERRORS:
        return answer_errors(gpu, field, gpu->now.ecc_aggregate[CORRECTED]);
    case FIELD_ALL_UNCORRECTED_ERRORS:
        return answer_errors(gpu, field, gpu->now.ecc_aggregate[UNCORRECTED]);
    case FIELD_ROWS_CORRECTED:
    case FIELD_ROWS_UNCORRECTED:
        return answer_rows(gpu, field, 0);
    case FIELD_REMAPPING_PENDING:
        return answer_rows(gpu, field, gpu->now.row_remapping == SIM_REMAPPING_PENDING);
    case FIELD_REMAPPING_FAILED:
        return answer_rows(gpu, field, gpu->now.row_remapping == SIM_REMAPPING_FAILED);
    case FIELD_MIG_NEEDS_NO_RESET:
        return answer_mig(gpu, field, gpu->spec->architecture >= HOPPER);
    case FIELD_MIG_QUERIES_NEED_NO_MODE:
        return answer_mig(gpu, field, true);
    case NVML_FIELD_RECOVERY_ACTION:
        return answer_recovery_action(gpu, field);
    default:
        return is_unknown(field->field_id) ? NVML_INVALID_ARGUMENT : NVML_NOT_SUPPORTED;
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
