/* The tables of tests/isolation/attempts.c and processes.c. */
#ifndef ATTEMPTS_H
#define ATTEMPTS_H

#include <stddef.h>

struct attempt {
    const char *name;
    int words;
    int (*perform)(char **words); /* 0: it succeeded; else -errno */
};

extern const struct attempt process_attempts[];
extern const size_t process_attempt_count;

#endif
