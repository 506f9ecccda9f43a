// SPDX-License-Identifier: Apache-2.0

/* A domain as a table for people, and as JSON. */
#include <stdio.h>
#include <string.h>

#include "ctl.h"

static void show_legend(void)
{
    printf("Connectivity Table Legend:\n");
    for (int one = 0; one < CONNECTION_COUNT; one++)
        printf("%s - %s\n", CONNECTION_MARKS[one], CONNECTION_MEANINGS[one]);
    printf("\n");
}

void show_table(const struct domain *domain, bool with_hostnames)
{
    show_legend();
    printf("%s\nNodes:\n", domain->time);
    for (unsigned node = 0; node < domain->nodes.count; node++) {
        const struct peer *peer = &domain->peers[node];
        bool is_asked = (int)node == domain->asked;
        printf("Node #%-3u %s %-15s %s %-20s", node, is_asked ? "*" : "-", domain->nodes.name[node],
               is_asked ? "*  -" : "-", peer->state);
        if (peer->version[0] != '\0')
            printf(" - Version: %s", peer->version);
        if (with_hostnames)
            printf(" - Hostname: %s", peer->hostname);
        printf("\n");
    }
    printf("\n Nodes From\\To ");
    for (unsigned node = 0; node < domain->nodes.count; node++)
        printf(" %-3u", node);
    for (unsigned node = 0; node < domain->nodes.count; node++) {
        printf("\n       %-8u", node);
        for (const char *letter = domain->peers[node].row; *letter != '\0'; letter++)
            printf(" %-3s", CONNECTION_MARKS[connection_of(*letter)]);
    }
    printf("\nDomain State: %s\n", domain->state);
}

/* Names, addresses and versions have no character that JSON escapes; whatever has is left out. */
static void show_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++)
        if (*text >= ' ' && *text != '"' && *text != '\\')
            putchar(*text);
    putchar('"');
}

static void show_member(const char *key, const char *text, const char *after)
{
    printf("\"%s\":", key);
    show_text(text);
    printf("%s", after);
}

static void show_connections(const struct domain *domain, const struct peer *peer)
{
    printf("\"connections\":{");
    for (unsigned node = 0; node < domain->nodes.count && peer->row[node] != '\0'; node++) {
        enum connection connection = connection_of(peer->row[node]);
        printf("%s\"%u\":{", node > 0 ? "," : "", node);
        show_member("host", domain->nodes.name[node], ",");
        show_member("status", CONNECTION_NAMES[connection], ",");
        printf("\"changed\":%s}", connection == INVALID ? "false" : "true");
    }
    printf("},");
}

void show_json(const struct domain *domain)
{
    printf("{\"nodes\":{");
    for (unsigned node = 0; node < domain->nodes.count; node++) {
        const struct peer *peer = &domain->peers[node];
        printf("%s\"%u\":{", node > 0 ? "," : "", node);
        show_member("status", peer->state, ",");
        show_member("host", domain->nodes.name[node], ",");
        show_connections(domain, peer);
        printf("\"changed\":%s,", strcmp(peer->state, STATE_NAMES[UNAVAILABLE]) == 0 ? "false" : "true");
        show_member("version", peer->version, ",");
        show_member("hostName", peer->hostname, "}");
    }
    printf("},");
    show_member("timestamp", domain->time, ",");
    show_member("status", domain->state, "}\n");
}
