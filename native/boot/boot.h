/* excise-boot: the first process of a virtual machine of ours. It loads the kernel's modules, puts the root together and becomes the guest. */
#ifndef EXCISE_BOOT_H
#define EXCISE_BOOT_H

#include <stdbool.h>
#include <stdint.h>

/* What the kernel's command line says of us; the words begin with "excise.". */
struct options {
    char disk[64];       /* disk=DEVICE: the image, read-only */
    char upper[64];      /* upper=DEVICE: a private disk for what is written; else memory */
    char init[256];      /* init=PATH: the image's own first process; the guest then runs beside it */
    bool probe;          /* probe=on: say that the kernel runs, and end */
    bool guest;          /* guest=off: no guest at all, the image's own way in is the only one */
    uint64_t vsock;      /* vsock=PORT: the host calls there; else there is a serial port to it */
    uint64_t disk_bytes; /* 0: no limit was asked for, here and below */
    uint64_t inodes;
    uint64_t memory_bytes;
    uint64_t pids;
    uint64_t cpu_us; /* of every 100 ms */
};

/* Reads `line`, as /proc/cmdline has it. 0 or -errno: -EINVAL for a word of ours that cannot be read. */
int options_parse(struct options *options, const char *line);

/* What failed, said on the console: the host shows its tail. Returns -error. */
int boot_failed(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* modules.c: those that /modules names, in its order. */
int modules_load(void);

/* root.c: the image below, what is written above; then the new root is "/". `boot_id`: open for writing, what is shown as the kernel's. */
int root_make(const struct options *options, int *boot_id);

/* clock.c: how fast this processor's time stamp counter runs, in kHz; 0 where there is none. Asked on the host. */
unsigned clock_khz(void);

/* groups.c: a control group for what actions start, whose limits are those that were asked for. */
struct groups {
    int programs; /* an open directory, or -1 */
    int memory_events;
    int pids_events;
};
int groups_make(const struct options *options, struct groups *groups);

/* The port that leads to the host, both ways. A descriptor or -errno. */
int port_open(void);

/* Where a monitor has no serial ports, as Firecracker: a socket that the host will call at, and its call. Descriptors or -errno. */
int port_listen(unsigned number);
int port_accept(int listener);

#endif
