/* What is said to the client, in order. The client may be slow to read; the launcher waits for nobody. */
#ifndef EXCISE_REPLIES_H
#define EXCISE_REPLIES_H

#include "launch/failure.h"

#include <stddef.h>
#include <stdint.h>

struct reply;

struct replies {
    int control;
    struct reply *first; /* those the socket had no room for */
    struct reply **last;
};

void replies_open(struct replies *replies, int control);

int replies_hello(struct replies *replies, uint32_t users, int rootless, const char *why_one_user);
int replies_failed(struct replies *replies, uint32_t id, const struct failure *failure);
int replies_gone(struct replies *replies, uint32_t id);

/* Takes both descriptors; `listener` may be -1. */
int replies_ready(struct replies *replies, uint32_t id, int pidfd, int listener);

/* Sends what waits. 1: some still does; 0: none; or -errno, when the client is gone. */
int replies_flush(struct replies *replies);

#endif
