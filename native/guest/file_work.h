/* What the file actions share. They run in a process of their own, so libc and malloc are theirs. Functions return 0 or -errno unless said otherwise. */
#ifndef EXCISE_FILE_WORK_H
#define EXCISE_FILE_WORK_H

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum {
    FILE_CHUNK = 65536,
    FILE_MEMORY = 64 << 20, /* for names: a directory that needs more is E2BIG */
};

void file_close(int *fd); /* for __attribute__((cleanup)): -1 is none */
#define CLEAN_FD __attribute__((cleanup(file_close)))

/* file_io.c: the two descriptors of an action, which may be of any kind, also non-blocking. */
ssize_t file_take(int fd, void *bytes, size_t length); /* at least one byte, 0 at the end */
int file_put(int fd, const void *bytes, size_t length);

struct outlet {
    int fd;
    size_t used;
    char bytes[FILE_CHUNK];
};
int outlet_put(struct outlet *outlet, const void *bytes, size_t length);
int outlet_flush(struct outlet *outlet);

/* file_names.c: a stack of names, of bounded size. */
struct names {
    char *bytes;
    uint32_t *at; /* where each name begins; offsets, because the bytes move */
    size_t used, room, count, slots;
};
int names_push(struct names *names, const char *name);
void names_sort(struct names *names, size_t from, bool descending); /* by bytes */
void names_free(struct names *names);
/* Every name in an open directory but . and ..; `visit` returns 0 or -errno, which ends it. */
int each_name(int directory, int (*visit)(void *context, const struct dirent64 *entry), void *context);
int names_read(struct names *names, int directory);

/* file_tree.c: a walk through directories that holds one descriptor whatever the depth, and follows no link. */
struct level {
    dev_t device; /* of the directory above: going up must lead there */
    ino_t inode;
    size_t count, used, name; /* of the stack of names */
    size_t mark;              /* the walker's own */
};
struct tree {
    int fd; /* where it is; what it begins with is the caller's to open and the tree's to close */
    struct names names;
    struct level *levels;
    size_t depth, room;
};
int tree_enter(struct tree *tree, size_t name, size_t mark); /* `name` is an offset into the names */
int tree_leave(struct tree *tree, struct level *left);
bool tree_next(struct tree *tree, size_t *name); /* a name on the stack that belongs to the directory it is in */
void tree_free(struct tree *tree);

/* beneath.c: names are resolved beneath a directory, whatever links lie in it. */
struct beneath {
    int root;
    bool is_root; /* of the sandbox: an absolute link leads beneath it, too */
};
int beneath_at(struct beneath *beneath, int root);
int beneath_open(const struct beneath *beneath, const char *path, int flags);
int beneath_make(const struct beneath *beneath, const char *path); /* a descriptor of the directory, made with its parents if it is not there */

/* file_dirs.c */
int copy_path(char *copy, const char *path); /* into PATH_MAX bytes */
int make_dirs(const char *path, mode_t mode); /* EEXIST if `path` is there and no directory, ENOTDIR if a parent is none */
int make_parents(const char *path);
int remove_path(const char *path, bool recursive);
int remove_below(int parent, const char *name); /* `name` in the open directory, with all that is in it */
/* The directory a path's last part lies in, opened, and that part: "." for the root. Takes trailing slashes away, and says if there were any. */
int split_path(char *path, const char **last, bool *slashes);

int move_path(const char *path, const char *target); /* file_move.c */
int file_untar(int from, int root); /* untar.c: closes neither */
int file_tar(int to, const char *path, bool precise); /* tar.c */
int file_relay(uint16_t port);          /* connect.c */

#endif
