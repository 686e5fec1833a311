/* The sandbox's file systems, built by the child in its own mount namespace from what the launcher opened for it. In this order: */
#ifndef EXCISE_ROOT_H
#define EXCISE_ROOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct failure;
struct plan;

struct root {
    const struct plan *plan;
    const int *clones;  /* as clones_open gives them */
    size_t lower_count; /* among them */
    bool has_upper;     /* so: the last of them is the upper; else it is made here */
    bool again;         /* it takes the place of another one of this sandbox's */
    bool over_layers;   /* some of its lowers were sandboxes' uppers */
    bool keeps_scratch; /* and has /tmp and /dev/shm as that had them */
    uint32_t users;
    bool host_root; /* the sandbox's root has the id of the host's, and of what that owns in /proc */
    /* Mounts, made before the old root is left and attached after it; all are closed by who closes what the root was built from. */
    int mask;   /* the empty file of the launcher's tree; not used again */
    int scratch; /* a tmpfs of the sandbox's own, which it sees two directories of: /tmp and /dev/shm. It is where roots are built, and kept for the next one */
    int left_root, left_scratch; /* all that holds what was there before; -1: nothing */
    int shared, temporary; /* the directory that will be /dev/shm; /tmp */
    int proc, sys; /* sys may be negative: there is none */
    bool masked; /* the mask is attached somewhere */
};

/* Mounts a tmpfs with the sandbox's quota, and on it the overlay over the lowers. */
int root_build(struct root *root, struct failure *failure);

/* Makes the overlay the root, and takes the old one away, with everything of the host or of the life before. Whatever the image's links say, from here on they lead nowhere else. */
int root_enter(struct failure *failure);

int root_devices(const struct root *root, struct failure *failure);
int root_kernel(struct root *root, struct failure *failure);
/* Before the binds, which may go there. */
int root_scratch(const struct root *root, struct failure *failure);
int root_binds(const struct root *root, struct failure *failure);
int root_directories(const struct root *root, struct failure *failure);

/* Closes what it was built of, but for the clones and the scratch: the mounts are attached. */
void root_close(struct root *root);

#endif
