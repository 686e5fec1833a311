/* An archive being unpacked: untar.c reads it, untar_make.c makes its members. */
#ifndef EXCISE_UNTAR_H
#define EXCISE_UNTAR_H

#include "guest/file_work.h"
#include "guest/tar_format.h"

/* A directory gets its mode and time when nothing more is put into it. */
struct delayed {
    uint32_t mode;
    int64_t uid, gid;
    struct timespec mtime;
};

struct untar {
    int from;
    struct beneath beneath;
    bool as_root;
    size_t at, end; /* of the input */
    bool any;       /* there was input at all */
    int parent; /* the last member's, kept for its siblings; or -1 */
    bool stale; /* something was removed that may have been on the way to it */
    char parent_name[PATH_MAX];
    struct tar_extension global, next;
    struct names delayed_names;
    struct delayed *delayed;
    size_t delayed_room;
    struct tar_member member;
    char input[FILE_CHUNK];
};

/* Exactly `length` bytes of the input, to memory, to a file, or nowhere; -EINVAL if it ends before. */
int untar_pull(struct untar *u, char *into, int file, uint64_t length);

/* What follows a member's data. */
int untar_skip_padding(struct untar *u, int64_t size);

/* Makes what `member` says, and takes its data from the input. */
int untar_make(struct untar *u);

/* Modes and times of the directories; those that went, or are not ours to change, stay as they are. */
void untar_finish_directories(struct untar *u);

#endif
