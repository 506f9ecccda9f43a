// SPDX-License-Identifier: Apache-2.0

/* What this daemon is, for all its parts. */
#include "daemon.h"

struct self self;

enum state shown_state(void)
{
    if (self.faults.status > 0 && self.faults.status <= STATE_COUNT)
        return (enum state)(self.faults.status - 1);
    return self.state == READY && self.faults.never_ready ? INIT_GPU : self.state;
}
