/* A launcher that may not mount (an ordinary user's, or a container's root) enters a user namespace of its own, once: every sandbox's is nested in it. */
#ifndef EXCISE_OUTER_H
#define EXCISE_OUTER_H

#include <stddef.h>
#include <stdint.h>

struct failure;

/* Enters new user and mount namespaces as their root, with this user's subordinate ids where there are 65,535 of them and newuidmap and newgidmap grant
 * them. `*users` is how many ids there are: 65536, or 1; `why` says what is not as it should be. 0 or -errno. */
int outer_enter(uint32_t *users, char *why, size_t why_size, struct failure *failure);

#endif
