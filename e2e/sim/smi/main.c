// SPDX-License-Identifier: Apache-2.0

/* nvidia-smi of the simulated driver: an ordinary NVML client. Commands and exit codes:
   docs/reference/nvml-simulator.md §15. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smi.h"

static const char USAGE[] =
    "NVIDIA System Management Interface of a simulated driver\n"
    "\n"
    "nvidia-smi [OPTION]...\n"
    "\n"
    "    <no option>                 Show a summary of the GPUs.\n"
    "    -L,   --list-gpus           List the GPUs with their UUIDs.\n"
    "    -i,   --id=ID[,ID...]       Only these GPUs: index, UUID or PCI bus id.\n"
    "    -q,   --query               Show everything known about each GPU.\n"
    "    --query-gpu=FIELD[,FIELD...] --format=csv[,noheader][,nounits]\n"
    "                                Show chosen facts as comma separated values.\n"
    "    --help-query-gpu            List the fields of --query-gpu.\n"
    "    -mig, --multi-instance-gpu=0|1\n"
    "                                Turn MIG mode off or on.\n"
    "    -pm,  --persistence-mode=0|1\n"
    "                                Turn persistence mode off or on.\n"
    "    -r,   --gpu-reset           Reset the GPUs that -i names, which nobody may have open.\n"
    "    -c,   --compute-mode=MODE   Set who may compute: DEFAULT, EXCLUSIVE_PROCESS or PROHIBITED.\n"
    "    compute-policy              Show and set time slices; see compute-policy --help.\n"
    "    mig                         Show, make and destroy MIG instances; see mig --help.\n"
    "    --version                   Show the versions of tool, NVML, driver and CUDA.\n"
    "    -h,   --help                Show this text.\n";

/* --format=csv with noheader and nounits behind it. */
static bool parse_format(const char *format, struct options *options)
{
    bool csv = false;
    for (const char *word = format; *word != '\0';) {
        size_t length = strcspn(word, ",");
        if (length == 3 && strncmp(word, "csv", length) == 0)
            csv = true;
        else if (length == 8 && strncmp(word, "noheader", length) == 0)
            options->header = false;
        else if (length == 7 && strncmp(word, "nounits", length) == 0)
            options->units = false;
        else
            return false;
        word += length + (word[length] == ',');
    }
    return csv;
}

static int parse(char **arguments, struct options *options)
{
    const char *value, *format = NULL;
    if (arguments[1] != NULL && strcmp(arguments[1], "compute-policy") == 0)
        return compute_policy_parse(arguments + 2, options);
    if (arguments[1] != NULL && strcmp(arguments[1], "mig") == 0)
        return mig_parse(arguments + 2, options);
    for (int place = 1; arguments[place] != NULL; place++) {
        const char *argument = arguments[place];
        if (strcmp(argument, "-L") == 0 || strcmp(argument, "--list-gpus") == 0)
            options->command = COMMAND_LIST;
        else if (strcmp(argument, "-q") == 0 || strcmp(argument, "--query") == 0)
            options->command = COMMAND_LOG;
        else if (strcmp(argument, "-r") == 0 || strcmp(argument, "--gpu-reset") == 0)
            options->command = COMMAND_RESET;
        else if (strcmp(argument, "--version") == 0)
            options->command = COMMAND_VERSION;
        else if (strcmp(argument, "-h") == 0 || strcmp(argument, "--help") == 0)
            options->command = COMMAND_HELP;
        else if (strcmp(argument, "--help-query-gpu") == 0)
            options->command = COMMAND_FIELDS;
        else if ((value = value_of("-i", arguments, &place)) || (value = value_of("--id", arguments, &place)))
            options->ids = value;
        else if ((value = value_of("--format", arguments, &place)))
            format = value;
        else if ((value = value_of("-mig", arguments, &place)) ||
                 (value = value_of("--multi-instance-gpu", arguments, &place))) {
            if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
                return bad_argument("\"%s\" is not a MIG mode.\n", value);
            options->command = COMMAND_MIG_MODE;
            options->mig_mode = value[0] == '1';
        } else if ((value = value_of("-pm", arguments, &place)) ||
                   (value = value_of("--persistence-mode", arguments, &place))) {
            if (strcmp(value, "0") != 0 && strcmp(value, "1") != 0)
                return bad_argument("\"%s\" is not a persistence mode.\n", value);
            options->command = COMMAND_PERSISTENCE_MODE;
            options->persistence_mode = value[0] == '1';
        } else if ((value = value_of("-c", arguments, &place)) ||
                   (value = value_of("--compute-mode", arguments, &place))) {
            int mode = compute_mode_of(value);
            if (mode < 0)
                return bad_argument("\"%s\" is not a compute mode.\n", value);
            options->command = COMMAND_COMPUTE_MODE;
            options->compute_mode = (unsigned)mode;
        } else if ((value = value_of("--query-gpu", arguments, &place))) {
            options->command = COMMAND_QUERY_GPU;
            options->fields = value;
        } else
            return bad_argument("Invalid combination of input arguments: %s.\n", argument);
    }
    if (format != NULL && !parse_format(format, options))
        return bad_argument("\"%s\" is not a valid format.\n", format);
    if (options->command == COMMAND_QUERY_GPU && format == NULL)
        return bad_argument("\"--format=\" switch is missing.%s\n", "");
    return EXIT_SUCCESS;
}

