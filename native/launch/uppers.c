#include "launch/uppers.h"

#include "launch/failure.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OWN_INODES = 8 }; /* the root, the directories below, and those overlayfs makes in work/, for a moment too */

static int set_number(int context, const char *name, uint64_t number)
{
    char text[24];

    snprintf(text, sizeof text, "%" PRIu64, number);
    return fsconfig(context, FSCONFIG_SET_STRING, name, text, 0) ? -errno : 0;
}

/* -errno. */
static int make_tmpfs(uint64_t bytes, uint64_t inodes)
{
    CLOSES int context = fsopen("tmpfs", FSOPEN_CLOEXEC);
    int mounted = -1, error = context < 0 ? -errno : 0;

    if (!error && bytes > 0)
        error = set_number(context, "size", bytes);
    if (!error && inodes > 0)
        error = set_number(context, "nr_inodes", inodes);
    if (!error && (fsconfig(context, FSCONFIG_SET_STRING, "mode", "755", 0) || fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0)))
        error = -errno;
    if (!error)
        mounted = fsmount(context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NODEV);
    return error ? error : mounted < 0 ? -errno : mounted;
}

bool uppers_work(void)
{
    CLOSES int upper = make_tmpfs(0, 0);
    CLOSES int copy = upper < 0 ? -1 : open_tree(upper, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);

    return copy >= 0;
}

int upper_make(uint64_t bytes, uint64_t inodes, size_t lowers, struct failure *failure)
{
    mode_t before;
    int upper = make_tmpfs(bytes, inodes > 0 ? inodes + lowers + OWN_INODES : 0), error;

    if (upper < 0)
        return fail(failure, -upper, "make a tmpfs of %" PRIu64 " bytes and %" PRIu64 " inodes", bytes, inodes);
    before = umask(0);
    error = mkdirat(upper, "upper", 0755) || mkdirat(upper, "work", 0755) ? errno : 0;
    umask(before);
    if (!error)
        return upper;
    close(upper);
    return fail(failure, error, "fill the sandbox's tmpfs");
}

bool upper_is_empty(int upper)
{
    CLOSES int directory = upper_open(upper);
    char entries[512];
    long length = directory < 0 ? -1 : syscall(SYS_getdents64, directory, entries, sizeof entries);
    size_t count = 0;

    for (long at = 0; at < length; at += ((const struct dirent64 *)(entries + at))->d_reclen)
        count++;
    return length >= 0 && count <= 2; /* itself and its parent */
}

uint64_t upper_usage(int upper, uint64_t *bytes, uint64_t *inodes)
{
    struct statvfs tree;

    if (fstatvfs(upper, &tree))
        return 0;
    if (*bytes)
        *bytes = tree.f_bavail ? tree.f_bavail * tree.f_frsize : 1;
    if (*inodes)
        *inodes = tree.f_favail ? tree.f_favail : 1;
    return (tree.f_blocks - tree.f_bfree) * tree.f_frsize;
}

int upper_seal(int upper)
{
    CLOSES int context = fspick(upper, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH);

    if (context < 0 || fsconfig(context, FSCONFIG_SET_FLAG, "ro", NULL, 0) || fsconfig(context, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0))
        return -errno;
    return 0;
}

static int show(int upper, const char *path, uint64_t attributes, int user_namespace, struct failure *failure)
{
    struct mount_attr set = {.attr_set = attributes};
    int copy = open_tree(upper, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);

    if (copy < 0)
        return fail(failure, errno, "copy the mount of an upper");
    if (user_namespace >= 0) {
        set.attr_set |= MOUNT_ATTR_IDMAP;
        set.userns_fd = (uint64_t)user_namespace;
    }
    if (set.attr_set && mount_setattr(copy, "", AT_EMPTY_PATH, &set, sizeof set)) {
        int error = errno;

        close(copy);
        return fail(failure, error, "map the owners of an upper");
    }
    return copy;
}

int upper_show(int upper, int user_namespace, struct failure *failure)
{
    return show(upper, "", 0, user_namespace, failure);
}

int upper_show_sealed(int upper, int user_namespace, struct failure *failure)
{
    return show(upper, "upper", MOUNT_ATTR_RDONLY, user_namespace, failure);
}

int upper_open(int upper)
{
    int directory = openat(upper, "upper", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    return directory < 0 ? -errno : directory;
}

int layers_add(struct layer **layers, uint32_t id, int upper)
{
    struct layer *layer = malloc(sizeof *layer);

    if (!layer)
        return -ENOMEM;
    *layer = (struct layer){.next = *layers, .id = id, .upper = upper};
    *layers = layer;
    return 0;
}

int layers_find(const struct layer *layers, uint32_t id)
{
    while (layers && layers->id != id)
        layers = layers->next;
    return layers ? layers->upper : -1;
}

void layers_drop(struct layer **layers, uint32_t id)
{
    while (*layers && (*layers)->id != id)
        layers = &(*layers)->next;
    if (*layers) {
        struct layer *layer = *layers;

        *layers = layer->next;
        close(layer->upper);
        free(layer);
    }
}
