/* A request's fields, checked and copied: what the host asks for, in C's own shape. */
#ifndef EXCISE_GUEST_REQUEST_H
#define EXCISE_GUEST_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "guest/files.h"

struct defaults;

enum { VARIABLES_MAX = 4096 };

/* What a request said, pointing into its own copy of it. */
struct request {
    char *bytes;
    char **words; /* argv, NULL, environment, NULL and spare: what the two below point into */
    char **argv;
    char **environment; /* the request's over HELLO's, with ENVIRONMENT_SPARE slots free after its end */
    size_t argument_count;
    uint8_t type;
    uint8_t flags;
    const char *cwd;
    const char *user;
    const char *session;
    const char *script;
    uint64_t timeout_ns; /* 0: none */
    uint64_t window;
    uint32_t rows, columns;
    struct file_request file;
};

/* 0, or -errno; then nothing is kept. -EPROTO: it is malformed. -E2BIG: too many variables. */
int request_parse(struct request *request, const struct defaults *defaults, const char *payload, size_t length);
void request_free(struct request *request);

#endif
