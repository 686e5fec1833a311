/* /proc and /sys: mounted once, protected, and copied into the roots that follow. */
#include "launch/failure.h"
#include "launch/root.h"
#include "launch/root_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

/* What of /proc is readable, or writable with an effect, in spite of belonging to the host's root. What only that root may open needs no mask where nobody
 * here is that. */
static const char *const MASKED[] = {"/proc/keys", "/proc/latency_stats", "/proc/interrupts"};
static const char *const MASKED_FROM_HOST_ROOT[] = {
    "/proc/kcore", "/proc/timer_list", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup", "/proc/vmallocinfo", "/proc/slabinfo",
};

/* A sandbox may not raise the limits of its own IPC and process namespaces either. */
static const char *const READ_ONLY[] = {"/proc/sys"};
static const char *const READ_ONLY_FOR_HOST_ROOT[] = {"/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi"};

static int open_kernel_mount(const char *type, unsigned attributes)
{
    CLOSES int context = fsopen(type, FSOPEN_CLOEXEC);
    int mounted;

    if (context < 0 || fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
        return -errno;
    mounted = fsmount(context, FSMOUNT_CLOEXEC, attributes);
    return mounted < 0 ? -errno : mounted;
}

/* Those of the root that was, with what protects them. They are mounted on, so that the sandbox could not put anything in their places. */
static int copy_kernel(struct root *root, struct failure *failure)
{
    const unsigned all = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE;

    root->proc = open_tree(AT_FDCWD, "/proc", all);
    if (root->proc < 0)
        return fail(failure, errno, "open /proc");
    if (root->sys >= 0 && (root->sys = open_tree(AT_FDCWD, "/sys", all)) < 0)
        return fail(failure, errno, "open /sys");
    return 0;
}

int root_open_kernel(struct root *root, struct failure *failure)
{
    const unsigned harmless = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;

    if (root->again)
        return copy_kernel(root, failure);
    root->mask = open_tree(AT_FDCWD, "mask", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (root->mask < 0)
        return fail(failure, errno, "open the mask");
    root->proc = open_kernel_mount("proc", harmless);
    if (root->proc < 0)
        return fail(failure, -root->proc, "mount /proc%s", root->proc == -EPERM ? ": parts of this machine's /proc are hidden" : "");
    /* Where it is refused, because parts of this machine's are hidden, there is none: nobody's isolation depends on it. */
    root->sys = open_kernel_mount("sysfs", harmless | MOUNT_ATTR_RDONLY);
    if (root->sys < 0 && root->sys != -EPERM)
        return fail(failure, -root->sys, "mount /sys");
    return 0;
}

/* The kernel copies only what is attached: so first the mask itself, then copies of it. */
static int show_mask(struct root *root, const char *path, struct failure *failure)
{
    if (root->masked) {
        CLOSES int copy = open_tree(root->mask, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);

        if (copy < 0)
            return fail(failure, errno, "mask %s", path);
        return root_attach(copy, path, failure);
    }
    root->masked = true;
    return root_attach(root->mask, path, failure);
}

static int make_read_only(const char *path, struct failure *failure)
{
    struct mount_attr protect = {.attr_set = MOUNT_ATTR_RDONLY};
    CLOSES int copy = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);

    if (copy < 0 || mount_setattr(copy, "", AT_EMPTY_PATH, &protect, sizeof protect))
        return fail(failure, errno, "protect %s", path);
    return root_attach(copy, path, failure);
}

static int protect(struct root *root, const char *const *paths, size_t count, bool mask, struct failure *failure)
{
    int error = 0;

    for (size_t index = 0; !error && index < count; index++)
        if (access(paths[index], F_OK) == 0)
            error = mask ? show_mask(root, paths[index], failure) : make_read_only(paths[index], failure);
    return error;
}

static int protect_kernel(struct root *root, struct failure *failure)
{
    int error = protect(root, MASKED, COUNT(MASKED), true, failure);

    if (!error)
        error = protect(root, READ_ONLY, COUNT(READ_ONLY), false, failure);
    if (!error && root->host_root)
        error = protect(root, MASKED_FROM_HOST_ROOT, COUNT(MASKED_FROM_HOST_ROOT), true, failure);
    if (!error && root->host_root)
        error = protect(root, READ_ONLY_FOR_HOST_ROOT, COUNT(READ_ONLY_FOR_HOST_ROOT), false, failure);
    return error;
}

int root_kernel(struct root *root, struct failure *failure)
{
    int error = root_make_directory("/proc", 0555, failure);

    if (error)
        return error;
    error = root_attach(root->proc, "/proc", failure);
    if (!error && !root->again)
        error = protect_kernel(root, failure);
    if (!error)
        error = root_make_directory("/sys", 0555, failure);
    if (!error && root->sys >= 0)
        error = root_attach(root->sys, "/sys", failure);
    return error;
}
