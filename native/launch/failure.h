/* Which call failed, in words, and why: what a FAILED message carries. */
#ifndef EXCISE_FAILURE_H
#define EXCISE_FAILURE_H

#include <stddef.h>

struct failure {
    int error; /* an errno, positive; 0: nothing failed */
    char step[252];
};

/* Fills in `failure` and returns -error, so that a caller can `return fail(...)`. */
int fail(struct failure *failure, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* For __attribute__((cleanup)): closes a descriptor that is not negative. */
void close_descriptor(const int *descriptor);
#define CLOSES __attribute__((cleanup(close_descriptor)))

#endif
