/* File actions: functions for a process of their own, forked from the guest, that has the sandbox user's credentials and working directory.
 * Descriptor 0 is what is written, until its end; descriptor 1 is what is read; on 2, CONNECT says with one byte that it has connected. */
#ifndef EXCISE_FILES_H
#define EXCISE_FILES_H

#include <stdbool.h>
#include <stdint.h>

struct file_request {
    uint32_t operation; /* enum wire_operation */
    const char *path;   /* terminated; NULL or empty: ENOENT */
    const char *target; /* MOVE */
    uint64_t offset;    /* READ */
    uint64_t length;
    bool has_length;
    uint32_t mode; /* WRITE, MAKE_DIR */
    bool has_mode;
    bool flag; /* append for WRITE, recursive for REMOVE */
    uint16_t port;
};

/* 0 or a positive errno, for the process to exit with. It sets the umask, ignores SIGPIPE and may take as long as its descriptors do: nothing else of the process is of use after it. */
int file_action(const struct file_request *request);

#endif
