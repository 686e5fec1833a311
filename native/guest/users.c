#include "guest/users.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "common/sys.h"

enum { LINE = 1024, FIELDS = 7, FILE_BYTES = 4 << 20 };

/* Reads a file of lines that the sandbox's own code may have written: bounded, and never waiting for anyone. */
struct lines {
    int fd;
    size_t begin, end, seen;
    char buffer[2 * LINE];
};

static int lines_open(struct lines *lines, const char *path)
{
    struct stat seen;
    long fd = sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);

    if (fd < 0)
        return (int)fd;
    if (sys(SYS_fstat, fd, &seen) < 0 || !S_ISREG(seen.st_mode)) {
        sys(SYS_close, fd);
        return -EINVAL;
    }
    lines->fd = (int)fd;
    lines->begin = lines->end = lines->seen = 0;
    return 0;
}

/* The next line, terminated, without its newline; NULL at the end. One that is too long is the last. */
static char *lines_next(struct lines *lines)
{
    for (;;) {
        char *line = lines->buffer + lines->begin;
        char *newline = memchr(line, '\n', lines->end - lines->begin);
        long got;

        if (newline != NULL) {
            *newline = 0;
            lines->begin = (size_t)(newline + 1 - lines->buffer);
            return line;
        }
        memmove(lines->buffer, line, lines->end - lines->begin);
        lines->end -= lines->begin;
        lines->begin = 0;
        if (lines->end == sizeof lines->buffer - 1 || lines->seen > FILE_BYTES)
            return NULL;
        got = sys(SYS_read, lines->fd, lines->buffer + lines->end, sizeof lines->buffer - 1 - lines->end);
        if (got <= 0 && lines->end == 0)
            return NULL;
        if (got <= 0) /* the last line has no newline */
            lines->buffer[lines->end++] = '\n';
        else {
            lines->end += (size_t)got;
            lines->seen += (size_t)got;
        }
    }
}

static void lines_close(struct lines *lines)
{
    sys(SYS_close, lines->fd);
}

/* Splits at colons, in place. How many parts there are, at most FIELDS. */
static size_t split(char *line, char *parts[FIELDS])
{
    size_t count = 0;

    for (;;) {
        char *colon = strchr(line, ':');

        parts[count++] = line;
        if (colon == NULL || count == FIELDS)
            return count;
        *colon = 0;
        line = colon + 1;
    }
}

static bool number_of(const char *text, uint32_t *number)
{
    uint64_t value = 0;

    if (*text == 0)
        return false;
    for (; *text != 0; text++) {
        if (*text < '0' || *text > '9')
            return false;
        value = value * 10 + (uint64_t)(*text - '0');
        if (value >= UINT32_MAX) /* the last one means "leave it" to the kernel */
            return false;
    }
    *number = (uint32_t)value;
    return true;
}

static void text_of(char out[IDENTITY_TEXT], const char *name, const char *value)
{
    size_t used = strlen(name), length = strlen(value);

    out[0] = 0;
    if (used + length >= IDENTITY_TEXT)
        return;
    memcpy(out, name, used);
    memcpy(out + used, value, length + 1);
}

/* Fills in what /etc/passwd says. `by_number`: uid is known and the name is looked for. */
static bool find_in_passwd(struct identity *identity, const char *name, bool by_number)
{
    struct lines lines;
    char *line, *parts[FIELDS];
    bool found = false;

    if (lines_open(&lines, "/etc/passwd") < 0)
        return false;
    while (!found && (line = lines_next(&lines)) != NULL) {
        uint32_t uid, gid;

        if (split(line, parts) < 6 || !number_of(parts[2], &uid) || !number_of(parts[3], &gid))
            continue;
        found = by_number ? uid == identity->uid : strcmp(parts[0], name) == 0;
        if (!found)
            continue;
        identity->uid = uid;
        identity->gid = gid;
        text_of(identity->name, "USER=", parts[0]);
        text_of(identity->home, "HOME=", parts[5]);
    }
    lines_close(&lines);
    return found;
}

static bool is_member(const char *members, const char *name)
{
    size_t length = strlen(name);

    while (*members != 0) {
        size_t word = strcspn(members, ",");

        if (word == length && memcmp(members, name, length) == 0)
            return true;
        members += word + (members[word] == ',');
    }
    return false;
}

static bool find_group(const char *name, gid_t *gid)
{
    struct lines lines;
    char *line, *parts[FIELDS];
    uint32_t number;
    bool found = false;

    if (lines_open(&lines, "/etc/group") < 0)
        return false;
    while (!found && (line = lines_next(&lines)) != NULL)
        found = split(line, parts) >= 3 && strcmp(parts[0], name) == 0 && number_of(parts[2], &number);
    lines_close(&lines);
    if (found)
        *gid = number;
    return found;
}

static void find_more_groups(struct identity *identity)
{
    const char *name = identity->name + strlen("USER=");
    struct lines lines;
    char *line, *parts[FIELDS];
    uint32_t gid;

    if (lines_open(&lines, "/etc/group") < 0)
        return;
    while (identity->group_count < IDENTITY_GROUPS && (line = lines_next(&lines)) != NULL) {
        if (split(line, parts) >= 4 && number_of(parts[2], &gid) && gid != identity->gid && is_member(parts[3], name))
            identity->groups[identity->group_count++] = gid;
    }
    lines_close(&lines);
}

int identity_find(const char *user, struct identity *identity, const char **what)
{
    char name[IDENTITY_TEXT];
    const char *colon = strchr(user, ':'), *group = colon == NULL ? "" : colon + 1;
    size_t length = colon == NULL ? strlen(user) : (size_t)(colon - user);
    bool by_number, known;
    uint32_t number;

    memset(identity, 0, sizeof *identity);
    *what = "user";
    if (length == 0 || length >= sizeof name)
        return -ENOENT;
    memcpy(name, user, length);
    name[length] = 0;
    by_number = number_of(name, &number);
    if (by_number)
        identity->uid = identity->gid = number;
    known = find_in_passwd(identity, name, by_number);
    if (!known && !by_number)
        return -ENOENT;
    *what = "group";
    if (*group != 0 && number_of(group, &number))
        identity->gid = number;
    else if (*group != 0 && !find_group(group, &identity->gid))
        return -ENOENT;
    identity->groups[identity->group_count++] = identity->gid;
    if (known && identity->name[0] != 0)
        find_more_groups(identity);
    return 0;
}

int identity_take(const struct identity *identity)
{
    long result = sys(SYS_setgroups, identity->group_count, identity->groups);

    /* A sandbox with one user only has no right to set groups, and needs none to stay who it is. */
    if (result == -EPERM && sys(SYS_geteuid) == (long)identity->uid && sys(SYS_getegid) == (long)identity->gid)
        return 0;
    if (result < 0 || (result = sys(SYS_setresgid, identity->gid, identity->gid, identity->gid)) < 0 ||
        (result = sys(SYS_setresuid, identity->uid, identity->uid, identity->uid)) < 0)
        return (int)result;
    /* A change of credentials gives the memory, which is also the guest's, the mark that the system has for such; ours is stricter. */
    return (int)sys(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
}
