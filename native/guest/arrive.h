/* How the guest comes into a pod and finds its link there. Nothing sandboxed runs until all of this is over. */
#ifndef EXCISE_GUEST_ARRIVE_H
#define EXCISE_GUEST_ARRIVE_H

#include <stdbool.h>
#include <stdint.h>

enum { ARRIVE_SECRET_BYTES = 64 };
/* Of the environment: who wants to be the host of a guest that listens says this first. */
#define ARRIVE_SECRET "EXCISE_LINK_SECRET"

/* Copies this very program to `path`, to be executed by anyone. 0 or -errno; so do all of these. */
int arrive_copy(const char *path);

/* Tells `out` what a program of this container begins with, so that the host knows what the image says: "EXCISE1\n", a u32 of how many bytes follow, the
 * working directory, the number of the user, then every variable; each ends with a null byte. */
int arrive_tell(int out);

/* Waits at the Unix socket `path` for the two descriptors of a link. */
int arrive_wait(const char *path, int link[2]);

/* Gives our stdin and stdout to the guest that waits, or will wait, at `path`; returns when that guest has ended. */
int arrive_give(const char *path);

/* Waits at a TCP port for the one who knows the secret; its connection is the link. `local`: the port is the pod's own, and comes forwarded. */
int arrive_listen(uint16_t port, bool local, int link[2]);

#endif
