/* Another root under a living PID 1: what the launcher offers over the conversation, and how the guest takes it on. */
#ifndef EXCISE_REROOT_H
#define EXCISE_REROOT_H

#include "guest/guest.h"
#include "launch/packets.h"
#include "launch/root.h"

#include <stdbool.h>
#include <stdint.h>

/* The offer; beside it what clones_open opened. It is answered by a struct failure: error 0, done; EBUSY, not now, and nothing has changed; others are the sandbox's end. */
struct root_offer {
    uint16_t lowers;
    uint16_t seals; /* 1: the root that was has been the upper's last, and /tmp and /dev/shm stay; 0: they go, for another life */
};

struct reroot {
    int talk;
    struct root *root; /* the present one */
    struct root_offer offer;
    int clones[PACKET_DESCRIPTORS];
    size_t count;
};

extern const struct guest_roots reroot_calls; /* their state is a struct reroot */

#endif
