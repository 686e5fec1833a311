#include "guest/untar.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Makes a member's name one below the directory: no slash at its beginning or end, no "." and no doubled slash. ".." is refused: nothing honest
 * needs it. */
static int plain_name(char *name)
{
    char *out = name;

    for (const char *part = name; *part != '\0';) {
        size_t length = strcspn(part, "/");

        if (length == 2 && memcmp(part, "..", 2) == 0)
            return -EINVAL;
        if (length > 0 && !(length == 1 && part[0] == '.')) {
            if (out != name)
                *out++ = '/';
            memmove(out, part, length);
            out += length;
        }
        part += length;
        part += *part == '/';
    }
    *out = '\0';
    return 0;
}

/* The directory that holds the last part of `name`, made if it is not there. */
static int find_parent(struct untar *u, const char *name, const char **last)
{
    const char *cut = strrchr(name, '/');
    size_t length = cut == NULL ? 0 : (size_t)(cut - name);

    *last = cut == NULL ? name : cut + 1;
    if (u->parent >= 0 && !u->stale && strncmp(name, u->parent_name, length) == 0 && u->parent_name[length] == '\0')
        return u->parent;
    file_close(&u->parent);
    memcpy(u->parent_name, name, length);
    u->parent_name[length] = '\0';
    u->stale = false;
    return u->parent = beneath_make(&u->beneath, u->parent_name);
}

/* An existing file gives way, and an empty directory; one with something in it does not. */
static int clear_way(struct untar *u, int parent, const char *last)
{
    u->stale = true;
    if (unlinkat(parent, last, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR)
        return -errno;
    return unlinkat(parent, last, AT_REMOVEDIR) < 0 ? -errno : 0;
}

/* The modes a member gets: what it says, but no privilege of an owner whom it did not get. */
static mode_t mode_of(uint32_t mode, bool owned)
{
    return mode & (owned ? 07777 : 01777);
}

/* As root, the owner the archive says. One who is not mapped here cannot be had: the file stays root's. */
static int own(const struct untar *u, int parent, const char *last, int64_t uid, int64_t gid, bool *owned)
{
    *owned = false;
    if (!u->as_root || uid < 0 || uid >= UINT32_MAX || gid < 0 || gid >= UINT32_MAX)
        return 0;
    *owned = fchownat(parent, last, (uid_t)uid, (gid_t)gid, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) == 0;
    return *owned || errno == EINVAL || errno == EPERM ? 0 : -errno;
}

static int finish_file(const struct untar *u, int file)
{
    const struct timespec times[] = {{.tv_nsec = UTIME_OMIT}, u->member.mtime};
    bool owned;
    int error = own(u, file, "", u->member.uid, u->member.gid, &owned);

    if (error)
        return error;
    if (fchmod(file, mode_of(u->member.mode, owned)) < 0 || futimens(file, times) < 0)
        return -errno;
    return 0;
}

static int make_file(struct untar *u, int parent, const char *last)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    CLEAN_FD int file = openat(parent, last, flags, 0600);
    int error;

    if (file < 0 && errno == EEXIST) {
        error = clear_way(u, parent, last);
        if (error)
            return error;
        file = openat(parent, last, flags, 0600);
    }
    if (file < 0)
        return -errno;
    error = untar_pull(u, NULL, file, (uint64_t)u->member.size);
    if (!error)
        error = finish_file(u, file);
    return error ? error : untar_skip_padding(u, u->member.size);
}

