#include "launch/ids.h"

#include "launch/failure.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int ids_open(struct ids *ids, const char *path, struct failure *failure)
{
    ids->file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (ids->file < 0)
        return fail(failure, errno, "open %s", path);
    /* Launchers start far from each other, so that one does not walk over all that another holds. */
    ids->next = (uint32_t)getpid() * 977u % IDS_RANGES;
    return 0;
}

/* An open file description's lock, unlike a process's, also ends with the launcher only when no child that is being made holds it. */
static int lock_byte(int file, uint32_t byte, short kind)
{
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

    return fcntl(file, F_OFD_SETLK, &lock) == 0 ? 0 : -errno;
}

int ids_take(struct ids *ids, uint32_t *first, struct failure *failure)
{
    for (uint32_t tried = 0; tried < IDS_RANGES; tried++) {
        uint32_t range = ids->next;
        uint8_t bit = (uint8_t)(1u << range % 8);
        int error;

        ids->next = (range + 1) % IDS_RANGES;
        if (ids->taken[range / 8] & bit)
            continue;
        error = lock_byte(ids->file, range, F_WRLCK);
        if (error == -EAGAIN || error == -EACCES)
            continue;
        if (error)
            return fail(failure, -error, "lock a range of user ids");
        ids->taken[range / 8] |= bit;
        *first = IDS_FIRST + range * IDS_EACH;
        return 0;
    }
    return fail(failure, EUSERS, "find a free range of user ids");
}

void ids_give(struct ids *ids, uint32_t first)
{
    uint32_t range = (first - IDS_FIRST) / IDS_EACH;

    ids->taken[range / 8] &= (uint8_t) ~(1u << range % 8);
    lock_byte(ids->file, range, F_UNLCK);
}
