// SPDX-License-Identifier: Apache-2.0

/* The summary that nvidia-smi prints when it is asked nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "smi.h"

enum { MAX_PROCESSES = 256 };

static const uint32_t NO_INSTANCE = 0xFFFFFFFF;

static const char RULE[] = "+-----------------------------------------+------------------------+----------------------+\n";
static const char WIDE_RULE[] = "+-----------------------------------------------------------------------------------------+\n";
static const char HEADINGS[] =
    "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
    "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
    "|                                         |                        |               MIG M. |\n"
    "|=========================================+========================+======================|\n";
static const char PROCESS_HEADINGS[] =
    "| Processes:                                                                              |\n"
    "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
    "|        ID   ID                                                               Usage      |\n"
    "|=========================================================================================|\n";

static bool lost;

/* A field for a cell: its text, with a unit behind it, or the word for what NVML does not tell. */
static const char *cell(nvml_device device, const char *name, const char *unit, char text[TEXT])
{
    bool unreachable = field_text(field_find(name, strlen(name)), device, text);
    lost |= unreachable;
    if (text[0] == '[')
        snprintf(text, TEXT, "%s", unreachable ? "ERR!" : "N/A");
    else
        strncat(text, unit, TEXT - strlen(text) - 1);
    return text;
}

/* "69W": a cell has no room for hundredths. */
static const char *watts(nvml_device device, const char *name, char text[TEXT])
{
    cell(device, name, "", text);
    char *dot = strchr(text, '.');
    if (dot != NULL)
        strcpy(dot, "W");
    return text;
}

static const char *on_off(nvml_device device, const char *name, char text[TEXT])
{
    cell(device, name, "", text);
    if (strcmp(text, "Enabled") == 0)
        return "On";
    return strcmp(text, "Disabled") == 0 ? "Off" : text;
}

/* Compute modes are shortened to fit their column. */
static const char *compute_mode(nvml_device device, char text[TEXT])
{
    cell(device, "compute_mode", "", text);
    if (strcmp(text, "Exclusive_Process") == 0)
        return "E. Process";
    return strcmp(text, "Exclusive_Thread") == 0 ? "E. Thread" : text;
}

static void print_first_row(nvml_device device)
{
    char index[TEXT], name[TEXT], persistence[TEXT], bus[TEXT], display[TEXT], errors[TEXT];
    cell(device, "name", "", name);
    if (strlen(name) > 27)
        strcpy(name + 24, "...");
    printf("| %3s  %-27s   %3s  | %18s %3s | %20s |\n", cell(device, "index", "", index), name,
           on_off(device, "persistence_mode", persistence), cell(device, "pci.bus_id", "", bus),
           on_off(device, "display_active", display),
           cell(device, "ecc.errors.uncorrected.volatile.total", "", errors));
}

static void print_second_row(nvml_device device)
{
    char fan[TEXT], temperature[TEXT], state[TEXT], draw[TEXT], limit[TEXT];
    char used[TEXT], total[TEXT], busy[TEXT], compute[TEXT];
    printf("| %3s  %4s  %4s       %9s / %5s | %10s / %9s | %7s %12s |\n", cell(device, "fan.speed", "%", fan),
           cell(device, "temperature.gpu", "C", temperature), cell(device, "pstate", "", state),
           watts(device, "power.draw", draw), watts(device, "enforced.power.limit", limit),
           cell(device, "memory.used", "MiB", used), cell(device, "memory.total", "MiB", total),
           cell(device, "utilization.gpu", "%", busy), compute_mode(device, compute));
}

static void print_third_row(nvml_device device)
{
    char mig[TEXT];
    printf("| %39s | %22s | %20s |\n", "", "", cell(device, "mig.mode.current", "", mig));
}

static void print_head(void)
{
    char now[TEXT], driver[TEXT] = "N/A", versions[32] = "N/A";
    int cuda;
    time_t clock = time(NULL);
    strftime(now, sizeof now, "%a %b %e %H:%M:%S %Y", localtime(&clock));
    nvml.SystemGetDriverVersion(driver, sizeof driver);
    if (nvml.SystemGetCudaDriverVersion(&cuda) == NVML_SUCCESS)
        snprintf(versions, sizeof versions, "%d.%d", cuda / 1000, cuda % 1000 / 10);
    printf("%s       \n%s", now, WIDE_RULE);
    printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-8s |\n", driver, driver, versions);
    printf("%s%s", RULE, HEADINGS);
}

static void instance_text(uint32_t number, char text[16])
{
    if (number == NO_INSTANCE)
        strcpy(text, "N/A");
    else
        snprintf(text, 16, "%u", number);
}

static unsigned print_processes_of(nvml_device device)
{
    nvml_process processes[MAX_PROCESSES];
    unsigned count = MAX_PROCESSES;
    if (nvml.DeviceGetComputeRunningProcesses(device, &count, processes) != NVML_SUCCESS)
        return 0;
    for (unsigned i = 0; i < count; i++) {
        char index[TEXT], name[TEXT] = "[Not Found]", memory[32], gpu_instance[16], compute_instance[16];
        nvml.SystemGetProcessName(processes[i].v1.pid, name, sizeof name);
        snprintf(memory, sizeof memory, "%lluMiB", (unsigned long long)(processes[i].v1.memory >> 20));
        instance_text(processes[i].gpu_instance, gpu_instance);
        instance_text(processes[i].compute_instance, compute_instance);
        printf("| %4s %4s %4s %16u %6s   %-29.29s %16s |\n", cell(device, "index", "", index), gpu_instance,
               compute_instance, processes[i].v1.pid, "C", name, memory);
    }
    return count;
}

static void print_processes(const struct devices *devices)
{
    unsigned count = 0;
    printf("\n%s%s", WIDE_RULE, PROCESS_HEADINGS);
    for (unsigned i = 0; i < devices->count; i++)
        count += print_processes_of(devices->device[i]);
    if (count == 0)
        printf("|  %-86s |\n", "No running processes found");
    printf("%s", WIDE_RULE);
}

int table_print(const struct devices *devices)
{
    print_head();
    for (unsigned i = 0; i < devices->count; i++) {
        print_first_row(devices->device[i]);
        print_second_row(devices->device[i]);
        print_third_row(devices->device[i]);
        printf("%s", RULE);
    }
    mig_table_print(devices);
    print_processes(devices);
    return lost ? exit_code_of(NVML_GPU_IS_LOST) : EXIT_SUCCESS;
}
