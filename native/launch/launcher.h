/* The launcher's state: one for the process, handed down. */
#ifndef EXCISE_LAUNCHER_H
#define EXCISE_LAUNCHER_H

#include "common/confine.h"
#include "launch/ids.h"
#include "launch/replies.h"

#include <stdbool.h>
#include <stdint.h>

struct layer;
struct sandbox;

struct launcher {
    int epoll;
    int self; /* our own pidfd, by which a child sees that we are alive */
    bool rootless;  /* it may not mount outside a user namespace of its own */
    bool host_root; /* rootless, and the sandboxes' root has the id of the host's */
    uint32_t users; /* how many ids a sandbox has */
    struct ids ids;
    bool at_home; /* in its own v2 group, launch/home.h */
    uint32_t key[CONFINE_KEY_WORDS];
    struct sock_fprog filter;
    struct confinement confinement;
    struct replies replies; /* to the client */
    struct sandbox *sandboxes;
    bool has_layers;      /* uppers are ours, and can be sealed */
    struct layer *layers; /* those that are */
};

#endif
