/* The sandbox's file systems, built by the child in its own mount namespace from what the launcher opened for it. In this order: */
#ifndef EXCISE_ROOT_H
#define EXCISE_ROOT_H

#include <stdbool.h>
#include <stdint.h>

struct failure;
struct plan;

struct root {
    const struct plan *plan;
    const int *clones; /* as clones_open gives them */
    uint32_t users;
    bool host_root; /* the sandbox's root has the id of the host's, and of what that owns in /proc */
    int mask;   /* the empty file of the launcher's tree */
    int shared; /* the directory that will be /dev/shm */
};

/* Mounts a tmpfs with the sandbox's quota, and on it the overlay over the image. */
int root_build(struct root *root, struct failure *failure);

/* Makes the overlay the root. The old one stays on top of it, unreachable by an absolute path, as the kernel grants a new /proc only to one who has the old. */
int root_enter(struct failure *failure);

int root_devices(const struct root *root, struct failure *failure);
int root_kernel(const struct root *root, struct failure *failure);
int root_binds(const struct root *root, struct failure *failure);
int root_directories(const struct root *root, struct failure *failure);

/* Takes the old root away, and with it everything of the host. */
int root_leave(const struct root *root, struct failure *failure);

#endif
