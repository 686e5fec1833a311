/* The sandbox's own network: a loopback interface and nothing else. */
#ifndef EXCISE_NET_H
#define EXCISE_NET_H

#include <stdint.h>

struct failure;

int net_loopback_up(struct failure *failure);

/* Ends what connections left that no process has any more, so that their ports are free. */
int net_forget(struct failure *failure);

/* A listening socket on 127.0.0.1, or -errno. */
int net_listen(uint16_t port, struct failure *failure);

#endif
