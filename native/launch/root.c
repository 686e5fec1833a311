#include "launch/root.h"

#include "launch/failure.h"
#include "launch/plan.h"
#include "launch/root_parts.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TERMINALS "64" /* open at once */

enum {
    SCRATCH_INODES = 5, /* the directories below, and the root */
    UPPER_INODES = 5,   /* where the upper is in here as well: its own, and what overlayfs makes in work/ */
};
/* Where a root that takes another's place is built: on the directory of a tree that is read-only and ours, which no link of the sandbox's can lead away from. */
#define PLACE_AGAIN "/dev/shm"

static int mount_quota(const struct plan *plan, bool has_upper, const char *place, struct failure *failure)
{
    uint64_t inodes = plan->inodes + SCRATCH_INODES + (has_upper ? 0 : plan->lower_count + UPPER_INODES);
    char options[128] = "mode=755";
    size_t used = strlen(options);

    if (plan->disk_bytes > 0)
        used += (size_t)snprintf(options + used, sizeof options - used, ",size=%" PRIu64, plan->disk_bytes);
    if (plan->inodes > 0)
        snprintf(options + used, sizeof options - used, ",nr_inodes=%" PRIu64, inodes);
    if (mount("tmpfs", place, "tmpfs", MS_NODEV, options) || chdir(place))
        return fail(failure, errno, "mount a tmpfs with %s", options);
    return 0;
}

