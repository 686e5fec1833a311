#include "guest/file_work.h"
#include "guest/tar_format.h"
#include "guest/tar_links.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct archive {
    struct outlet outlet;
    bool precise; /* times to the nanosecond: two blocks more for each member */
    struct tar_links links;
    struct tree tree;
    size_t length; /* of member.name, which is the path of where the walk is */
    struct tar_member member;
};

static int pad(struct archive *archive, uint64_t size)
{
    static const char zeros[TAR_BLOCK];

    return outlet_put(&archive->outlet, zeros, (size_t)((TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK));
}

/* A member of the format's own, which says more of the next one. */
static int put_extension(struct archive *archive, char type, const char *bytes, size_t size)
{
    struct tar_member member = {.name = "././@LongLink", .type = type, .size = (int64_t)size};
    struct tar_block block;
    int error;

    tar_format(&block, &member);
    error = outlet_put(&archive->outlet, &block, sizeof block);
    if (!error)
        error = outlet_put(&archive->outlet, bytes, size);
    return error ? error : pad(archive, size);
}

static int put_time(struct archive *archive)
{
    const struct timespec *mtime = &archive->member.mtime;
    char text[32], record[64];

    /* Not for a time before 1970, whose fraction would count the other way. */
    if (!archive->precise || mtime->tv_nsec == 0 || mtime->tv_sec < 0)
        return 0;
    snprintf(text, sizeof text, "%lld.%09ld", (long long)mtime->tv_sec, mtime->tv_nsec);
    /* The length counts itself; with any year up to 300,000 it has two digits. */
    snprintf(record, sizeof record, "%zu mtime=%s\n", strlen(text) + sizeof "NN mtime=\n" - 1, text);
    return put_extension(archive, 'x', record, strlen(record));
}

static int put_header(struct archive *archive)
{
    struct tar_block block;
    const char *name = archive->member.name, *link = archive->member.link;
    int error = put_time(archive);

    /* GNU's way for a name that is longer than its field; unlike pax it has no opinion on the bytes. */
    if (!error && strlen(link) > sizeof block.link)
        error = put_extension(archive, 'K', link, strlen(link) + 1);
    if (!error && strlen(name) > sizeof block.name)
        error = put_extension(archive, 'L', name, strlen(name) + 1);
    if (error)
        return error;
    tar_format(&block, &archive->member);
    return outlet_put(&archive->outlet, &block, sizeof block);
}

/* Exactly as many bytes as the header says: one that grew is cut, one that shrank is filled with zeros. */
static int put_data(struct archive *archive, int file, uint64_t size)
{
    char buffer[FILE_CHUNK];
    int error = 0;

    for (uint64_t left = size; !error && left > 0;) {
        size_t now = left < sizeof buffer ? (size_t)left : sizeof buffer;
        ssize_t got = read(file, buffer, now);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0) {
            memset(buffer, 0, now);
            got = (ssize_t)now;
        }
        error = outlet_put(&archive->outlet, buffer, (size_t)got);
        left -= (uint64_t)got;
    }
    return error ? error : pad(archive, size);
}

