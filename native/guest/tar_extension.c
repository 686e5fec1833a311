#include "guest/tar_format.h"

#include <errno.h>
#include <string.h>

static int copy_name(char *name, const char *bytes, size_t length)
{
    if (length >= PATH_MAX)
        return -ENAMETOOLONG;
    if (memchr(bytes, '\0', length) != NULL)
        return -EINVAL;
    memcpy(name, bytes, length);
    name[length] = '\0';
    return 0;
}

int tar_parse_long(char type, const char *bytes, size_t length, struct tar_extension *extension)
{
    bool link = type == 'K';

    extension->has |= link ? TAR_HAS_LINK : TAR_HAS_NAME;
    return copy_name(link ? extension->says.link : extension->says.name, bytes, strnlen(bytes, length));
}

/* A decimal number; all of it up to `end`, or to `stop` if that comes first. */
static int decimal(const char **at, const char *end, char stop, int64_t *number)
{
    bool negative = *at < end && **at == '-';
    int64_t value = 0;
    const char *begin = *at += negative;

    for (; *at < end && **at != stop; ++*at) {
        if (**at < '0' || **at > '9' || __builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, **at - '0', &value))
            return -EINVAL;
    }
    *number = negative ? -value : value;
    return *at == begin ? -EINVAL : 0;
}

/* Seconds with a fraction, of which nine digits count. A time before 1970 rounds down, as a timespec does. */
static int parse_time(const char *at, const char *end, struct timespec *time)
{
    bool negative = at < end && *at == '-';
    int64_t seconds;
    long nanoseconds = 0, unit = 100000000;

    if (decimal(&at, end, '.', &seconds))
        return -EINVAL;
    for (at += at < end; at < end; at++, unit /= 10) {
        if (*at < '0' || *at > '9')
            return -EINVAL;
        nanoseconds += (*at - '0') * unit;
    }
    if (negative && nanoseconds > 0) {
        seconds -= 1;
        nanoseconds = 1000000000 - nanoseconds;
    }
    *time = (struct timespec){.tv_sec = seconds, .tv_nsec = nanoseconds};
    return 0;
}

static int parse_value(unsigned which, const char *value, const char *end, struct tar_member *says)
{
    size_t length = (size_t)(end - value);

    switch (which) {
    case TAR_HAS_NAME:
        return copy_name(says->name, value, length);
    case TAR_HAS_LINK:
        return copy_name(says->link, value, length);
    case TAR_HAS_SIZE:
        return decimal(&value, end, '\n', &says->size) || says->size < 0 ? -EINVAL : 0;
    case TAR_HAS_UID:
        return decimal(&value, end, '\n', &says->uid);
    case TAR_HAS_GID:
        return decimal(&value, end, '\n', &says->gid);
    default:
        return parse_time(value, end, &says->mtime);
    }
}

static bool is(const char *key, size_t length, const char *name)
{
    return length == strlen(name) && memcmp(key, name, length) == 0;
}

static unsigned which_key(const char *key, size_t length)
{
    static const struct {
        const char *name;
        unsigned which;
    } known[] = {
        {"path", TAR_HAS_NAME}, {"linkpath", TAR_HAS_LINK}, {"size", TAR_HAS_SIZE},
        {"uid", TAR_HAS_UID},   {"gid", TAR_HAS_GID},       {"mtime", TAR_HAS_MTIME},
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is(key, length, known[i].name))
            return known[i].which;
    return 0;
}

/* One record without its length: key=value, and the newline that ends it. */
static int parse_record(const char *key, const char *end, struct tar_extension *extension)
{
    const char *equals = memchr(key, '=', (size_t)(end - key));
    size_t length;
    unsigned which;

    if (equals == NULL || equals == key || end[-1] != '\n')
        return -EINVAL;
    length = (size_t)(equals - key);
    if (length > 11 && memcmp(key, "GNU.sparse.", 11) == 0)
        return -ENOTSUP; /* its data is a map of pieces */
    which = which_key(key, length);
    if (which == 0)
        return 0;
    extension->has &= ~which;
    if (equals + 1 == end - 1) /* an empty value takes back an earlier one */
        return 0;
    extension->has |= which;
    return parse_value(which, equals + 1, end - 1, &extension->says);
}

int tar_parse_pax(const char *bytes, size_t length, struct tar_extension *extension)
{
    const char *at = bytes, *end = bytes + length;

    while (at < end) {
        const char *key = at;
        int64_t whole;
        int error;

        if (decimal(&key, end, ' ', &whole) || key == end)
            return -EINVAL;
        key++;
        /* The length counts itself, its space and the newline. */
        if (whole > end - at || whole <= key - at)
            return -EINVAL;
        error = parse_record(key, at + whole, extension);
        if (error)
            return error;
        at += whole;
    }
    return 0;
}

void tar_extend(struct tar_member *member, const struct tar_extension *extension)
{
    const struct tar_member *says = &extension->says;

    if (extension->has & TAR_HAS_NAME)
        memcpy(member->name, says->name, sizeof member->name);
    if (extension->has & TAR_HAS_LINK)
        memcpy(member->link, says->link, sizeof member->link);
    if (extension->has & TAR_HAS_SIZE)
        member->size = says->size;
    if (extension->has & TAR_HAS_UID)
        member->uid = says->uid;
    if (extension->has & TAR_HAS_GID)
        member->gid = says->gid;
    if (extension->has & TAR_HAS_MTIME)
        member->mtime = says->mtime;
}
