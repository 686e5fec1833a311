#include "guest/limits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/wire.h"
#include "guest/guest.h"

/* The number after `name` at the beginning of a line; 0 if there is none. */
static uint64_t counter(int fd, const char *name)
{
    char text[1024], *line = text;
    size_t length = strlen(name);
    ssize_t got = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);

    if (got <= 0)
        return 0;
    text[got] = 0;
    while (line != NULL && *line != 0) {
        if (strncmp(line, name, length) == 0)
            return strtoull(line + length, NULL, 10);
        line = strchr(line, '\n');
        line += line != NULL;
    }
    return 0;
}

struct counts limits_count(const struct guest_config *config)
{
    return (struct counts){.out_of_memory = counter(config->memory_events, "oom_kill "), .out_of_pids = counter(config->pids_events, "max ")};
}

static bool is_full(const char *path)
{
    struct statvfs tree;

    return statvfs(path, &tree) == 0 && (tree.f_bavail == 0 || tree.f_favail == 0);
}

static bool disk_full(const struct guest_config *config)
{
    return config->disk_limited && (is_full("/") || is_full("/tmp"));
}

void limits_judge(const struct guest_config *config, const struct counts *before, struct wire_ended *record)
{
    struct counts now;

    /* A file action's errno says it already. */
    if (record->end == END_EXITED && (record->exit_code == 0 || record->error != 0))
        return;
    if (record->end != END_EXITED && record->end != END_SIGNALED)
        return;
    now = limits_count(config);
    if (now.out_of_memory > before->out_of_memory)
        record->end = END_OUT_OF_MEMORY;
    else if (now.out_of_pids > before->out_of_pids)
        record->end = END_OUT_OF_PIDS;
    else if (disk_full(config))
        record->end = END_OUT_OF_DISK;
}

int limits_refused(const struct guest_config *config, int error)
{
    if (error == EAGAIN && config->pids_events >= 0)
        return END_OUT_OF_PIDS;
    if (error == ENOMEM && config->memory_events >= 0)
        return END_OUT_OF_MEMORY;
    return -1;
}
