/* A link handed over: whoever was started with it beside the guest gives both of its descriptors away, so that no byte passes through a third process. */
#include "guest/arrive.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "guest/file_work.h"

enum { LINK_DESCRIPTORS = 2 };

union control { /* aligned for what is in it */
    struct cmsghdr header;
    char bytes[CMSG_SPACE(LINK_DESCRIPTORS * sizeof(int))];
};

static int name_of(struct sockaddr_un *address, const char *path, const char *suffix)
{
    int length;

    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    length = snprintf(address->sun_path, sizeof address->sun_path, "%s%s", path, suffix);
    return length < 0 || (size_t)length >= sizeof address->sun_path ? -ENAMETOOLONG : 0;
}

/* A socket that listens has its name only when one can connect to it: whoever waits for the name need not try twice. */
static int listen_at(const char *path)
{
    CLEAN_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un early;
    int result = name_of(&early, path, ".early"), listening;

    if (result < 0)
        return result;
    if (fd < 0 || bind(fd, (struct sockaddr *)&early, sizeof early) < 0 || listen(fd, 1) < 0 || rename(early.sun_path, path) < 0)
        return -errno;
    listening = fd;
    fd = -1;
    return listening;
}

static int receive(int connection, int link[2])
{
    union control control;
    char byte;
    struct iovec body = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header;

    if (recvmsg(connection, &message, MSG_CMSG_CLOEXEC) < 0)
        return -errno;
    header = CMSG_FIRSTHDR(&message);
    if (header == NULL || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(LINK_DESCRIPTORS * sizeof(int)))
        return -EPROTO;
    memcpy(link, CMSG_DATA(header), LINK_DESCRIPTORS * sizeof(int));
    return 0;
}

int arrive_wait(const char *path, int link[2])
{
    CLEAN_FD int listening = listen_at(path);
    int connection;

    if (listening < 0)
        return listening;
    /* Never closed: its end is what tells the giver that the guest is gone. */
    if ((connection = accept4(listening, NULL, NULL, SOCK_CLOEXEC)) < 0)
        return -errno;
    unlink(path);
    return receive(connection, link);
}

/* Returns once `path` may have come to be; `events` was watching its directory since before it was looked for. */
static int await_name(int events)
{
    char noise[sizeof(struct inotify_event) + NAME_MAX + 1] __attribute__((aligned(__alignof__(struct inotify_event))));

    return read(events, noise, sizeof noise) < 0 && errno != EINTR ? -errno : 0;
}

static int watch_directory(int events, const char *path)
{
    char directory[sizeof ((struct sockaddr_un *)0)->sun_path] = "";
    const char *cut = strrchr(path, '/');

    if (cut == NULL || (size_t)(cut - path) + 1 >= sizeof directory)
        return -EINVAL;
    memcpy(directory, path, (size_t)(cut - path) + 1);
    return inotify_add_watch(events, directory, IN_MOVED_TO) < 0 ? -errno : 0;
}

static int send_link(int connection)
{
    union control control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(LINK_DESCRIPTORS * sizeof(int))}};
    struct iovec body = {.iov_base = "", .iov_len = 1};
    struct msghdr message = {.msg_iov = &body, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    const int link[LINK_DESCRIPTORS] = {STDIN_FILENO, STDOUT_FILENO};

    memcpy(CMSG_DATA(&control.header), link, sizeof link);
    return sendmsg(connection, &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

int arrive_give(const char *path)
{
    CLEAN_FD int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CLEAN_FD int events = inotify_init1(IN_CLOEXEC);
    struct sockaddr_un address;
    char byte;
    int result = name_of(&address, path, "");

    if (connection < 0 || events < 0)
        return -errno;
    if (result < 0 || (result = watch_directory(events, path)) < 0)
        return result;
    while (connect(connection, (struct sockaddr *)&address, sizeof address) < 0)
        if (errno != ENOENT || (result = await_name(events)) < 0)
            return result < 0 ? result : -errno;
    if ((result = send_link(connection)) < 0)
        return result;
    while (read(connection, &byte, 1) < 0 && errno == EINTR)
        ;
    return 0;
}