static int print_version(void)
{
    char driver[TEXT], library[TEXT];
    int cuda = 0;
    nvml_code code = nvml.SystemGetDriverVersion(driver, sizeof driver);
    if (code == NVML_SUCCESS)
        code = nvml.SystemGetNVMLVersion(library, sizeof library);
    if (code == NVML_SUCCESS)
        code = nvml.SystemGetCudaDriverVersion(&cuda);
    if (code != NVML_SUCCESS) {
        printf("%s\n", nvml.ErrorString(code));
        return exit_code_of(code);
    }
    const char *dot = strchr(library, '.');
    printf("NVIDIA-SMI version  : %s\n", driver);
    printf("NVML version        : %s\n", dot == NULL ? library : dot + 1);
    printf("DRIVER version      : %s\n", driver);
    printf("CUDA Version        : %d.%d\n", cuda / 1000, cuda % 1000 / 10);
    return EXIT_SUCCESS;
}

/* What fault rules call the commands, after "smi:"; those without a name are not disturbed. */
static const char *const COMMANDS[] = {
    [COMMAND_TABLE] = "table",
    [COMMAND_LIST] = "list",
    [COMMAND_QUERY_GPU] = "query",
    [COMMAND_LOG] = "log",
    [COMMAND_MIG_MODE] = "mig-mode",
    [COMMAND_COMPUTE_MODE] = "compute-mode",
    [COMMAND_COMPUTE_POLICY] = "compute-policy",
    [COMMAND_PERSISTENCE_MODE] = "persistence-mode",
    [COMMAND_RESET] = "gpu-reset",
    [COMMAND_MIG] = "mig",
};

static int run(const struct options *options)
{
    struct devices devices;
    if (options->command == COMMAND_VERSION)
        return print_version();
    nvml_code code = nvml_bind_private();
    if (code == NVML_SUCCESS)
        code = nvml_private->begin_command("smi", COMMANDS[options->command]);
    if (code != NVML_SUCCESS) {
        printf("%s\n", nvml.ErrorString(code));
        return exit_code_of(code);
    }
    code = devices_select(options->ids, &devices);
    if (code != NVML_SUCCESS)
        return exit_code_of(code);
    if (devices.count == 0) {
        printf(options->command == COMMAND_LIST ? "No devices found.\n" : "No devices were found\n");
        return exit_code_of(NVML_NOT_FOUND);
    }
    switch (options->command) {
    case COMMAND_LIST:
        return list_print(&devices);
    case COMMAND_QUERY_GPU:
        return query_print(options, &devices);
    case COMMAND_LOG:
        return log_print(&devices);
    case COMMAND_MIG_MODE:
        return mig_mode_set(options, &devices);
    case COMMAND_COMPUTE_MODE:
        return compute_mode_set(options, &devices);
    case COMMAND_PERSISTENCE_MODE:
        return persistence_mode_set(options, &devices);
    case COMMAND_RESET:
        return reset_run(&devices);
    case COMMAND_MIG:
        return mig_run(&devices);
    case COMMAND_COMPUTE_POLICY:
        return compute_policy_run(options, &devices);
    default:
        return table_print(&devices);
    }
}

static int start_failed(nvml_code code)
{
    if ((int)code == NVML_LIBRARY_NOT_FOUND)
        printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
               "Driver is properly installed and present in your system.\n"
               "Please also try adding directory that contains libnvidia-ml.so to your system PATH.\n");
    else if (code == NVML_DRIVER_NOT_LOADED)
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
               "NVIDIA driver is installed and running.\n\n");
    else
        printf("Failed to initialize NVML: %s\n", nvml.ErrorString == NULL ? "Function Not Found" : nvml.ErrorString(code));
    return exit_code_of(code);
}

int main(int count, char **arguments)
{
    (void)count;
    struct options options = {.command = COMMAND_TABLE, .header = true, .units = true, .usage = USAGE};
    int wrong = parse(arguments, &options);
    if (wrong != EXIT_SUCCESS)
        return wrong;
    if (options.command == COMMAND_HELP) {
        fputs(options.usage, stdout);
        return EXIT_SUCCESS;
    }
    if (options.command == COMMAND_FIELDS) {
        fields_print();
        return EXIT_SUCCESS;
    }
    nvml_code code = nvml_load();
    if (code == NVML_SUCCESS)
        code = nvml.InitWithFlags(
            options.command == COMMAND_VERSION ? NVML_INIT_NO_GPUS | NVML_INIT_NO_ATTACH : NVML_INIT_NO_GPUS);
    if (code != NVML_SUCCESS)
        return start_failed(code);
    int result = run(&options);
    nvml.Shutdown();
    return result;
}
