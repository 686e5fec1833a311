/* What is said to the client, in order. The client may be slow to read; the launcher waits for nobody. */
#ifndef EXCISE_REPLIES_H
#define EXCISE_REPLIES_H

#include "launch/failure.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct reply;

struct replies {
    int control;
    struct reply *first; /* those the socket had no room for */
    struct reply **last;
};

void replies_open(struct replies *replies, int control);

struct hello {
    uint32_t users;
    bool rootless;
    bool has_layers;
    const char *why_one_user; /* empty: there are more, or nothing is to be said */
};

int replies_hello(struct replies *replies, const struct hello *hello);
int replies_failed(struct replies *replies, uint32_t id, const struct failure *failure);
/* `failure`: with error 0, it has the root, and what was sealed, if anything, takes so much. */
int replies_rooted(struct replies *replies, uint32_t id, uint64_t sealed_bytes, const struct failure *failure);

/* Takes the directory; a negative one is -errno. */
int replies_opened(struct replies *replies, uint32_t id, int directory);

int replies_gone(struct replies *replies, uint32_t id);

/* Takes both descriptors; `listener` may be -1. */
int replies_ready(struct replies *replies, uint32_t id, int pidfd, int listener);

/* Sends what waits. 1: some still does; 0: none; or -errno, when the client is gone. */
int replies_flush(struct replies *replies);

#endif
