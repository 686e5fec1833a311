#include "launch/cgroup.h"

#include "common/fields.h"
#include "launch/request.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static bool is_text(const struct field *field)
{
    return field->length > 0 && memchr(field->bytes, 0, field->length) == NULL;
}

/* On v1 the limits of a controller lie in its own tree, and processes join by `tasks`: one thread, without the lock a whole process needs. */
static int open_group(struct cgroup *group, const char **step)
{
    struct statfs tree;

    *step = "open cgroup";
    group->directory = open(group->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (group->directory < 0 || fstatfs(group->directory, &tree) < 0)
        return -errno;
    if (tree.f_type == CGROUP2_SUPER_MAGIC)
        return 0;
    if (tree.f_type != CGROUP_SUPER_MAGIC)
        return -ENOTSUP;
    group->tasks = openat(group->directory, "tasks", O_WRONLY | O_CLOEXEC);
    return group->tasks < 0 ? -errno : 0;
}

static int make_group(struct cgroups *groups, const struct field *field, const char **step)
{
    struct cgroup *group = &groups->list[groups->count];
    int error;

    *step = "make cgroup";
    if (!is_text(field) || field->bytes[0] != '/')
        return -EINVAL;
    if (groups->count == CGROUPS_MAX)
        return -E2BIG;
    *group = (struct cgroup){.path = strndup(field->bytes, field->length), .directory = -1, .tasks = -1};
    if (!group->path)
        return -ENOMEM;
    if (mkdir(group->path, 0755) < 0) {
        error = -errno;
        free(group->path);
        return error; /* one that was there before is not ours, and stays */
    }
    groups->count++;
    return open_group(group, step);
}

/* "file\0value", into the group made last. */
static int write_limit(const struct cgroups *groups, const struct field *field, const char **step)
{
    const char *end = memchr(field->bytes, 0, field->length);
    size_t length;
    ssize_t written;
    int file, error;

    *step = "limit cgroup";
    if (groups->count == 0 || !end || end == field->bytes || memchr(field->bytes, '/', (size_t)(end - field->bytes)))
        return -EINVAL;
    length = field->length - (size_t)(end - field->bytes) - 1;
    file = openat(groups->list[groups->count - 1].directory, field->bytes, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return -errno;
    written = write(file, end + 1, length);
    error = written < 0 ? -errno : (size_t)written == length ? 0 : -EIO;
    close(file);
    return error;
}

int cgroups_make(struct cgroups *groups, const void *payload, size_t length, const char **step)
{
    struct fields fields = fields_of(payload, length);
    struct field field;
    int error;

    *groups = (struct cgroups){0};
    *step = "read request";
    while ((error = fields_next(&fields, &field)) > 0) {
        if (field.tag == LAUNCH_CGROUP)
            error = make_group(groups, &field, step);
        else if (field.tag == LAUNCH_WRITE)
            error = write_limit(groups, &field, step);
        if (error < 0)
            break;
    }
    if (error < 0) {
        cgroups_close(groups);
        cgroups_remove(groups);
    }
    return error;
}

int cgroups_clone_into(const struct cgroups *groups)
{
    for (unsigned i = 0; i < groups->count; i++)
        if (groups->list[i].tasks < 0)
            return groups->list[i].directory;
    return -1;
}

int cgroups_join(const struct cgroups *groups)
{
    for (unsigned i = 0; i < groups->count; i++)
        if (groups->list[i].tasks >= 0 && write(groups->list[i].tasks, "0", 1) < 0)
            return -errno;
    return 0;
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
