#include "launch/home.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int write_file(int directory, const char *name, const char *text)
{
    CLOSES int file = openat(directory, name, O_WRONLY | O_CLOEXEC);

    return file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -errno;
}

/* One that is there already is of an attempt that failed further on. */
static int open_made(int below, const char *path)
{
    if (mkdirat(below, path, 0755) && errno != EEXIST)
        return -errno;
    below = openat(below, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return below < 0 ? -errno : below;
}

/* A namespace's root is the group of who makes it, and a group that gives controllers away can have no members: so we are its member for as long as that takes. */
static int make_root(int home)
{
    int error = write_file(home, "cgroup.procs", "0");

    return error || !unshare(CLONE_NEWCGROUP) ? error : -errno;
}

int home_enter(const char *path, const char *controllers, struct failure *failure)
{
    CLOSES int home = open_made(AT_FDCWD, path);
    CLOSES int guests = home < 0 ? home : open_made(home, "guests");
    int error = guests < 0 ? guests : make_root(home);

    if (!error)
        error = write_file(guests, "cgroup.procs", "0");
    if (!error && controllers[0] != '\0')
        error = write_file(home, "cgroup.subtree_control", controllers);
    /* A guest has its sandbox's own first id. It is no way in: for that the group one comes from and the one one goes to must both be in here, and that one's cgroup.procs one's own. */
    if (!error && fchmodat(home, "cgroup.procs", 0666, 0))
        error = -errno;
    return error ? fail(failure, -error, "make the launcher's cgroup %s", path) : 0;
}
