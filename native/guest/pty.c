#include "guest/pty.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

void pty_resize(int fd, uint32_t rows, uint32_t columns)
{
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};

    ioctl(fd, TIOCSWINSZ, &size);
}

/* What stands at that path is the sandbox's doing: it must be the device, and opening it must not wait. */
static int open_multiplexer(const char *path)
{
    struct stat seen;
    int fd = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    if (fstat(fd, &seen) == 0 && S_ISCHR(seen.st_mode) && seen.st_rdev == makedev(5, 2))
        return fd;
    close(fd);
    return -ENODEV;
}

int pty_open(uint32_t rows, uint32_t columns, int *ours, int *theirs)
{
    int unlock = 0, fd = open_multiplexer("/dev/pts/ptmx"), error;

    if (fd < 0 && (fd = open_multiplexer("/dev/ptmx")) < 0)
        return fd;
    *ours = fd;
    if (ioctl(fd, TIOCSPTLCK, &unlock) < 0 || (*theirs = ioctl(fd, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0) {
        error = errno;
        close(fd);
        return -error;
    }
    pty_resize(fd, rows, columns);
    return 0;
}
