/* Who a program runs as, by the sandbox's own /etc/passwd and /etc/group. Raw system calls only: it runs in processes that share the guest's memory. */
#ifndef EXCISE_GUEST_USERS_H
#define EXCISE_GUEST_USERS_H

#include <stddef.h>
#include <sys/types.h>

enum { IDENTITY_GROUPS = 64, IDENTITY_TEXT = 256 };

struct identity {
    uid_t uid;
    gid_t gid;
    size_t group_count;
    gid_t groups[IDENTITY_GROUPS];
    char home[IDENTITY_TEXT]; /* "HOME=..."; empty if /etc/passwd does not know the user */
    char name[IDENTITY_TEXT]; /* "USER=..." */
};

/* Looks up "name-or-number[:group]". 0, or -errno; -ENOENT with `*what` "user" or "group": there is none of that name. */
int identity_find(const char *user, struct identity *identity, const char **what);

/* Becomes it, for good. 0 or -errno. */
int identity_take(const struct identity *identity);

#endif
