/* Packets with descriptors beside them, over a Unix socket. None of this blocks unless it says so. */
#ifndef EXCISE_PACKETS_H
#define EXCISE_PACKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { PACKET_DESCRIPTORS = 253 }; /* the kernel's own limit */

int packet_send(int socket, const void *bytes, size_t length, const int *descriptors, size_t count);

/* The packet's length, 0 at the end, or -errno; -EMSGSIZE if it or its descriptors did not fit, and then none of them is left open. */
ssize_t packet_receive(int socket, void *bytes, size_t size, int *descriptors, size_t *count, bool wait);

#endif
