/* Detached copies of mounts, made with the launcher's rights and attached by the child. */
#ifndef EXCISE_CLONES_H
#define EXCISE_CLONES_H

#include <stdbool.h>
#include <stddef.h>

struct failure;
struct plan;

/* Opens one for every directory of the image, every bind and /dev, in this order, with the owners seen through `user_namespace` (-1: as they are).
 * `descriptors` has room for all of them and is filled up to `*count` also when it fails. 0 or -errno. */
int clones_open(const struct plan *plan, int user_namespace, int *descriptors, size_t *count, struct failure *failure);

#endif
