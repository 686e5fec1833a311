/* The connection to the host: frames in, one bounded queue of frames out. */
#ifndef EXCISE_GUEST_LINK_H
#define EXCISE_GUEST_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/wire.h"
#include "guest/loop.h"

enum {
    LINK_IN_BYTES = WIRE_HEADER_BYTES + WIRE_MAX_PAYLOAD,
    LINK_OUT_BYTES = 1 << 20,
    LINK_OUTPUT_MARK = 256 << 10, /* above: programs' output is not read */
    LINK_ANSWER_MARK = 512 << 10, /* above: requests are not read */
    LINK_CHUNK = 64 << 10,        /* of a program's output, in one frame */
};

struct assembly { /* a request in several frames */
    uint32_t id;
    uint8_t type;
    char *bytes;
    size_t length;
    struct assembly *next;
};

struct link {
    struct watch in, out; /* the same descriptor: `out` is a copy of it */
    uint32_t epoch;
    bool greeted;
    char *received;
    size_t received_end;
    bool held; /* frames have come that could not be served yet */
    struct assembly *assemblies;
    size_t assembled; /* bytes in all of them */
    char *queue;
    size_t queue_begin, queue_end;
    bool stalled;     /* outputs stand still until the queue is short again */
};

int link_open(struct guest *guest);

/* Queues a frame. The queue has room for what the actions in flight can say; more than that is the host's fault, and ends the guest. */
void link_send(struct guest *guest, uint8_t type, uint8_t flags, uint32_t id, const void *payload, size_t length);
void link_refuse(struct guest *guest, uint32_t id, const char *message, int error);

/* Room for an OUTPUT frame's bytes, read straight into the queue; NULL if the host does not read. Then `link_put` the bytes that came. */
char *link_room(struct guest *guest, size_t length);
void link_put(struct guest *guest, uint8_t type, uint8_t flags, uint32_t id, size_t length);

/* The host reads too slowly for more of the programs' output. */
bool link_crowded(const struct guest *guest);

/* Serves the frames that came while none could be served. */
void link_serve(struct guest *guest);

/* Forgets requests that have not come whole. */
void link_forget(struct guest *guest);
/* Lets go of the memory of frames that have passed. */
void link_wipe(struct guest *guest);

/* Sends what is queued, as much as goes. */
void link_flush(struct guest *guest);

/* The host broke the protocol: there is nothing to say to it any more. */
void link_broken(struct guest *guest, const char *why) __attribute__((noreturn));

#endif
