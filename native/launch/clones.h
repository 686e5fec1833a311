/* Detached copies of mounts, made with the launcher's rights and attached by the child. */
#ifndef EXCISE_CLONES_H
#define EXCISE_CLONES_H

#include <stdbool.h>
#include <stddef.h>

struct failure;
struct layer;
struct plan;

struct clones {
    const struct plan *plan;
    const struct layer *layers; /* those the plan may name */
    int sealed;                 /* an upper that is the topmost lower, before the plan's; or -1 */
    int upper;                  /* the one to write into; -1: the child makes its own */
    int user_namespace;         /* through which all owners are seen; -1: as they are */
};

/* Opens one for every lower, every bind, /dev and the upper, in this order. `descriptors` has room for all of them and is filled up to `*count` also when it fails. 0 or
 * -errno. */
int clones_open(const struct clones *clones, int *descriptors, size_t *count, struct failure *failure);

#endif
