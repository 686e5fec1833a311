/* The root: the image's disk, read-only, below; above it what is written, in memory or on a disk of its own. */
#include "boot/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define LOWER "/lower"
#define UPPER "/upper"
#define ROOT "/root"

enum { WAIT_US = 1000, WAITS = 5000, HARMLESS = MS_NOSUID | MS_NODEV | MS_NOEXEC };

/* A driver may find its device a moment after it was loaded. */
static int await(const char *path)
{
    for (int turn = 0; access(path, F_OK) < 0; turn++) {
        if (turn == WAITS)
            return boot_failed(errno, "find %s", path);
        usleep(WAIT_US);
    }
    return 0;
}

static int mount_at(const char *type, const char *source, const char *target, unsigned long flags, const char *data)
{
    if (mkdir(target, 0755) < 0 && errno != EEXIST)
        return boot_failed(errno, "make %s", target);
    if (mount(source, target, type, flags, data) < 0)
        return boot_failed(errno, "mount %s on %s", type, target);
    return 0;
}

static int mount_upper(const struct options *options)
{
    char data[128] = "mode=755";
    size_t used = strlen(data);
    int result;

    if (options->upper[0] != 0) {
        if ((result = await(options->upper)) < 0)
            return result;
        return mount_at("ext4", options->upper, UPPER, MS_NOATIME, NULL);
    }
    if (options->disk_bytes > 0)
        used += (size_t)snprintf(data + used, sizeof data - used, ",size=%llu", (unsigned long long)options->disk_bytes);
    if (options->inodes > 0)
        snprintf(data + used, sizeof data - used, ",nr_inodes=%llu", (unsigned long long)options->inodes);
    return mount_at("tmpfs", "upper", UPPER, 0, data);
}

static int make_directory(const char *path, mode_t mode)
{
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return boot_failed(errno, "make %s", path);
    return chmod(path, mode) < 0 ? boot_failed(errno, "make %s", path) : 0;
}

static int mount_layers(const struct options *options)
{
    /* An image's own directories can be renamed: nobody but this kernel reads the layer above. */
    static const char layers[] = "lowerdir=" LOWER ",upperdir=" UPPER "/files,workdir=" UPPER "/work,redirect_dir=on,index=off,xino=off";
    int result = await(options->disk);

    if (result < 0 || (result = mount_at("squashfs", options->disk, LOWER, MS_RDONLY, NULL)) < 0 || (result = mount_upper(options)) < 0)
        return result;
    if ((result = make_directory(UPPER "/files", 0755)) < 0 || (result = make_directory(UPPER "/work", 0755)) < 0)
        return result;
    return mount_at("overlay", "root", ROOT, 0, layers);
}

struct node {
    const char *path;
    unsigned major, minor;
};

struct link {
    const char *path, *target;
};

static int make_devices(void)
{
    static const struct node nodes[] = {
        {ROOT "/dev/null", 1, 3}, {ROOT "/dev/zero", 1, 5}, {ROOT "/dev/full", 1, 7}, {ROOT "/dev/random", 1, 8}, {ROOT "/dev/urandom", 1, 9}, {ROOT "/dev/tty", 5, 0},
    };
    static const struct link links[] = {
        {ROOT "/dev/ptmx", "pts/ptmx"},          {ROOT "/dev/fd", "/proc/self/fd"},       {ROOT "/dev/stdin", "/proc/self/fd/0"},
        {ROOT "/dev/stdout", "/proc/self/fd/1"}, {ROOT "/dev/stderr", "/proc/self/fd/2"},
    };

    for (size_t at = 0; at < sizeof nodes / sizeof *nodes; at++) {
        if (mknod(nodes[at].path, S_IFCHR | 0666, makedev(nodes[at].major, nodes[at].minor)) < 0 || chmod(nodes[at].path, 0666) < 0)
            return boot_failed(errno, "make %s", nodes[at].path);
    }
    for (size_t at = 0; at < sizeof links / sizeof *links; at++) {
        if (symlink(links[at].target, links[at].path) < 0)
            return boot_failed(errno, "make %s", links[at].path);
    }
    return 0;
}

static int mount_devices(void)
{
    int result;

    if ((result = mount_at("tmpfs", "dev", ROOT "/dev", MS_NOSUID | MS_NOEXEC, "mode=755,size=64k")) < 0 || (result = make_devices()) < 0)
        return result;
    if ((result = mount_at("devpts", "devpts", ROOT "/dev/pts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5")) < 0)
        return result;
    return mount_at("tmpfs", "shm", ROOT "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777");
}

/* An image's own first process has the whole kernel, as it would in a machine of its own; what the guest runs has no more than in a container. */
static int protect(const char *path)
{
    if (access(path, F_OK) < 0)
        return 0;
    if (mount(path, path, NULL, MS_BIND, NULL) < 0 || mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | HARMLESS, NULL) < 0)
        return boot_failed(errno, "protect %s", path);
    return 0;
}

static int mount_kernel(const struct options *options)
{
    static const char *const protected[] = {ROOT "/proc/sys", ROOT "/proc/sysrq-trigger", ROOT "/proc/irq", ROOT "/proc/bus", ROOT "/proc/fs", ROOT "/proc/acpi"};
    bool whole = options->init[0] != 0;
    int result = mount_at("proc", "proc", ROOT "/proc", HARMLESS, NULL);

    if (result == 0)
        result = mount_at("sysfs", "sys", ROOT "/sys", HARMLESS | (whole ? 0 : MS_RDONLY), NULL);
    for (size_t at = 0; !whole && result == 0 && at < sizeof protected / sizeof *protected; at++)
        result = protect(protected[at]);
    return result;
}

/* /tmp counts as what is written, under the same limit, but is not part of the layer: it is empty, whatever the image has in it. */
static int mount_tmp(void)
{
    int result = make_directory(UPPER "/tmp", 01777);

    if (result == 0 && mkdir(ROOT "/tmp", 01777) < 0 && errno != EEXIST)
        result = boot_failed(errno, "make /tmp");
    if (result == 0 && mount(UPPER "/tmp", ROOT "/tmp", NULL, MS_BIND, NULL) < 0)
        result = boot_failed(errno, "mount /tmp");
    return result;
}

static int switch_root(void)
{
    if (chdir(ROOT) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
        return boot_failed(errno, "switch to the root");
    return 0;
}

/* The kernel's own is the same in every copy of a machine. Ours is a file outside of the root, shown in its place. */
static int show_boot_id(int *boot_id)
{
    static const char file[] = "/boot_id", shown[] = ROOT "/proc/sys/kernel/random/boot_id";

    *boot_id = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0444);
    if (*boot_id < 0 || mount(file, shown, NULL, MS_BIND, NULL) < 0)
        return boot_failed(errno, "show a boot id");
    return mount(NULL, shown, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | HARMLESS, NULL) < 0 ? boot_failed(errno, "protect the boot id") : 0;
}

int root_make(const struct options *options, int *boot_id)
{
    bool whole = options->init[0] != 0;
    int result = mount_layers(options);

    if (result == 0)
        result = whole ? mount_at("devtmpfs", "dev", ROOT "/dev", MS_NOSUID | MS_NOEXEC, NULL) : mount_devices();
    if (result == 0)
        result = mount_kernel(options);
    if (result == 0 && !whole)
        result = show_boot_id(boot_id);
    if (result == 0)
        result = mount_tmp();
    if (result == 0)
        result = switch_root();
    return result;
}
