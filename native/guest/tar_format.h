/* The tar format: ustar, GNU long names and numbers, pax headers. */
#ifndef EXCISE_TAR_FORMAT_H
#define EXCISE_TAR_FORMAT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { TAR_BLOCK = 512, TAR_LARGEST_EXTENSION = 1 << 20 };

struct tar_block {
    char name[100];
    char mode[8];
    char uid[8];
    char gid[8];
    char size[12];
    char mtime[12];
    char checksum[8];
    char type;
    char link[100];
    char magic[8]; /* "ustar\0" "00", or GNU's "ustar  \0" */
    char user[32];
    char group[32];
    char major[8];
    char minor[8];
    char prefix[155];
    char rest[12];
};

_Static_assert(sizeof(struct tar_block) == TAR_BLOCK, "a header is one block");

struct tar_member {
    char name[PATH_MAX];
    char link[PATH_MAX];
    char type; /* as in the header; '0' for all plain files */
    uint32_t mode;
    int64_t uid, gid, size;
    struct timespec mtime;
    uint32_t major, minor;
};

/* What came before a member and says more than its header has room for. */
enum { TAR_HAS_NAME = 1, TAR_HAS_LINK = 2, TAR_HAS_SIZE = 4, TAR_HAS_UID = 8, TAR_HAS_GID = 16, TAR_HAS_MTIME = 32 };
struct tar_extension {
    unsigned has;
    struct tar_member says;
};

/* 0; 1 for a block of zeros; -EINVAL for what is no header, -ENOTSUP for one of a kind that is not understood. */
int tar_parse(const struct tar_block *block, struct tar_member *member);

/* The records of a pax header, over what `extension` says already. */
int tar_parse_pax(const char *bytes, size_t length, struct tar_extension *extension);

/* A long name ('L') or a long link ('K'). */
int tar_parse_long(char type, const char *bytes, size_t length, struct tar_extension *extension);

void tar_extend(struct tar_member *member, const struct tar_extension *extension);

/* A header for `member`; a name or link that does not fit is cut, and the caller writes a long one before it. */
void tar_format(struct tar_block *block, const struct tar_member *member);

#endif
