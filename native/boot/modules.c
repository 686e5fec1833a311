/* The kernel's modules that a root needs; the host has put them, and those they depend on, into an order that works. */
#include "boot/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int load(const char *name)
{
    char path[128];
    int file, result;

    snprintf(path, sizeof path, "/lib/%s", name);
    if ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return -errno;
    result = syscall(SYS_finit_module, file, "", 0) < 0 ? -errno : 0;
    close(file);
    /* -ENODEV: a driver whose device is not in this machine. */
    return result == -EEXIST || result == -ENODEV ? 0 : result;
}

int modules_load(void)
{
    FILE *list = fopen("/modules", "re");
    char line[100];
    int result = 0;

    if (list == NULL)
        return boot_failed(errno, "open the list of modules");
    while (result == 0 && fgets(line, sizeof line, list) != NULL) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] != 0 && (result = load(line)) < 0)
            boot_failed(-result, "load the kernel's module %s", line);
    }
    fclose(list);
    return result;
}
