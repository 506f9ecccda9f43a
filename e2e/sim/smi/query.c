// SPDX-License-Identifier: Apache-2.0

/* nvidia-smi --query-gpu=... --format=csv */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smi.h"

enum { MAX_COLUMNS = 96 };

static int resolve(const char *names, const struct field *columns[MAX_COLUMNS])
{
    int count = 0;
    while (*names != '\0') {
        size_t length = strcspn(names, ",");
        const struct field *field = field_find(names, length);
        if (field == NULL || count == MAX_COLUMNS) {
            printf("Field \"%.*s\" is not a valid field to query.\n\n", (int)length, names);
            return -1;
        }
        columns[count++] = field;
        names += length + (names[length] == ',');
    }
    return count;
}

static void print_header(const struct options *options, const struct field *const *columns, int count)
{
    const char *names = options->fields;
    for (int i = 0; i < count; i++) {
        size_t length = strcspn(names, ",");
        printf("%s%.*s", i == 0 ? "" : ", ", (int)length, names);
        if (columns[i]->unit != NULL)
            printf(" [%s]", columns[i]->unit);
        names += length + (names[length] == ',');
    }
    putchar('\n');
}

static bool print_row(const struct options *options, const struct field *const *columns, int count, nvml_device device)
{
    bool lost = false;
    for (int i = 0; i < count; i++) {
        char text[TEXT];
        lost |= field_text(columns[i], device, text);
        printf("%s%s", i == 0 ? "" : ", ", text);
        if (options->units && columns[i]->unit != NULL && text[0] != '[')
            printf(" %s", columns[i]->unit);
    }
    putchar('\n');
    return lost;
}

int query_print(const struct options *options, const struct devices *devices)
{
    const struct field *columns[MAX_COLUMNS];
    int count = resolve(options->fields, columns);
    if (count <= 0)
        return EXIT_BAD_ARGUMENT;
    if (options->header)
        print_header(options, columns, count);
    bool lost = false;
    for (unsigned i = 0; i < devices->count; i++)
        lost |= print_row(options, columns, count, devices->device[i]);
    return lost ? exit_code_of(NVML_GPU_IS_LOST) : EXIT_SUCCESS;
}
