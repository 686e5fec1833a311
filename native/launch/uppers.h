/* Uppers: what a sandbox writes into, each a tmpfs of its own. The launcher makes them, so that its user namespace owns them and set-user-ID files keep their meaning in
 * every sandbox, and holds each by a mount that is attached nowhere and shows the owners' numbers as they are in an image's layers. Sealed, an upper is a layer. */
#ifndef EXCISE_UPPERS_H
#define EXCISE_UPPERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct failure;

struct layer {
    struct layer *next;
    uint32_t id;
    int upper;
};

/* Whether this kernel copies mounts that are attached nowhere (since Linux 6.15): without it nothing can be sealed, and a sandbox makes its upper itself. */
bool uppers_work(void);

/* A fresh one, in which that many lowers find a place beside what is written. 0 bytes or inodes: the kernel's default. A descriptor, or -errno. */
int upper_make(uint64_t bytes, uint64_t inodes, size_t lowers, struct failure *failure);

/* Whether nothing was written into it. */
bool upper_is_empty(int upper);

/* What lies in it, in bytes; and, unless it is 0, `*bytes` and `*inodes` become what there is still room for, at least 1. */
uint64_t upper_usage(int upper, uint64_t *bytes, uint64_t *inodes);

/* Nobody writes into it any more, whatever mounts of it there are. 0 or -errno. */
int upper_seal(int upper);

/* A copy of its mount for one sandbox, with the owners seen through `user_namespace` (-1: as they are): all of it, to write into; or what was written, to be a lower. A
 * descriptor, or -errno. */
int upper_show(int upper, int user_namespace, struct failure *failure);
int upper_show_sealed(int upper, int user_namespace, struct failure *failure);

/* The directory that holds what was written, for who reads it. A descriptor, or -errno. */
int upper_open(int upper);

/* Takes the upper. 0 or -errno. */
int layers_add(struct layer **layers, uint32_t id, int upper);
/* Its upper, or -1. */
int layers_find(const struct layer *layers, uint32_t id);
/* Sandboxes over it live on; the kernel frees it when the last is gone. */
void layers_drop(struct layer **layers, uint32_t id);

#endif
