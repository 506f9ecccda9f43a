// SPDX-License-Identifier: Apache-2.0

/* What all command lines of nvidia-smi have in common. */
#include <stdio.h>
#include <string.h>

#include "smi.h"

int bad_argument(const char *message, const char *argument)
{
    printf(message, argument);
    printf("Please run 'nvidia-smi -h' for help.\n\n");
    return EXIT_BAD_ARGUMENT;
}

const char *value_of(const char *name, char **arguments, int *place)
{
    size_t length = strlen(name);
    const char *argument = arguments[*place];
    if (strncmp(argument, name, length) == 0 && argument[length] == '=')
        return argument + length + 1;
    if (strcmp(argument, name) == 0 && arguments[*place + 1] != NULL)
        return arguments[++*place];
    return NULL;
}
