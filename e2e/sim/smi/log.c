// SPDX-License-Identifier: Apache-2.0

/* nvidia-smi -q: everything known about each GPU, a fact per line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "smi.h"

enum { VALUE_COLUMN = 50 };

struct line {
    unsigned depth;
    const char *label;
    const char *field; /* NULL: a heading */
};

static const struct line LINES[] = {
    {1, "Product Name", "name"},
    {1, "Persistence Mode", "persistence_mode"},
    {1, "Addressing Mode", "addressing_mode"},
    {1, "MIG Mode", NULL},
    {2, "Current", "mig.mode.current"},
    {2, "Pending", "mig.mode.pending"},
    {1, "Serial Number", "serial"},
    {1, "GPU UUID", "uuid"},
    {1, "Minor Number", "minor"},
    {1, "VBIOS Version", "vbios_version"},
    {1, "Board Part Number", "gpu_part_number"},
    {1, "GPU Module ID", "module_id"},
    {1, "GPU Recovery Action", "gpu_recovery_action"},
    {1, "GSP Firmware Version", "gsp_firmware_version"},
    {1, "PCI", NULL},
    {2, "Bus", "pci.bus"},
    {2, "Device", "pci.device"},
    {2, "Domain", "pci.domain"},
    {2, "Device Id", "pci.device_id"},
    {2, "Bus Id", "pci.bus_id"},
    {2, "Sub System Id", "pci.sub_device_id"},
    {2, "GPU Link Info", NULL},
    {3, "PCIe Generation", NULL},
    {4, "Max", "pcie.link.gen.max"},
    {4, "Current", "pcie.link.gen.current"},
    {3, "Link Width", NULL},
    {4, "Max", "pcie.link.width.max"},
    {4, "Current", "pcie.link.width.current"},
    {1, "Fan Speed", "fan.speed"},
    {1, "Performance State", "pstate"},
    {1, "FB Memory Usage", NULL},
    {2, "Total", "memory.total"},
    {2, "Reserved", "memory.reserved"},
    {2, "Used", "memory.used"},
    {2, "Free", "memory.free"},
    {1, "Compute Mode", "compute_mode"},
    {1, "Utilization", NULL},
    {2, "GPU", "utilization.gpu"},
    {2, "Memory", "utilization.memory"},
    {1, "ECC Mode", NULL},
    {2, "Current", "ecc.mode.current"},
    {2, "Pending", "ecc.mode.pending"},
    {1, "Temperature", NULL},
    {2, "GPU Current Temp", "temperature.gpu"},
    {1, "GPU Power Readings", NULL},
    {2, "Power Draw", "power.draw"},
    {2, "Current Power Limit", "power.limit"},
    {2, "Min Power Limit", "power.min_limit"},
    {2, "Max Power Limit", "power.max_limit"},
    {1, "Clocks", NULL},
    {2, "Graphics", "clocks.current.graphics"},
    {2, "SM", "clocks.current.sm"},
    {2, "Memory", "clocks.current.memory"},
    {1, "Max Clocks", NULL},
    {2, "Graphics", "clocks.max.graphics"},
    {2, "SM", "clocks.max.sm"},
    {2, "Memory", "clocks.max.memory"},
    {1, "Fabric", NULL},
    {2, "State", "fabric.state"},
};

static bool print_line(const struct line *line, nvml_device device)
{
    int indent = (int)line->depth * 4;
    if (line->field == NULL) {
        printf("%*s%s\n", indent, "", line->label);
        return false;
    }
    char text[TEXT];
    const struct field *field = field_find(line->field, strlen(line->field));
    bool lost = field_text(field, device, text);
    bool known = text[0] != '[';
    printf("%*s%-*s : %s%s%s\n", indent, "", VALUE_COLUMN - indent, line->label,
           !known && !lost ? "N/A" : text, known && field->unit != NULL ? " " : "",
           known && field->unit != NULL ? field->unit : "");
    return lost;
}

static void print_heading(const char *label, const char *value)
{
    printf("%-*s : %s\n", VALUE_COLUMN, label, value);
}

int log_print(const struct devices *devices)
{
    char now[TEXT], driver[TEXT] = "N/A", text[32];
    int cuda = 0;
    time_t clock = time(NULL);
    strftime(now, sizeof now, "%a %b %e %H:%M:%S %Y", localtime(&clock));
    nvml.SystemGetDriverVersion(driver, sizeof driver);
    nvml.SystemGetCudaDriverVersion(&cuda);
    printf("\n==============NVSMI LOG==============\n\n");
    print_heading("Timestamp", now);
    print_heading("Driver Version", driver);
    snprintf(text, sizeof text, "%d.%d", cuda / 1000, cuda % 1000 / 10);
    print_heading("CUDA Version", text);
    printf("\n");
    snprintf(text, sizeof text, "%u", devices->count);
    print_heading("Attached GPUs", text);
    bool lost = false;
    for (unsigned i = 0; i < devices->count; i++) {
        char bus[TEXT];
        lost |= field_text(field_find("pci.bus_id", strlen("pci.bus_id")), devices->device[i], bus);
        printf("GPU %s\n", bus);
        for (size_t line = 0; line < sizeof LINES / sizeof *LINES; line++)
            lost |= print_line(&LINES[line], devices->device[i]);
        printf("\n");
    }
    return lost ? exit_code_of(NVML_GPU_IS_LOST) : EXIT_SUCCESS;
}
