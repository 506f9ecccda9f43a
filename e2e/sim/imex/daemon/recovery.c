// SPDX-License-Identifier: Apache-2.0

/*
 * Whom an instance was connected to, so that the one after a crash waits for them (quorum RECOVERY).
 *
 * A file that is there at the start was left by a crash. It starts with the hash of the node list, by which it is
 * known to be of another one, and has the number and address of a node in each line after that.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon.h"

#define DIRECTORY "/var/run/nvidia-imex"
#define NOTES DIRECTORY "/persist.dat"

static bool noted[MAX_NODES];
static uint64_t noted_hash; /* 0: nothing has been noted */

unsigned recovery_read(const struct nodes *nodes, bool awaited[MAX_NODES])
{
    uint64_t hash;
    unsigned number, count = 0;
    memset(awaited, 0, MAX_NODES * sizeof *awaited);
    FILE *file = fopen(NOTES, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%" SCNx64, &hash) == 1 && hash == nodes->hash)
        while (fscanf(file, " Node %u: %*s", &number) == 1 && number < nodes->count)
            if (!awaited[number]) {
                awaited[number] = true;
                count++;
            }
    fclose(file);
    return count;
}

static bool written(const struct nodes *nodes, const bool kept[MAX_NODES])
{
    if (mkdir(DIRECTORY, 0755) != 0 && errno != EEXIST)
        return false;
    FILE *file = fopen(NOTES ".new", "we");
    if (file == NULL)
        return false;
    fprintf(file, "%" PRIx64 "\n", nodes->hash);
    for (unsigned node = 0; node < nodes->count; node++) {
        char ip[IP_SIZE];
        if (!kept[node])
            continue;
        address_format(&link_to(node)->address, ip);
        fprintf(file, "Node %u: %s\n", node, ip[0] == '\0' ? "-" : ip);
    }
    return fclose(file) == 0 && rename(NOTES ".new", NOTES) == 0;
}

void recovery_note(const struct nodes *nodes, const bool kept[MAX_NODES])
{
    if (noted_hash == nodes->hash && memcmp(noted, kept, sizeof noted) == 0)
        return;
    if (!written(nodes, kept))
        log_line(WARNING, "cannot write %s, so nobody will be waited for after a crash: %s", NOTES, strerror(errno));
    memcpy(noted, kept, sizeof noted);
    noted_hash = nodes->hash;
}

void recovery_forget(void)
{
    unlink(NOTES);
    noted_hash = 0;
}