/* Away from the root that was, into the directory where we are: until its overlay is gone, its upper can be nobody's lower. */
static int leave_old_root(struct failure *failure)
{
    if (syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
        return fail(failure, errno, "leave the old root");
    return 0;
}

static int enter_scratch(struct root *root, struct failure *failure)
{
    if (!root->keeps_scratch)
        return mount_quota(root->plan, root->has_upper, root->again ? PLACE_AGAIN : "new", failure);
    if (move_mount(root->scratch, "", AT_FDCWD, PLACE_AGAIN, MOVE_MOUNT_F_EMPTY_PATH) || chdir(PLACE_AGAIN))
        return fail(failure, errno, "attach the sandbox's scratch");
    return leave_old_root(failure);
}

int root_make_directory(const char *path, mode_t mode, struct failure *failure)
{
    if (mkdir(path, mode) && errno != EEXIST)
        return fail(failure, errno, "make %s", path);
    return 0;
}

/* Attached, where the sandbox sees nothing of it, and named by number: before Linux 6.13 overlayfs took no descriptors, and paths would not fit into a page of options. */
static int attach_lowers(const struct root *root, char *list, size_t size, struct failure *failure)
{
    size_t used = 0;

    for (size_t index = 0; index < root->lower_count; index++) {
        char name[32];
        int error;

        snprintf(name, sizeof name, "top/%zu", index);
        error = root_make_directory(name, 0755, failure);
        if (error)
            return error;
        if (move_mount(root->clones[index], "", AT_FDCWD, name, MOVE_MOUNT_F_EMPTY_PATH))
            return fail(failure, errno, "attach lower %zu", index);
        used += (size_t)snprintf(list + used, size - used, "%s%s", index ? ":" : "", name);
    }
    return 0;
}

/* The upper's own tmpfs, or where the launcher has none a directory of this one. */
static int attach_upper(const struct root *root, struct failure *failure)
{
    int error = root_make_directory("top", 0755, failure);

    if (error)
        return error;
    if (!root->has_upper) {
        error = root_make_directory("top/upper", 0755, failure);
        return error ? error : root_make_directory("top/work", 0755, failure);
    }
    if (move_mount(root->clones[root->lower_count + root->plan->bind_count + 1], "", AT_FDCWD, "top", MOVE_MOUNT_F_EMPTY_PATH))
        return fail(failure, errno, "attach the upper");
    return 0;
}

/* Beside the upper, not in it: what lies there is in no layer. */
static int open_scratch(struct root *root, struct failure *failure)
{
    int error = root_make_directory("shm", 01777, failure);

    if (!error)
        error = root_make_directory("tmp", 01777, failure);
    if (error)
        return error;
    if (root->again && !root->keeps_scratch)
        root->left_scratch = root->scratch;
    else
        close_descriptor(&root->scratch);
    root->scratch = open_tree(AT_FDCWD, ".", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    root->shared = open_tree(AT_FDCWD, "shm", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    root->temporary = open_tree(AT_FDCWD, "tmp", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (root->scratch < 0 || root->shared < 0 || root->temporary < 0)
        return fail(failure, errno, "open the sandbox's scratch");
    return 0;
}

static int mount_overlay(const struct root *root, struct failure *failure)
{
    char lowers[(PLAN_LOWERS + 1) * 8], options[sizeof lowers + 64];
    int error = attach_lowers(root, lowers, sizeof lowers, failure);

    if (!error)
        error = root_make_directory("root", 0755, failure);
    if (error)
        return error;
    snprintf(options, sizeof options, "userxattr,lowerdir=%s,upperdir=top/upper,workdir=top/work", lowers);
    if (mount("overlay", "root", "overlay", MS_NODEV, options))
        return fail(failure, errno, "mount the overlay over %zu lowers", root->lower_count);
    return 0;
}

int root_build(struct root *root, struct failure *failure)
{
    int error = root_open_kernel(root, failure);

    root->left_root = root->left_scratch = -1;
    if (!error && root->again && !root->keeps_scratch && (root->left_root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
        error = fail(failure, errno, "open the old root");
    if (!error)
        error = enter_scratch(root, failure);
    if (!error)
        error = attach_upper(root, failure);
    if (!error)
        error = open_scratch(root, failure);
    return error ? error : mount_overlay(root, failure);
}

/* The old root lies on top of the new one until it is taken away, and `/..` leads into it: no path of the image's may be followed before that. */
int root_enter(struct failure *failure)
{
    if (chdir("root"))
        return fail(failure, errno, "enter the root");
    return leave_old_root(failure);
}

enum clears { CLEARS_NOTHING, CLEARS_FILES, CLEARS_LINKS };

/* Takes away what is no directory, or leads to none; or every link. */
static void clear(const char *path, enum clears clears)
{
    struct stat status;

    if (clears == CLEARS_LINKS ? !lstat(path, &status) && S_ISLNK(status.st_mode) : stat(path, &status) || !S_ISDIR(status.st_mode))
        unlink(path);
}

static int make_on_the_way(const char *path, enum clears clears, struct failure *failure)
{
    char part[4096];
    size_t length = strlen(path);

    if (length >= sizeof part)
        return fail(failure, ENAMETOOLONG, "make %s", path);
    memcpy(part, path, length + 1);
    for (size_t end = 1; end <= length; end++) {
        int error;

        if (path[end] != '/' && path[end] != '\0')
            continue;
        part[end] = '\0';
        if (clears != CLEARS_NOTHING)
            clear(part, clears);
        error = root_make_directory(part, 0755, failure);
        if (error)
            return error;
        part[end] = path[end];
    }
    return 0;
}

/* Every directory that is missing on the way, and `path` itself. With `clears`, whatever is there and is none makes room; and links, if they lead to where none can be made. */
static int make_directories(const char *path, bool clears, struct failure *failure)
{
    int error = make_on_the_way(path, clears ? CLEARS_FILES : CLEARS_NOTHING, failure);

    if (!error || !clears)
        return error;
    *failure = (struct failure){0};
    return make_on_the_way(path, CLEARS_LINKS, failure);
}

static int make_target(int source, const char *path, bool clears, struct failure *failure)
{
    char parent[4096];
    struct stat status;
    const char *name = strrchr(path, '/');
    int error = 0, file;

    if (fstat(source, &status))
        return fail(failure, errno, "look at what is shown as %s", path);
    if (S_ISDIR(status.st_mode))
        return make_directories(path, clears, failure);
    if ((size_t)(name - path) >= sizeof parent)
        return fail(failure, ENAMETOOLONG, "make %s", path);
    memcpy(parent, path, (size_t)(name - path));
    parent[name - path] = '\0';
    if (parent[0] != '\0')
        error = make_directories(parent, clears, failure);
    if (error)
        return error;
    if (clears && rmdir(path) && errno == ENOTDIR)
        unlink(path);
    file = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0)
        return fail(failure, errno, "make %s", path);
    close(file);
    return 0;
}

int root_attach(int source, const char *path, struct failure *failure)
{
    if (move_mount(source, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_SYMLINKS))
        return fail(failure, errno, "show %s", path);
    return 0;
}

int root_devices(const struct root *root, struct failure *failure)
{
    /* The host has some thousand terminals in all: a sandbox may not take them from the others. */
    const char *terminals =
        root->users > 1 ? "newinstance,ptmxmode=0666,max=" TERMINALS ",mode=0620,gid=5" : "newinstance,ptmxmode=0666,max=" TERMINALS ",mode=0620";
    int error = root_make_directory("/dev", 0755, failure);

    if (!error)
        error = root_attach(root->clones[root->lower_count + root->plan->bind_count], "/dev", failure);
    if (error)
        return error;
    if (mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, terminals))
        return fail(failure, errno, "mount /dev/pts");
    return root_attach(root->shared, "/dev/shm", failure);
}

int root_binds(const struct root *root, struct failure *failure)
{
    int error = 0;

    for (size_t index = 0; !error && index < root->plan->bind_count; index++) {
        int source = root->clones[root->lower_count + index];
        const char *target = root->plan->binds[index].target;

        if (root->over_layers)
            clear(target, CLEARS_LINKS); /* it may lead to /, or to what the kernel's are mounted on */
        error = root_attach(source, target, failure);
        /* Who lived in the layers may have put anything there: that must not decide whether there is a sandbox. */
        if (error != -ENOENT && !(root->over_layers && error))
            continue;
        *failure = (struct failure){0}; /* it is not there yet: that is none */
        error = make_target(source, target, root->over_layers, failure);
        if (!error)
            error = root_attach(source, target, failure);
    }
    return error;
}

int root_scratch(const struct root *root, struct failure *failure)
{
    int error = root_make_directory("/tmp", 01777, failure);

    return error ? error : root_attach(root->temporary, "/tmp", failure);
}

int root_directories(const struct root *root, struct failure *failure)
{
    int error = 0;

    for (size_t index = 0; !error && index < root->plan->directory_count; index++)
        error = make_directories(root->plan->directories[index], root->over_layers, failure);
    return error;
}

void root_close(struct root *root)
{
    const int built_of[] = {root->mask, root->proc, root->sys, root->shared, root->temporary};

    for (size_t index = root->again ? 1 : 0; index < COUNT(built_of); index++)
        close_descriptor(&built_of[index]);
}
