/* Limits inside the machine. The hierarchy is mounted outside of the root, where only we see it. */
#include "boot/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define TREE "/groups"
#define PROGRAMS TREE "/programs"

static int put(const char *path, const char *text)
{
    int file = open(path, O_WRONLY | O_CLOEXEC);
    int result = file < 0 || write(file, text, strlen(text)) < 0 ? -errno : 0;

    if (file >= 0)
        close(file);
    return result < 0 ? boot_failed(-result, "write %s to %s", text, path) : 0;
}

static int limit(const char *file, const char *format, uint64_t value)
{
    char path[64], text[64];

    if (value == 0)
        return 0;
    snprintf(path, sizeof path, PROGRAMS "/%s", file);
    snprintf(text, sizeof text, format, (unsigned long long)value);
    return put(path, text);
}

static int open_in(const char *name, int flags)
{
    return open(name, flags | O_RDONLY | O_CLOEXEC);
}

int groups_make(const struct options *options, struct groups *groups)
{
    int result;

    *groups = (struct groups){-1, -1, -1};
    if (mkdir(TREE, 0700) < 0 || mount("groups", TREE, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0)
        return boot_failed(errno, "mount cgroup2");
    if (mkdir(PROGRAMS, 0755) < 0)
        return boot_failed(errno, "make a control group");
    if ((result = put(TREE "/cgroup.subtree_control", "+memory +pids +cpu")) < 0)
        return result;
    if ((result = limit("memory.max", "%llu", options->memory_bytes)) < 0 || (result = limit("pids.max", "%llu", options->pids)) < 0)
        return result;
    if ((result = limit("cpu.max", "%llu 100000", options->cpu_us)) < 0)
        return result;
    groups->programs = open_in(PROGRAMS, O_DIRECTORY);
    groups->memory_events = open_in(PROGRAMS "/memory.events", 0);
    groups->pids_events = open_in(PROGRAMS "/pids.events", 0);
    if (groups->programs < 0 || groups->memory_events < 0 || groups->pids_events < 0)
        return boot_failed(errno, "open the control group");
    return 0;
}
