/* A domain as a table for people, and as JSON. */
#include <stdio.h>

#include "ctl.h"

static void show_legend(void)
{
    printf("Connections:\n");
    for (int one = 0; one < CONNECTION_COUNT; one++)
        printf("%c - %-17s - %s\n", CONNECTION_LETTERS[one], CONNECTION_NAMES[one], CONNECTION_MEANINGS[one]);
    printf("\n");
}

void show_table(const struct domain *domain, bool with_hostnames)
{
    show_legend();
    printf("%s\nNodes:\n", domain->time);
    for (unsigned i = 0; i < domain->count; i++) {
        const struct peer *peer = &domain->peers[i];
        const char *mark = (int)peer->number == domain->asked ? "*" : "-";
        printf("Node #%-3u %s %-26s %s %-18s - Version: %s", peer->number, mark, peer->name, mark, peer->state,
               peer->version);
        if (with_hostnames)
            printf(" - Hostname: %s - Address: %s", peer->hostname, peer->ip);
        printf("\n");
    }
    printf("\n Nodes From\\To ");
    for (unsigned i = 0; i < domain->count; i++)
        printf(" %-3u", domain->peers[i].number);
    for (unsigned i = 0; i < domain->count; i++) {
        printf("\n       %-8u", domain->peers[i].number);
        for (const char *letter = domain->peers[i].row; *letter != '\0'; letter++)
            printf(" %-3c", *letter);
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
    for (unsigned i = 0; i < domain->count && peer->row[i] != '\0'; i++) {
        printf("%s\"%u\":{", i > 0 ? "," : "", domain->peers[i].number);
        show_member("host", domain->peers[i].name, ",");
        show_member("status", CONNECTION_NAMES[connection_of(peer->row[i])], "}");
    }
    printf("}");
}

void show_json(const struct domain *domain)
{
    printf("{\"nodes\":{");
    for (unsigned i = 0; i < domain->count; i++) {
        const struct peer *peer = &domain->peers[i];
        printf("%s\"%u\":{", i > 0 ? "," : "", peer->number);
        show_member("status", peer->state, ",");
        show_member("host", peer->name, ",");
        show_member("ip", peer->ip, ",");
        show_member("hostname", peer->hostname, ",");
        show_member("version", peer->version, ",");
        printf("\"local\":%s,", (int)peer->number == domain->asked ? "true" : "false");
        show_connections(domain, peer);
        printf("}");
    }
    printf("},");
    show_member("timestamp", domain->time, ",");
    show_member("status", domain->state, "}\n");
}
