/* What this daemon is, for all its parts. */
#include "daemon.h"

struct self self;

enum state shown_state(void)
{
    return self.state == READY && self.faults.never_ready ? NOT_READY : self.state;
}
