/* What sandboxed code may do, taken on by a runner or a file worker before it does anything for the sandbox. */
#ifndef EXCISE_CONFINE_H
#define EXCISE_CONFINE_H

#include <linux/filter.h>
#include <stdbool.h>
#include <stdint.h>

struct confinement {
    uint64_t capabilities;           /* permitted, effective and in the bounding set; all others are dropped, and none is inheritable or ambient */
    bool no_new_privileges;
    const struct sock_fprog *filter; /* NULL: no seccomp filter */
    /* What a runner says to be let clone3, or NULL: the filter knows it, sandboxed code does not. */
    const uint32_t *key;
};

enum { CONFINE_KEY_WORDS = 4 };

/* Docker's default set, as a mask. */
uint64_t confine_default_capabilities(void);

/* The allow-list filter of this architecture, built once by the caller that keeps it. With a key, who passes its words as the arguments that clone3 does not have
 * (2 to 5) may call that: its flags lie in memory, where no filter can look, so sandboxed code must never. NULL: nobody may. 0 or -errno. */
int confine_build_filter(struct sock_fprog *program, const uint32_t *key);

/* One that allows all but a signal to the first process, by any way there is: for a kernel that lets it be killed from inside. 0 or -errno. */
int confine_build_guard(struct sock_fprog *program);

/* Drops all but these from the bounding set. Done once by PID 1, which loses nothing by it since it never executes anything, it spares every runner the
 * drops: they inherit it. Needs CAP_SETPCAP. 0 or -errno. */
int confine_bounding_set(uint64_t capabilities);

/* Takes it on, for this process and all it starts. Raw system calls only: it runs in a process that shares memory with another. 0 or -errno. */
int confine_self(const struct confinement *confinement);

#endif
