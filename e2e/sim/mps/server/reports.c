// SPDX-License-Identifier: Apache-2.0

/* What the server tells the control daemon of its clients. */
#include "server.h"

struct cuda_devices devices;

void tell_that_left(unsigned number)
{
    message_send(CONTROL, "LEFT %u", number);
}

void tell_device(unsigned number, unsigned device)
{
    message_send(CONTROL, "DEVICE %u %s", number, devices.device[device].uuid);
}
