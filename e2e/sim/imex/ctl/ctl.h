/* What nvidia-imex-ctl knows of a domain, and the two ways it shows that. */
#pragma once

#include "imex.h"

struct peer {
    unsigned number;
    char name[NAME_SIZE], ip[IP_SIZE], state[32], version[32], hostname[NAME_SIZE], row[LINE_SIZE];
};

struct domain {
    char state[32], time[64];
    int asked; /* number of the node that answered; -1: it does not know its own */
    unsigned count;
    struct peer *peers;
};

void show_table(const struct domain *domain, bool with_hostnames);
void show_json(const struct domain *domain);
