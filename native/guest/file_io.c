#include "guest/file_work.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

void file_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* True if the call is to be tried again: a non-blocking descriptor is waited for. */
static bool again(int fd, short events)
{
    struct pollfd poller = {.fd = fd, .events = events};

    if (errno == EINTR)
        return true;
    if (errno != EAGAIN)
        return false;
    return poll(&poller, 1, -1) >= 0 || errno == EINTR;
}

ssize_t file_take(int fd, void *bytes, size_t length)
{
    ssize_t got;

    do
        got = read(fd, bytes, length);
    while (got < 0 && again(fd, POLLIN));
    return got < 0 ? -errno : got;
}

int file_put(int fd, const void *bytes, size_t length)
{
    const char *at = bytes;

    while (length > 0) {
        ssize_t put_now = write(fd, at, length);

        if (put_now < 0) {
            if (!again(fd, POLLOUT))
                return -errno;
            continue;
        }
        at += put_now;
        length -= (size_t)put_now;
    }
    return 0;
}

int outlet_put(struct outlet *outlet, const void *bytes, size_t length)
{
    const char *at = bytes;

    while (length > 0) {
        size_t now = sizeof outlet->bytes - outlet->used;

        if (now == 0) {
            int error = outlet_flush(outlet);

            if (error)
                return error;
            continue;
        }
        if (now > length)
            now = length;
        memcpy(outlet->bytes + outlet->used, at, now);
        outlet->used += now;
        at += now;
        length -= now;
    }
    return 0;
}

int outlet_flush(struct outlet *outlet)
{
    size_t length = outlet->used;

    outlet->used = 0;
    return file_put(outlet->fd, outlet->bytes, length);
}
