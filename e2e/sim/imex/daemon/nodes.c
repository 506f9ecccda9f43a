/* The node file: who belongs to the domain, and by which number. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon.h"

/* FNV-1a over the names and what ends them: the same for the same list in the same order. */
static uint64_t hashed(uint64_t hash, const char *name)
{
    do {
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001B3);
    } while (*name++ != '\0');
    return hash;
}

static bool add(struct nodes *nodes, const char *name, size_t length, const char *path, unsigned line)
{
    if (length >= NAME_SIZE || nodes->count == MAX_NODES) {
        log_line(ERROR, "%s:%u: %s", path, line, length >= NAME_SIZE ? "the name is too long" : "too many nodes");
        return false;
    }
    char *place = nodes->name[nodes->count++];
    memcpy(place, name, length);
    place[length] = '\0';
    nodes->hash = hashed(nodes->hash, place);
    return true;
}

bool nodes_read(const char *path, struct nodes *nodes)
{
    *nodes = (struct nodes){.hash = UINT64_C(0xCBF29CE484222325)};
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        log_line(ERROR, "cannot read the node list %s: %s", path, strerror(errno));
        return false;
    }
    char *text = NULL;
    size_t size = 0;
    bool right = true;
    for (unsigned line = 1; right && getline(&text, &size, file) >= 0; line++) {
        const char *name = text + strspn(text, " \t\r\n");
        if (*name != '\0' && *name != '#')
            right = add(nodes, name, strcspn(name, " \t\r\n"), path, line);
    }
    free(text);
    fclose(file);
    if (right && nodes->count == 0)
        log_line(ERROR, "the node list %s names nobody", path);
    return right && nodes->count > 0;
}
