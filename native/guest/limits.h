/* What the sandbox's own limits did, told from the program's doing: counters of its control group, and the space on its root. */
#ifndef EXCISE_GUEST_LIMITS_H
#define EXCISE_GUEST_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

struct guest_config;
struct wire_ended;

struct counts {
    uint64_t out_of_memory; /* processes the kernel killed */
    uint64_t out_of_pids;   /* forks it refused */
};

struct counts limits_count(const struct guest_config *config);

/* Changes the end of an action that did not succeed to the limit that rose since `before`. */
void limits_judge(const struct guest_config *config, const struct counts *before, struct wire_ended *record);

/* The end of an action that could not be started for `error`: the limit that refused it, or -1 if none did. */
int limits_refused(const struct guest_config *config, int error);

#endif
