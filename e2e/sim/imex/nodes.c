// SPDX-License-Identifier: Apache-2.0

/* The node file: who belongs to the domain, and by which number. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "imex.h"

/* FNV-1a over the names and what ends them: the same for the same list in the same order. */
static uint64_t hashed(uint64_t hash, const char *name)
{
    do {
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001B3);
    } while (*name++ != '\0');
    return hash;
}

/* What is wrong with the line; NULL: it has been added. */
static const char *add(struct nodes *nodes, const char *name, size_t length)
{
    if (length >= NAME_SIZE || nodes->count == MAX_NODES)
        return length >= NAME_SIZE ? "the name is too long" : "too many nodes";
    char *place = nodes->name[nodes->count++];
    memcpy(place, name, length);
    place[length] = '\0';
    nodes->hash = hashed(nodes->hash, place);
    return NULL;
}

bool nodes_read(const char *path, struct nodes *nodes, complain_function *complain)
{
    *nodes = (struct nodes){.hash = UINT64_C(0xCBF29CE484222325)};
    FILE *file = open_or_complain(path, complain);
    if (file == NULL)
        return false;
    char *text = NULL;
    size_t size = 0;
    const char *problem = NULL;
    for (unsigned line = 1; problem == NULL && getline(&text, &size, file) >= 0; line++) {
        const char *name = text + strspn(text, " \t\r\n");
        if (*name != '\0' && *name != '#' && (problem = add(nodes, name, strcspn(name, " \t\r\n"))) != NULL)
            complain(true, path, line, problem);
    }
    free(text);
    fclose(file);
    if (problem == NULL && nodes->count == 0)
        complain(true, path, 0, problem = "it names nobody");
    return problem == NULL;
}
