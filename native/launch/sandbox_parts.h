/* What the parts of a sandbox's handling share; nobody else's. */
#ifndef EXCISE_SANDBOX_PARTS_H
#define EXCISE_SANDBOX_PARTS_H

#include "launch/sandbox.h"

#include <stddef.h>

struct clones;

/* NULL: there is none. */
struct sandbox *sandbox_find(const struct launcher *launcher, uint32_t id);

/* Our own child and not yet reaped: the number cannot have become another's. */
void sandbox_kill(const struct sandbox *sandbox);

/* Its first process's directory in /proc. A descriptor, or -errno. */
int sandbox_open_process(const struct sandbox *sandbox, struct failure *failure);

/* Opens the mounts with the sandbox's owners and sends them, with a message of its own. 0 or -errno. */
int sandbox_hand_over(const struct launcher *launcher, const struct sandbox *sandbox, struct clones *from, int process, const void *message, size_t length,
                      struct failure *failure);

/* It has answered the offer of a root. */
int sandbox_take_root(struct launcher *launcher, struct sandbox *sandbox, struct failure *said);

#endif