/* A hard link to a member of this archive, or to what lay beneath the directory before; never to anything outside. */
static int make_hard_link(struct untar *u, int parent, const char *last)
{
    struct stat here, there;
    char *link = u->member.link, *cut;
    CLEAN_FD int from = -1;
    int error;

    if (plain_name(link) || link[0] == '\0')
        return -EINVAL;
    cut = strrchr(link, '/');
    if (cut != NULL)
        *cut = '\0';
    from = beneath_open(&u->beneath, cut == NULL ? "" : link, O_PATH | O_DIRECTORY);
    if (from < 0)
        return from;
    link = cut == NULL ? link : cut + 1;
    if (fstatat(from, link, &there, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (fstatat(parent, last, &here, AT_SYMLINK_NOFOLLOW) == 0) {
        if (here.st_dev == there.st_dev && here.st_ino == there.st_ino)
            return 0;
        error = clear_way(u, parent, last);
        if (error)
            return error;
    }
    return linkat(from, link, parent, last, 0) < 0 ? -errno : 0;
}

static int make_node(const struct tar_member *member, int parent, const char *last)
{
    static const mode_t kinds[] = {['3' - '3'] = S_IFCHR, ['4' - '3'] = S_IFBLK, ['6' - '3'] = S_IFIFO};

    if (member->type == '2')
        return symlinkat(member->link, parent, last);
    return mknodat(parent, last, kinds[member->type - '3'] | 0600, makedev(member->major, member->minor));
}

/* A symbolic link, a FIFO or a device. */
static int make_special(struct untar *u, int parent, const char *last)
{
    const struct tar_member *member = &u->member;
    const struct timespec times[] = {{.tv_nsec = UTIME_OMIT}, member->mtime};
    bool owned;
    int error;

    if (member->type == '2' && member->link[0] == '\0')
        return -EINVAL;
    if (make_node(member, parent, last) < 0) {
        if (errno != EEXIST)
            return -errno;
        error = clear_way(u, parent, last);
        if (error)
            return error;
        if (make_node(member, parent, last) < 0)
            return -errno;
    }
    error = own(u, parent, last, member->uid, member->gid, &owned);
    if (error)
        return error;
    if (member->type != '2' && fchmodat(parent, last, mode_of(member->mode, owned), 0) < 0)
        return -errno;
    return utimensat(parent, last, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static int delay(struct untar *u, const char *name)
{
    const struct tar_member *member = &u->member;
    size_t count = u->delayed_names.count;
    int error = names_push(&u->delayed_names, name);

    if (error)
        return error;
    if (count == u->delayed_room) {
        size_t room = count ? count * 2 : 64;
        struct delayed *moved = realloc(u->delayed, room * sizeof *moved);

        if (moved == NULL) {
            u->delayed_names.count--;
            return -ENOMEM;
        }
        u->delayed = moved;
        u->delayed_room = room;
    }
    u->delayed[count] = (struct delayed){.mode = member->mode, .uid = member->uid, .gid = member->gid, .mtime = member->mtime};
    return 0;
}

/* A directory that is there is kept, also behind a link that leads to one beneath; a file or any other link gives way. */
static int make_directory(struct untar *u, int parent, const char *last)
{
    int there, error;

    if (mkdirat(parent, last, 0700) < 0) {
        if (errno != EEXIST)
            return -errno;
        there = beneath_open(&u->beneath, u->member.name, O_PATH | O_DIRECTORY);
        if (there < 0) {
            error = clear_way(u, parent, last);
            if (error)
                return error;
            if (mkdirat(parent, last, 0700) < 0)
                return -errno;
        }
        file_close(&there);
    }
    return delay(u, u->member.name);
}

int untar_make(struct untar *u)
{
    struct tar_member *member = &u->member;
    const char *last;
    int parent, error = plain_name(member->name);

    if (error)
        return error;
    if (member->name[0] == '\0') /* the directory itself */
        return member->type == '5' || member->type == 'D' ? delay(u, "") : -EINVAL;
    parent = find_parent(u, member->name, &last);
    if (parent < 0)
        return parent;
    switch (member->type) {
    case '0':
        return make_file(u, parent, last);
    case '1':
        return make_hard_link(u, parent, last);
    case '5': case 'D':
        return make_directory(u, parent, last);
    default:
        return make_special(u, parent, last);
    }
}

void untar_finish_directories(struct untar *u)
{
    /* The deepest first: a mode may close the way to what is below. */
    for (size_t i = u->delayed_names.count; i-- > 0;) {
        const struct delayed *said = &u->delayed[i];
        const struct timespec times[] = {{.tv_nsec = UTIME_OMIT}, said->mtime};
        const char *name = u->delayed_names.bytes + u->delayed_names.at[i];
        CLEAN_FD int directory = beneath_open(&u->beneath, name, O_RDONLY | O_DIRECTORY | O_NONBLOCK);
        bool owned;

        if (directory < 0)
            continue;
        if (own(u, directory, "", said->uid, said->gid, &owned) == 0 && fchmod(directory, mode_of(said->mode, owned)) == 0)
            futimens(directory, times);
    }
}
