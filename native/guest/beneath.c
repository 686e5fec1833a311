#include "guest/file_work.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int beneath_at(struct beneath *beneath, int root)
{
    struct stat here, top;

    if (fstat(root, &here) < 0 || stat("/", &top) < 0)
        return -errno;
    *beneath = (struct beneath){.root = root, .is_root = here.st_dev == top.st_dev && here.st_ino == top.st_ino};
    return 0;
}

/* For a kernel or a filter without openat2: part by part, through no link at all. `path` has no "..". */
static int walk(int root, const char *path, int flags)
{
    int at = fcntl(root, F_DUPFD_CLOEXEC, 0);

    while (at >= 0) {
        size_t length = strcspn(path, "/");
        bool last = path[length] == '\0';
        char part[NAME_MAX + 1];
        int below;

        if (length > NAME_MAX)
            return close(at), -ENAMETOOLONG;
        memcpy(part, path, length);
        part[length] = '\0';
        below = openat(at, part, (last ? flags : O_PATH | O_DIRECTORY) | O_NOFOLLOW | O_CLOEXEC);
        close(at);
        if (below < 0 || last)
            return below < 0 ? -errno : below;
        at = below;
        path += length + 1;
    }
    return -errno;
}

int beneath_open(const struct beneath *beneath, const char *path, int flags)
{
    struct open_how how = {
        .flags = (unsigned)flags | O_CLOEXEC,
        .resolve = (beneath->is_root ? RESOLVE_IN_ROOT : RESOLVE_BENEATH) | RESOLVE_NO_MAGICLINKS,
    };
    const char *name = path[0] == '\0' ? "." : path;

    /* EAGAIN: something was renamed meanwhile, and the kernel could not be sure. */
    for (int tries = 0; tries < 100; tries++) {
        long fd = syscall(SYS_openat2, beneath->root, name, &how, sizeof how);

        if (fd >= 0)
            return (int)fd;
        if (errno == ENOSYS || errno == EPERM)
            return walk(beneath->root, name, flags);
        if (errno != EAGAIN)
            break;
    }
    return -errno;
}

int beneath_make(const struct beneath *beneath, const char *path)
{
    CLEAN_FD int at = fcntl(beneath->root, F_DUPFD_CLOEXEC, 0);
    char prefix[PATH_MAX];
    int below = beneath_open(beneath, path, O_PATH | O_DIRECTORY);

    if (below != -ENOENT || at < 0)
        return at < 0 ? -errno : below;
    for (size_t from = 0, end; at >= 0; from = end + 1) {
        end = from + strcspn(path + from, "/");
        memcpy(prefix, path, end);
        prefix[end] = '\0';
        below = beneath_open(beneath, prefix, O_PATH | O_DIRECTORY);
        if (below == -ENOENT) {
            if (mkdirat(at, prefix + from, 0755) < 0 && errno != EEXIST)
                return -errno;
            below = beneath_open(beneath, prefix, O_PATH | O_DIRECTORY);
        }
        if (below < 0 || path[end] == '\0')
            return below;
        close(at);
        at = below;
    }
    return -EBADF;
}
