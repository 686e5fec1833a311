/* What the client and the launcher say to each other: one SEQPACKET packet each, a header and fields (common/fields.h). The socket is the launcher's descriptor 0. */
#ifndef EXCISE_REQUEST_H
#define EXCISE_REQUEST_H

#include <stdint.h>

struct launch_header {
    uint32_t type;
    uint32_t id; /* the sandbox or layer, chosen by the client, never reused, one for either; 0: the launcher itself */
};

enum launch_type {
    /* client to launcher */
    LAUNCH_CREATE = 1, /* descriptors beside it: the guest's end of the link, then the opaque shell if SHELL says so */
    LAUNCH_CLOSE = 2,  /* end it; GONE follows when nothing is left */
    LAUNCH_ROOT = 3,   /* another root for a sandbox that is ready, with a fresh upper: for the life that the guest's next HELLO begins; or with SEAL now, if nothing is alive in it */
    LAUNCH_DROP = 4,   /* the id is a layer's: no sandbox will be made of it any more */
    LAUNCH_OPEN = 5,   /* the id is a sandbox's or a layer's: what was written, to be read */
    LAUNCH_MAKE = 6,   /* a layer with this id, empty; OPENED follows, and who asked fills it before anything is made of it */
    /* launcher to client */
    LAUNCH_HELLO = 16, /* once, unasked: what was found by trying; or FAILED with id 0 */
    LAUNCH_READY = 17, /* the root is built and the guest serves; descriptors: its pidfd, then the listener if LISTEN was asked */
    LAUNCH_FAILED = 18, /* fields STEP, ERRNO, MESSAGE; nothing of the sandbox is left */
    LAUNCH_GONE = 19,  /* all processes, mounts and cgroups are gone; also unasked, when a sandbox died */
    LAUNCH_ROOTED = 20, /* it has the root; or fields STEP, ERRNO, MESSAGE: EBUSY or ENODATA, it stays as it is, something lives in it or nothing was written; others, it is lost, and GONE follows */
    LAUNCH_OPENED = 21, /* descriptor: the directory; or ERRNO: there is no such upper */
};

enum launch_tag {
    /* CREATE */
    LAUNCH_LOWER = 64,    /* a directory of the image, the topmost first; repeated */
    LAUNCH_BIND = 65,     /* "source\0target\0" and one byte: 1 read-only; repeated, in order */
    LAUNCH_HOSTNAME = 66,
    LAUNCH_DISK_BYTES = 67,
    LAUNCH_INODES = 68,
    LAUNCH_CGROUP = 69,   /* an absolute directory to make and join; v1 has one for each controller, v2 one, in CGROUP_HOME; repeated */
    LAUNCH_WRITE = 70,    /* "file\0value": written into the cgroup named last */
    LAUNCH_PRIVILEGES = 71, /* 1: programs may gain privileges (sudo): no_new_privs stays off */
    LAUNCH_LISTEN = 72,   /* a port on the sandbox's loopback whose listening socket comes back with READY */
    LAUNCH_SHELL = 73,    /* 1: the second descriptor is the opaque shell */
    LAUNCH_MAKE_DIR = 74, /* a directory of the root that must exist (the workdir); repeated */
    LAUNCH_DEVICE = 75,   /* a device of the host, bound into /dev; repeated */
    LAUNCH_CGROUP_HOME = 76, /* "directory\0controllers": v2, this launcher's own, made by it at the first request that names it (launch/home.h) */
    LAUNCH_LAYER = 77,    /* the same as LOWER: a layer's id; repeated, among them in order */
    /* ROOT has LOWER, LAYER, BIND, DISK_BYTES, INODES, PRIVILEGES, DEVICE as CREATE has them, all but the first four as they were there; and: */
    LAUNCH_SEAL = 78,     /* the present upper becomes a layer with this id, and the topmost lower of the new root */
    /* HELLO */
    LAUNCH_USERS = 96,    /* how many uids a sandbox has: 65536, or 1 */
    LAUNCH_ROOTLESS = 97, /* 1: an ordinary user's launcher */
    LAUNCH_LAYERS = 98,   /* 1: there are ROOT, DROP, OPEN and layers */
    /* ROOTED */
    LAUNCH_SIZE_BYTES = 104, /* what was sealed takes so much */
    /* FAILED, ROOTED */
    LAUNCH_STEP = 112,    /* "mount overlay": which call, in words */
    LAUNCH_ERRNO = 113,
    LAUNCH_MESSAGE = 114,
};

#endif
