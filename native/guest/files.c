#include "guest/files.h"

#include "common/wire.h"
#include "guest/file_work.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* What may be read or written as a file. A FIFO, a socket, a terminal or a disk is none: it may never answer, and may do more than hold bytes. Of the
 * devices, only those that are nothing but bytes (null, zero, full, random, urandom) are; an endless one needs a length. */
static int accept_kind(const struct stat *found, bool bounded)
{
    if (S_ISREG(found->st_mode))
        return 0;
    if (S_ISDIR(found->st_mode))
        return -EISDIR;
    if (!S_ISCHR(found->st_mode) || major(found->st_rdev) != 1)
        return -EINVAL;
    switch (minor(found->st_rdev)) {
    case 3: /* null */
        return 0;
    case 5: /* zero */
    case 7: /* full */
    case 8: /* random */
    case 9: /* urandom */
        return bounded ? 0 : -EINVAL;
    default:
        return -EINVAL;
    }
}

/* Looks before it opens, since opening a FIFO or a device has effects; and again after, since it may have been replaced. Non-blocking in any case. */
static int open_file(const char *path, int flags, bool bounded, struct stat *found)
{
    CLEAN_FD int fd = -1;
    int error, opened;

    if (stat(path, found) == 0) {
        error = accept_kind(found, bounded);
        if (error)
            return error;
    }
    fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
    if (fd < 0 || fstat(fd, found) < 0)
        return -errno;
    error = accept_kind(found, bounded);
    if (error)
        return error;
    opened = fd;
    fd = -1;
    return opened;
}

static int read_file(const struct file_request *request)
{
    char buffer[FILE_CHUNK];
    struct stat found;
    uint64_t left = request->has_length ? request->length : UINT64_MAX;
    CLEAN_FD int fd = open_file(request->path, O_RDONLY, request->has_length, &found);

    if (fd < 0)
        return fd;
    if (request->offset > INT64_MAX)
        return -EINVAL;
    if (request->offset > 0 && lseek(fd, (off_t)request->offset, SEEK_SET) < 0)
        return -errno;
    while (left > 0) {
        ssize_t got = read(fd, buffer, left < sizeof buffer ? (size_t)left : sizeof buffer);
        int error;

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : 0;
        error = file_put(STDOUT_FILENO, buffer, (size_t)got);
        if (error)
            return error;
        left -= (uint64_t)got;
    }
    return 0;
}

static int write_file(const struct file_request *request)
{
    char buffer[FILE_CHUNK];
    struct stat found;
    size_t length = strlen(request->path);
    CLEAN_FD int fd = -1;
    ssize_t got;
    int error;

    if (request->path[length - 1] == '/')
        return -EISDIR;
    error = make_parents(request->path);
    if (error)
        return error;
    fd = open_file(request->path, O_WRONLY | O_CREAT | (request->flag ? O_APPEND : 0), true, &found);
    if (fd < 0)
        return fd;
    /* Not by O_TRUNC: what is opened is known only now. */
    if (!request->flag && found.st_size > 0 && ftruncate(fd, 0) < 0)
        return -errno;
    while ((got = file_take(STDIN_FILENO, buffer, sizeof buffer)) > 0) {
        error = file_put(fd, buffer, (size_t)got);
        if (error)
            return error;
    }
    if (got < 0)
        return (int)got;
    return request->has_mode && fchmod(fd, request->mode & 07777) < 0 ? -errno : 0;
}

static uint8_t kind_of(mode_t mode)
{
    if (S_ISREG(mode))
        return 1;
    if (S_ISDIR(mode))
        return 2;
    return S_ISLNK(mode) ? 3 : 4;
}

/* One record: what `path` in `directory` is, under the name `name`. */
static int put_entry(struct outlet *outlet, int directory, const char *path, const char *name)
{
    char target[PATH_MAX];
    struct stat found;
    struct wire_entry entry;
    ssize_t target_bytes = 0;
    int error;

    if (fstatat(directory, path, &found, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (S_ISLNK(found.st_mode) && (target_bytes = readlinkat(directory, path, target, sizeof target)) < 0)
        return -errno;
    entry = (struct wire_entry){
        .name_bytes = htole32((uint32_t)strlen(name)),
        .target_bytes = htole32((uint32_t)target_bytes),
        .kind = kind_of(found.st_mode),
        .mode = htole32(found.st_mode & 07777),
        .uid = htole32(found.st_uid),
        .gid = htole32(found.st_gid),
        .size_bytes = htole64((uint64_t)found.st_size),
        .mtime_ns = (int64_t)htole64((uint64_t)found.st_mtim.tv_sec * 1000000000u + (uint64_t)found.st_mtim.tv_nsec),
    };
    error = outlet_put(outlet, &entry, sizeof entry);
    if (!error)
        error = outlet_put(outlet, name, strlen(name));
    return error ? error : outlet_put(outlet, target, (size_t)target_bytes);
}

static int list_directory(const char *path)
{
    __attribute__((cleanup(names_free))) struct names names = {0};
    struct outlet outlet = {.fd = STDOUT_FILENO};
    CLEAN_FD int directory = open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    int error;

    if (directory < 0)
        return -errno;
    error = names_read(&names, directory);
    names_sort(&names, 0, false);
    for (size_t i = 0; !error && i < names.count; i++) {
        const char *name = names.bytes + names.at[i];

        error = put_entry(&outlet, directory, name, name);
        if (error == -ENOENT) /* removed since */
            error = 0;
    }
    return error ? error : outlet_flush(&outlet);
}

static int stat_path(const char *path)
{
    struct outlet outlet = {.fd = STDOUT_FILENO};
    char name[PATH_MAX];
    size_t length = strlen(path);
    const char *cut;
    int error;

    if (length >= sizeof name)
        return -ENAMETOOLONG;
    memcpy(name, path, length + 1);
    while (length > 1 && name[length - 1] == '/')
        name[--length] = '\0';
    cut = strrchr(name, '/');
    error = put_entry(&outlet, AT_FDCWD, path, cut != NULL && cut[1] != '\0' ? cut + 1 : name);
    return error ? error : outlet_flush(&outlet);
}

static int untar_into(const char *path)
{
    int error = make_dirs(path, 0755);
    CLEAN_FD int root = -1;

    if (error)
        return error;
    root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return root < 0 ? -errno : file_untar(STDIN_FILENO, root);
}

static int act(const struct file_request *request)
{
    if (request->operation == FILE_CONNECT)
        return file_relay(request->port);
    if (request->path == NULL || request->path[0] == '\0')
        return -ENOENT;
    switch (request->operation) {
    case FILE_READ:
        return read_file(request);
    case FILE_WRITE:
        return write_file(request);
    case FILE_LIST:
        return list_directory(request->path);
    case FILE_STAT:
        return stat_path(request->path);
    case FILE_REMOVE:
        return remove_path(request->path, request->flag);
    case FILE_MOVE:
        return request->target == NULL || request->target[0] == '\0' ? -ENOENT : move_path(request->path, request->target);
    case FILE_MAKE_DIR:
        return make_dirs(request->path, request->has_mode ? request->mode & 07777 : 0755);
    case FILE_UNTAR:
        return untar_into(request->path);
    case FILE_TAR:
        return file_tar(STDOUT_FILENO, request->path, false);
    default:
        return -ENOSYS;
    }
}

int file_action(const struct file_request *request)
{
    umask(022); /* whoever started the guest had one of their own */
    signal(SIGPIPE, SIG_IGN);
    return -act(request);
}
