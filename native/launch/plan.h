/* A CREATE or ROOT request, understood: what the launcher and the child build the sandbox, or another root of it, from. */
#ifndef EXCISE_PLAN_H
#define EXCISE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    PLAN_PACKET_BYTES = 65536, /* the longest request */
    PLAN_LOWERS = 128,         /* with the binds, /dev and two uppers below 253, the most descriptors a message carries */
    PLAN_BINDS = 64,
    PLAN_CGROUPS = 16,
    PLAN_WRITES = 64,
    PLAN_DIRECTORIES = 32,
    PLAN_DEVICES = 16,
};

/* A directory of the host's, or the layer that the launcher knows by a number. */
struct plan_lower {
    const char *path; /* NULL: a layer */
    uint32_t layer;
};

struct plan_bind {
    const char *source; /* on the host */
    const char *target; /* inside */
    bool read_only;
};

struct plan_write {
    const char *file;
    const char *value;
};

struct plan_cgroup {
    const char *path;
    size_t writes; /* how many of `plan.writes` are this one's; they follow those of the cgroups before it */
};

struct plan {
    struct plan_lower lowers[PLAN_LOWERS]; /* the topmost first */
    size_t lower_count;
    struct plan_bind binds[PLAN_BINDS];
    size_t bind_count;
    struct plan_cgroup cgroups[PLAN_CGROUPS];
    size_t cgroup_count;
    const char *home; /* the launcher's own v2 group, or NULL */
    const char *home_controllers;
    struct plan_write writes[PLAN_WRITES];
    size_t write_count;
    const char *directories[PLAN_DIRECTORIES];
    size_t directory_count;
    const char *devices[PLAN_DEVICES];
    size_t device_count;
    const char *hostname;
    uint64_t disk_bytes; /* 0: the kernel's default, half of the memory */
    uint64_t inodes;     /* 0: the kernel's default */
    uint32_t seal;       /* ROOT: what the present upper is called as a layer; 0: it is thrown away */
    uint16_t listen_port; /* 0: no listener */
    bool privileges;
    int link;  /* the guest's end of the connection to the client */
    int shell; /* the opaque shell, or -1 */
    size_t string_bytes;
    char strings[PLAN_PACKET_BYTES]; /* what the pointers point into */
};

struct failure;

/* Reads the fields of a CREATE, or of a ROOT, which has no descriptors, and takes those that came with it, also when it fails. 0 or -errno. */
int plan_parse(struct plan *plan, bool create, const void *fields, size_t length, const int *descriptors, size_t descriptor_count, struct failure *failure);

/* Closes the link and the shell. */
void plan_close(struct plan *plan);

#endif
