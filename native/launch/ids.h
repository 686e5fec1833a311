/* Ranges of 65,536 host uids and gids, one for each sandbox of a launcher that runs as root. */
#ifndef EXCISE_IDS_H
#define EXCISE_IDS_H

#include <stdint.h>

enum {
    IDS_EACH = 65536,
    IDS_FIRST = 0x40000000, /* above what useradd gives out as subordinate ids, below where the kernel's and systemd's own reservations begin */
    IDS_END = 0x6fff0000,
    IDS_RANGES = (IDS_END - IDS_FIRST) / IDS_EACH,
};

struct ids {
    int file; /* one byte of it is locked for each range in use on this machine; -1: no ranges are given out */
    uint32_t next;
    uint8_t taken[(IDS_RANGES + 7) / 8]; /* ours: a lock does not exclude its own holder */
};

struct failure;

int ids_open(struct ids *ids, const char *path, struct failure *failure);

/* The first id of a range that nobody else has until ids_give, or until this process ends. 0 or -errno. */
int ids_take(struct ids *ids, uint32_t *first, struct failure *failure);
void ids_give(struct ids *ids, uint32_t first);

#endif
