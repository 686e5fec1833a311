#include "launch/place.h"

#include "launch/failure.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const struct {
    const char *name;
    unsigned major, minor;
} NODES[] = {{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};

static const struct {
    const char *name, *target;
} LINKS[] = {
    {"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"},
};

static const char *const DIRECTORIES[] = {"pts", "shm"};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Only root may make device nodes that work; another shows the host's own. */
static int add_device(int tree, const char *tree_name, const char *name, dev_t number, bool rootless, struct failure *failure)
{
    char from[128], to[128];
    CLOSES int file = -1;

    if (!rootless) {
        if (mknodat(tree, name, S_IFCHR | 0666, number))
            return fail(failure, errno, "make the device %s", name);
        return 0;
    }
    file = openat(tree, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (file < 0)
        return fail(failure, errno, "make a place for the device %s", name);
    if (snprintf(from, sizeof from, "/dev/%s", name) >= (int)sizeof from || snprintf(to, sizeof to, "%s/%s", tree_name, name) >= (int)sizeof to)
        return fail(failure, ENAMETOOLONG, "name the device %s", name);
    if (mount(from, to, NULL, MS_BIND, NULL))
        return fail(failure, errno, "show the device /dev/%s", name);
    return 0;
}

static int add_host_device(int tree, const char *tree_name, const char *path, bool rootless, struct failure *failure)
{
    struct stat status;

    if (stat(path, &status))
        return fail(failure, errno, "find the device %s", path);
    if (!S_ISCHR(status.st_mode))
        return fail(failure, ENODEV, "show the device %s: it is no character device", path);
    return add_device(tree, tree_name, path + strlen("/dev/"), status.st_rdev, rootless, failure);
}

int place_devices(const char *name, const char *const *devices, size_t count, bool rootless, struct failure *failure)
{
    CLOSES int tree = -1;
    int error = 0;

    if (mkdir(name, 0755) || mount("tmpfs", name, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k"))
        return fail(failure, errno, "make a tree for devices");
    tree = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (tree < 0)
        return fail(failure, errno, "open the tree of devices");
    for (size_t index = 0; !error && index < COUNT(NODES); index++)
        error = add_device(tree, name, NODES[index].name, makedev(NODES[index].major, NODES[index].minor), rootless, failure);
    for (size_t index = 0; !error && index < COUNT(LINKS); index++)
        if (symlinkat(LINKS[index].target, tree, LINKS[index].name))
            error = fail(failure, errno, "link /dev/%s", LINKS[index].name);
    for (size_t index = 0; !error && index < COUNT(DIRECTORIES); index++)
        if (mkdirat(tree, DIRECTORIES[index], 0755))
            error = fail(failure, errno, "make /dev/%s", DIRECTORIES[index]);
    for (size_t index = 0; !error && index < count; index++)
        error = add_host_device(tree, name, devices[index], rootless, failure);
    return error;
}

/* A directory of our own: in a shared place somebody else may have made one with that name. */
static int own_directory(const char *path, struct failure *failure)
{
    struct stat status;

    if (mkdir(path, 0700) && errno != EEXIST)
        return fail(failure, errno, "make %s", path);
    if (lstat(path, &status))
        return fail(failure, errno, "find %s", path);
    if (!S_ISDIR(status.st_mode) || status.st_uid != geteuid())
        return fail(failure, EPERM, "use %s: it is no directory of this user's own", path);
    return 0;
}

/* A mount of its own, read-only: an ordinary user's sandboxes would own the file they all share. */
static int make_mask(struct failure *failure)
{
    struct mount_attr protect = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC};
    CLOSES int mask = open("mask", O_CREAT | O_WRONLY | O_CLOEXEC, 0444);

    if (mask < 0 || mount("mask", "mask", NULL, MS_BIND, NULL) || mount_setattr(AT_FDCWD, "mask", 0, &protect, sizeof protect))
        return fail(failure, errno, "make the mask");
    return 0;
}

int place_prepare(const char *directory, bool rootless, struct failure *failure)
{
    mode_t before = umask(0);
    int error = own_directory(directory, failure);

    if (error)
        return error;
    if (chdir(directory))
        return fail(failure, errno, "enter %s", directory);
    error = own_directory("launch", failure);
    if (error)
        return error;
    if (mount("tmpfs", "launch", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755,size=256k"))
        return fail(failure, errno, "mount a tmpfs");
    if (chdir("launch") || mkdir("new", 0755))
        return fail(failure, errno, "fill the launcher's tree");
    error = make_mask(failure);
    if (!error)
        error = place_devices("dev", NULL, 0, rootless, failure);
    umask(before);
    return error;
}
