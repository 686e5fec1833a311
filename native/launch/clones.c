#include "launch/clones.h"

#include "launch/failure.h"
#include "launch/place.h"
#include "launch/plan.h"
#include "launch/uppers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static int set_attributes(int mount, uint64_t attributes, int user_namespace, unsigned recursive)
{
    struct mount_attr set = {.attr_set = attributes};

    if (user_namespace >= 0) {
        set.attr_set |= MOUNT_ATTR_IDMAP;
        set.userns_fd = (uint64_t)user_namespace;
    }
    return mount_setattr(mount, "", AT_EMPTY_PATH | recursive, &set, sizeof set) ? -errno : 0;
}

/* What is mounted below `path` is not in it: nothing is shown that was not named. */
static int clone_path(const char *path, uint64_t attributes, int user_namespace, int *descriptor, struct failure *failure)
{
    int error;

    *descriptor = open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (*descriptor < 0)
        return fail(failure, errno, "open %s%s", path, errno == EINVAL ? ": other file systems are mounted below it" : "");
    error = set_attributes(*descriptor, attributes, user_namespace, 0);
    if (error)
        return fail(failure, -error, "map the owners of %s%s", path, error == -EINVAL ? ": its file system cannot be idmapped" : "");
    return 0;
}

/* Read-only: it is the same tree for every sandbox. Before Linux 6.3 a tmpfs could not be idmapped; then /dev's owner is nobody, and as usable. */
static int clone_devices(const char *name, int user_namespace, int *descriptor, struct failure *failure)
{
    const uint64_t attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC;
    int error;

    *descriptor = open_tree(AT_FDCWD, name, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    if (*descriptor < 0)
        return fail(failure, errno, "open the tree of devices");
    error = set_attributes(*descriptor, attributes, user_namespace, AT_RECURSIVE);
    if (error == -EINVAL && user_namespace >= 0)
        error = set_attributes(*descriptor, attributes, -1, AT_RECURSIVE);
    return error ? fail(failure, -error, "protect the tree of devices") : 0;
}

static int clone_own_devices(const struct plan *plan, int user_namespace, int *descriptor, struct failure *failure)
{
    static const char NAME[] = "own";
    int error = place_devices(NAME, plan->devices, plan->device_count, user_namespace < 0, failure);

    if (!error)
        error = clone_devices(NAME, user_namespace, descriptor, failure);
    umount2(NAME, MNT_DETACH);
    rmdir(NAME);
    return error;
}

static int clone_layer(const struct clones *clones, uint32_t id, int *descriptor, struct failure *failure)
{
    int upper = layers_find(clones->layers, id);

    *descriptor = upper < 0 ? fail(failure, ENOENT, "find layer %u: it was dropped", id) : upper_show_sealed(upper, clones->user_namespace, failure);
    return *descriptor < 0 ? *descriptor : 0;
}

static int clone_lower(const struct clones *clones, const struct plan_lower *lower, int *descriptor, struct failure *failure)
{
    if (!lower->path)
        return clone_layer(clones, lower->layer, descriptor, failure);
    return clone_path(lower->path, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV, clones->user_namespace, descriptor, failure);
}

static int clone_bind(const struct clones *clones, const struct plan_bind *bind, int *descriptor, struct failure *failure)
{
    const uint64_t attributes = MOUNT_ATTR_NODEV | (bind->read_only ? MOUNT_ATTR_RDONLY : 0) | (clones->plan->privileges ? 0 : MOUNT_ATTR_NOSUID);

    return clone_path(bind->source, attributes, clones->user_namespace, descriptor, failure);
}

int clones_open(const struct clones *clones, int *descriptors, size_t *count, struct failure *failure)
{
    const struct plan *plan = clones->plan;
    int error = 0;

    if (clones->sealed >= 0) {
        descriptors[(*count)++] = error = upper_show_sealed(clones->sealed, clones->user_namespace, failure);
        error = error < 0 ? error : 0;
    }
    for (size_t index = 0; !error && index < plan->lower_count; index++)
        error = clone_lower(clones, &plan->lowers[index], &descriptors[(*count)++], failure);
    for (size_t index = 0; !error && index < plan->bind_count; index++)
        error = clone_bind(clones, &plan->binds[index], &descriptors[(*count)++], failure);
    if (!error)
        error = plan->device_count > 0 ? clone_own_devices(plan, clones->user_namespace, &descriptors[(*count)++], failure)
                                       : clone_devices("dev", clones->user_namespace, &descriptors[(*count)++], failure);
    if (!error && clones->upper >= 0) {
        descriptors[(*count)++] = error = upper_show(clones->upper, clones->user_namespace, failure);
        error = error < 0 ? error : 0;
    }
    return error;
}
