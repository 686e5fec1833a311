/* What a session's shell says of a command: "\0NONCE STATUS\0". The nonce is new for each command, so that nothing said before is taken for its status. */
#ifndef EXCISE_GUEST_STATUS_H
#define EXCISE_GUEST_STATUS_H

#include <stdbool.h>
#include <stddef.h>

enum { NONCE_BYTES = 16, STATUS_BYTES = NONCE_BYTES + 4 };

struct status {
    char nonce[NONCE_BYTES + 1];
    bool told;
    int code;
    /* private */
    char word[STATUS_BYTES + 1];
    size_t length; /* of the word so far; more than STATUS_BYTES: it is none */
};

/* Waits for the status of a new command. 0 or -errno. */
int status_expect(struct status *status);
/* What the shell wrote, in pieces of any size. */
void status_feed(struct status *status, const char *bytes, size_t length);

#endif
