#include "launch/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* On v1 the limits of a controller lie in its own tree, and processes join by `tasks`: one thread, without the lock a whole process needs. */
static int open_group(struct cgroup *group, struct failure *failure)
{
    struct statfs tree;

    group->directory = open(group->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (group->directory < 0 || fstatfs(group->directory, &tree) < 0)
        return fail(failure, errno, "open cgroup %s", group->path);
    if (tree.f_type == CGROUP2_SUPER_MAGIC)
        return 0;
    if (tree.f_type != CGROUP_SUPER_MAGIC)
        return fail(failure, ENOTSUP, "open cgroup %s", group->path);
    group->tasks = openat(group->directory, "tasks", O_WRONLY | O_CLOEXEC);
    return group->tasks < 0 ? fail(failure, errno, "open tasks of cgroup %s", group->path) : 0;
}

/* To make a process in a v2 group one must be able to move one there. v1's descriptor was opened by who may. */
static int hand_over(const struct cgroup *group, uid_t owner, struct failure *failure)
{
    if (group->tasks >= 0 || owner == 0 || fchownat(group->directory, "cgroup.procs", owner, (gid_t)-1, 0) == 0)
        return 0;
    return fail(failure, errno, "give cgroup %s to the sandbox", group->path);
}

static int make_group(struct cgroups *groups, const char *path, struct failure *failure)
{
    struct cgroup *group = &groups->list[groups->count];

    *group = (struct cgroup){.path = strdup(path), .directory = -1, .tasks = -1};
    if (!group->path)
        return fail(failure, ENOMEM, "make cgroup %s", path);
    if (mkdir(path, 0755) < 0) {
        int error = errno;

        free(group->path); /* one that was there before is not ours, and stays */
        return fail(failure, error, "make cgroup %s", path);
    }
    groups->count++;
    return open_group(group, failure);
}

static int write_limit(const struct cgroup *group, const struct plan_write *limit, struct failure *failure)
{
    size_t length = strlen(limit->value);
    CLOSES int file = -1;

    if (strchr(limit->file, '/'))
        return fail(failure, EINVAL, "limit cgroup by %s", limit->file);
    file = openat(group->directory, limit->file, O_WRONLY | O_CLOEXEC);
    if (file < 0 || write(file, limit->value, length) != (ssize_t)length)
        return fail(failure, errno, "limit cgroup by %s = %s", limit->file, limit->value);
    return 0;
}

static int make_all(struct cgroups *groups, const struct plan *plan, uid_t owner, struct failure *failure)
{
    const struct plan_write *limit = plan->writes;
    int error;

    for (size_t i = 0; i < plan->cgroup_count; i++) {
        error = make_group(groups, plan->cgroups[i].path, failure);
        for (size_t writes = plan->cgroups[i].writes; error == 0 && writes > 0; writes--)
            error = write_limit(&groups->list[i], limit++, failure);
        if (error == 0)
            error = hand_over(&groups->list[i], owner, failure);
        if (error < 0)
            return error;
    }
    return 0;
}

int cgroups_make(struct cgroups *groups, const struct plan *plan, uid_t owner, struct failure *failure)
{
    int error;

    *groups = (struct cgroups){0};
    error = make_all(groups, plan, owner, failure);
    if (error < 0) {
        cgroups_close(groups);
        cgroups_remove(groups);
    }
    return error;
}

int cgroups_unified(const struct cgroups *groups)
{
    for (unsigned i = 0; i < groups->count; i++)
        if (groups->list[i].tasks < 0)
            return groups->list[i].directory;
    return -1;
}

static bool limits_memory(const struct cgroup *group)
{
    return faccessat(group->directory, "memory.limit_in_bytes", F_OK, 0) == 0;
}

int cgroups_join(const struct cgroups *groups)
{
    for (unsigned i = 0; i < groups->count; i++) {
        const struct cgroup *group = &groups->list[i];

        if (group->tasks >= 0 && !limits_memory(group) && write(group->tasks, "0", 1) < 0)
            return -errno;
    }
    return 0;
}

int cgroups_memory_tasks(const struct cgroups *groups)
{
    for (unsigned i = 0; i < groups->count; i++)
        if (groups->list[i].tasks >= 0 && limits_memory(&groups->list[i]))
            return fcntl(groups->list[i].tasks, F_DUPFD_CLOEXEC, 0);
    return -1;
}

/* The root's and other controllers' directories do not have the file. */
static int open_events(const struct cgroups *groups, const char *first, const char *second)
{
    for (unsigned i = 0; i < groups->count; i++) {
        int file = openat(groups->list[i].directory, first, O_RDONLY | O_CLOEXEC);

        if (file < 0 && second)
            file = openat(groups->list[i].directory, second, O_RDONLY | O_CLOEXEC);
        if (file >= 0)
            return file;
    }
    return -1;
}

int cgroups_memory_events(const struct cgroups *groups)
{
    return open_events(groups, "memory.events", "memory.oom_control");
}

int cgroups_pids_events(const struct cgroups *groups)
{
    return open_events(groups, "pids.events", NULL);
}

void cgroups_close(struct cgroups *groups)
{
    for (unsigned i = 0; i < groups->count; i++) {
        struct cgroup *group = &groups->list[i];

        if (group->directory >= 0)
            close(group->directory);
        if (group->tasks >= 0)
            close(group->tasks);
        group->directory = group->tasks = -1;
    }
}

int cgroups_remove(struct cgroups *groups)
{
    while (groups->count > 0) {
        struct cgroup *group = &groups->list[groups->count - 1];

        /* Somebody else's gc may have been faster. */
        if (rmdir(group->path) < 0 && errno != ENOENT)
            return -errno;
        free(group->path);
        groups->count--;
    }
    return 0;
}