static int put_file(struct archive *archive, const char *name)
{
    CLEAN_FD int file = openat(archive->tree.fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    const char *first = NULL;
    struct stat found;
    int error;

    if (file < 0 || fstat(file, &found) < 0)
        return errno == ELOOP ? -ENOENT : -errno;
    if (!S_ISREG(found.st_mode)) /* replaced since, as by a link above */
        return -ENOENT;
    if (found.st_nlink > 1)
        first = tar_links_seen(&archive->links, &found, archive->member.name);
    if (first != NULL) {
        archive->member.type = '1';
        strcpy(archive->member.link, first); /* it was a name in this archive */
        return put_header(archive);
    }
    archive->member.type = '0';
    archive->member.size = found.st_size;
    error = put_header(archive);
    return error ? error : put_data(archive, file, (uint64_t)found.st_size);
}

static int put_link(struct archive *archive, const char *name)
{
    ssize_t length = readlinkat(archive->tree.fd, name, archive->member.link, sizeof archive->member.link - 1);

    if (length < 0)
        return errno == EINVAL ? -ENOENT : -errno; /* replaced since */
    archive->member.link[length] = '\0';
    archive->member.type = '2';
    return put_header(archive);
}

static int put_special(struct archive *archive, const struct stat *seen)
{
    if (S_ISSOCK(seen->st_mode))
        return 0; /* it is nothing without the program that listens */
    archive->member.type = S_ISFIFO(seen->st_mode) ? '6' : S_ISCHR(seen->st_mode) ? '3' : '4';
    archive->member.major = major(seen->st_rdev);
    archive->member.minor = minor(seen->st_rdev);
    return put_header(archive);
}

/* A directory's own entry; its names are left on the stack, and the walk is in it. */
static int put_directory(struct archive *archive, size_t name, size_t mark)
{
    struct tree *tree = &archive->tree;
    int error = tree_enter(tree, name, mark);

    if (error)
        return error == -ENOTDIR || error == -ELOOP ? -ENOENT : error;
    if (archive->length + 1 >= sizeof archive->member.name)
        return -ENAMETOOLONG;
    strcpy(archive->member.name + archive->length++, "/");
    archive->member.type = '5';
    error = put_header(archive);
    if (!error)
        error = names_read(&tree->names, tree->fd);
    /* The stack gives the last one first. */
    names_sort(&tree->names, tree->levels[tree->depth - 1].count, true);
    return error;
}

/* Appends a name to the path of where the walk is. */
static int extend(struct archive *archive, const char *name)
{
    size_t length = strlen(name);

    if (archive->length + length >= sizeof archive->member.name)
        return -ENAMETOOLONG;
    memcpy(archive->member.name + archive->length, name, length + 1);
    archive->length += length;
    return 0;
}

static int put_any(struct archive *archive, size_t at, size_t mark)
{
    const char *name = archive->tree.names.bytes + at;
    struct tar_member *member = &archive->member;
    struct stat seen;

    if (fstatat(archive->tree.fd, name, &seen, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    member->mode = seen.st_mode & 07777;
    member->uid = seen.st_uid;
    member->gid = seen.st_gid;
    member->mtime = seen.st_mtim;
    member->size = 0;
    member->link[0] = '\0';
    if (S_ISDIR(seen.st_mode))
        return put_directory(archive, at, mark);
    if (S_ISREG(seen.st_mode))
        return put_file(archive, name);
    return S_ISLNK(seen.st_mode) ? put_link(archive, name) : put_special(archive, &seen);
}

static void cut_back(struct archive *archive, size_t length)
{
    archive->length = length;
    archive->member.name[length] = '\0';
}

/* All below the directory that the walk is in; what went since it was read is left out. */
static int put_tree(struct archive *archive)
{
    struct tree *tree = &archive->tree;
    struct level left;
    size_t name;
    int error = 0;

    while (!error && tree->depth > 0) {
        size_t mark = archive->length, depth = tree->depth;

        if (!tree_next(tree, &name)) {
            error = tree_leave(tree, &left);
            cut_back(archive, left.mark);
            continue;
        }
        error = extend(archive, tree->names.bytes + name);
        if (!error)
            error = put_any(archive, name, mark);
        if (error == -ENOENT)
            error = 0;
        if (tree->depth == depth)
            cut_back(archive, mark);
    }
    return error;
}

/* The path's parent and last part, by which the members are called. One that ends in "." or ".." is first made one that says where it is. */
static int locate(char *path, const char **last)
{
    bool slashes;
    int parent = split_path(path, last, &slashes);

    if (parent < 0 || (strcmp(*last, ".") != 0 && strcmp(*last, "..") != 0))
        return parent;
    if (fchdir(parent) < 0 || chdir(*last) < 0 || getcwd(path, PATH_MAX) == NULL) {
        close(parent);
        return -errno;
    }
    close(parent);
    return split_path(path, last, &slashes);
}

static int put_all(struct archive *archive, const char *path)
{
    static const char end[2 * TAR_BLOCK];
    char copy[PATH_MAX];
    const char *last;
    int error;

    if (strlen(path) >= sizeof copy)
        return -ENAMETOOLONG;
    strcpy(copy, path);
    archive->tree.fd = locate(copy, &last);
    if (archive->tree.fd < 0)
        return archive->tree.fd;
    error = names_push(&archive->tree.names, last);
    archive->tree.names.count = 0; /* its bytes stay, as the name of the first level */
    if (!error)
        error = extend(archive, last);
    if (!error)
        error = put_any(archive, 0, 0);
    if (!error)
        error = put_tree(archive);
    if (!error)
        error = outlet_put(&archive->outlet, end, sizeof end);
    return error ? error : outlet_flush(&archive->outlet);
}

int file_tar(int to, const char *path, bool precise)
{
    struct archive *archive = calloc(1, sizeof *archive);
    int error;

    if (archive == NULL)
        return -ENOMEM;
    archive->outlet.fd = to;
    archive->precise = precise;
    archive->tree.fd = -1;
    error = put_all(archive, path);
    tree_free(&archive->tree);
    tar_links_free(&archive->links);
    free(archive);
    return error;
}
