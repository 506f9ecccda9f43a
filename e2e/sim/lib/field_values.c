/* Field values (nvml-simulator.md §6.5): the recovery action alone; every other field is not supported. */
#include "sim.h"

enum { FIELD_RECOVERY_ACTION = 230, RECOVERY_ACTION_SINCE = 570, TYPE_UNSIGNED_INT = 1 };

static nvml_code answer_field(const struct gpu *gpu, nvml_field_value *field)
{
    if (field->field_id != FIELD_RECOVERY_ACTION || description()->api_level < RECOVERY_ACTION_SINCE)
        return NVML_NOT_SUPPORTED;
    field->value_type = TYPE_UNSIGNED_INT;
    field->value = gpu->now.recovery_action;
    return NVML_SUCCESS;
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
