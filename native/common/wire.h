/* The wire between the host and the guest, version 1. design/guest.md explains it; src/excise/guest/wire.py says the same. */
#ifndef EXCISE_WIRE_H
#define EXCISE_WIRE_H

#include <stdint.h>

enum {
    WIRE_VERSION = 1,
    WIRE_HEADER_BYTES = 16,
    WIRE_FIELD_BYTES = 8,
    WIRE_MAX_PAYLOAD = 262144,
    WIRE_MAX_REQUEST = 16 << 20,
    WIRE_WINDOW = 262144,
};

struct wire_header {
    uint32_t length;
    uint32_t id;
    uint32_t epoch;
    uint8_t type;
    uint8_t flags;
    uint16_t zero;
};

enum wire_type {
    /* both ways */
    WIRE_HELLO = 1,
    WIRE_CREDIT = 2,
    /* host to guest */
    WIRE_RUN = 16,
    WIRE_FILE = 17,
    WIRE_DATA = 18,
    WIRE_EOF = 19,
    WIRE_RESIZE = 20, /* u32 rows, u32 columns */
    WIRE_SIGNAL = 21, /* u32 number */
    WIRE_KILL = 22,
    WIRE_FREEZE = 23, /* all processes stand still, and FROZEN says when; the id is no action's */
    WIRE_THAW = 24,   /* they go on */
    WIRE_RENEW = 25,  /* struct wire_renewal: it is another machine than the one it was copied from; answered by KILLED, the id is no action's */
    /* guest to host */
    WIRE_STARTED = 32,
    WIRE_OUTPUT = 33,
    WIRE_ENDED = 34,
    WIRE_KILLED = 35,
    WIRE_REFUSED = 36,
    WIRE_FROZEN = 37,
};

/* flags of RUN and FILE */
enum {
    WIRE_FLAG_MERGE = 1,
    WIRE_FLAG_PTY = 2,
    WIRE_FLAG_STDIN = 4,
    WIRE_FLAG_STARTED = 8,
    WIRE_FLAG_CHAIN = 16,
    WIRE_FLAG_STOP = 32,
    WIRE_FLAG_MORE = 128,
};

/* flag of HELLO: the life begins in a root that comes from who made the sandbox */
enum { WIRE_FLAG_ROOT = 1 };

/* flags of OUTPUT and of CREDIT: the stream. CREDIT's payload is a u32: so many bytes more. */
enum { WIRE_STDIN = 0, WIRE_STDOUT = 1, WIRE_STDERR = 2 };

enum wire_tag {
    TAG_VERSION = 1,
    TAG_ABILITIES = 2,
    TAG_MESSAGE = 3,
    TAG_ERRNO = 4, /* of REFUSED: the machine could not start it, and no limit of the sandbox's was why */
    TAG_ARG = 8,
    TAG_ENV = 9, /* "NAME=value" */
    TAG_CWD = 10,
    TAG_USER = 11, /* "name-or-number[:group]" */
    TAG_SESSION = 12,
    TAG_SCRIPT = 13,
    TAG_TIMEOUT_NS = 14,
    TAG_WINDOW = 15,
    TAG_ROWS = 16,
    TAG_COLUMNS = 17,
    TAG_OPERATION = 24, /* enum wire_operation */
    TAG_PATH = 25,
    TAG_TARGET = 26,
    TAG_OFFSET = 27,
    TAG_LENGTH = 28,
    TAG_MODE = 29,
    TAG_FLAG = 30, /* append for WRITE, recursive for REMOVE */
    TAG_PORT = 31,
};

enum { ABILITY_OPAQUE_SHELL = 1 }; /* a session's shell cannot be read or written by what it starts */

enum wire_operation {
    FILE_READ = 1,
    FILE_WRITE = 2,
    FILE_LIST = 3, /* OUTPUT is a sequence of struct wire_entry, each followed by its name and its target */
    FILE_STAT = 4,
    FILE_REMOVE = 5,
    FILE_MOVE = 6,
    FILE_MAKE_DIR = 7,
    FILE_UNTAR = 8, /* a tar stream on stdin, into the directory PATH */
    FILE_TAR = 9,   /* PATH as a tar stream, names relative to its parent */
    FILE_CONNECT = 10, /* 127.0.0.1:PORT; stdin and OUTPUT are the connection */
};

struct wire_entry {
    uint32_t name_bytes;
    uint32_t target_bytes;
    uint8_t kind; /* 1 file, 2 directory, 3 link, 4 other */
    uint8_t zero[3];
    uint32_t mode;
    uint32_t uid;
    uint32_t gid;
    uint64_t size_bytes;
    int64_t mtime_ns;
};

enum wire_end {
    END_EXITED = 0,
    END_SIGNALED = 1,
    END_TIMED_OUT = 2,
    END_OUT_OF_MEMORY = 3,
    END_OUT_OF_DISK = 4,
    END_OUT_OF_PIDS = 5,
    END_SKIPPED = 6,
    END_KILLED = 7, /* by KILL, before it ended by itself */
};

enum { ENDED_STILL_RUNNING = 1, ENDED_SESSION_REPLACED = 2, ENDED_HAS_CODE = 4, ENDED_HAS_USAGE = 8 };

struct wire_ended {
    uint8_t end;
    uint8_t flags;
    uint16_t zero;
    int32_t exit_code;
    int32_t signal;
    int32_t error; /* errno of a file action, 0 if it succeeded */
    uint64_t guest_ns;
    uint64_t cpu_ns;
    uint64_t max_rss_bytes; /* 0: not known */
};

enum { WIRE_ID_BYTES = 16, WIRE_SEED_BYTES = 64 };

struct wire_renewal {
    uint64_t time_ns; /* since 1970 */
    uint8_t id[WIRE_ID_BYTES]; /* all 0: it is no copy, and only stood still */
    uint8_t seed[WIRE_SEED_BYTES];
};

_Static_assert(sizeof(struct wire_header) == WIRE_HEADER_BYTES, "the header is 16 bytes");
_Static_assert(sizeof(struct wire_entry) == 40, "an entry is 40 bytes");
_Static_assert(sizeof(struct wire_ended) == 40, "the record of an end is 40 bytes");
_Static_assert(sizeof(struct wire_renewal) == 88, "a renewal is 88 bytes");

#endif
