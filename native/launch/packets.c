#include "launch/packets.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

union control {
    struct cmsghdr aligned;
    char bytes[CMSG_SPACE(PACKET_DESCRIPTORS * sizeof(int))];
};

int packet_send(int socket, const void *bytes, size_t length, const int *descriptors, size_t count)
{
    union control control;
    struct iovec part = {.iov_base = (void *)bytes, .iov_len = length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;

    if (count > PACKET_DESCRIPTORS)
        return -E2BIG;
    if (count > 0) {
        struct cmsghdr *head = &control.aligned;

        memset(&control, 0, CMSG_SPACE(count * sizeof *descriptors));
        *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(count * sizeof *descriptors)};
        memcpy(CMSG_DATA(head), descriptors, count * sizeof *descriptors);
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(count * sizeof *descriptors);
    }
    do {
        sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    return sent < 0 ? -errno : 0;
}

static size_t take_descriptors(struct msghdr *message, int *descriptors, size_t room, bool *dropped)
{
    size_t taken = 0;

    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
        size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof *descriptors;

        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t index = 0; index < count; index++) {
            int descriptor;

            memcpy(&descriptor, CMSG_DATA(head) + index * sizeof descriptor, sizeof descriptor);
            if (taken < room) {
                descriptors[taken++] = descriptor;
            } else {
                close(descriptor);
                *dropped = true;
            }
        }
    }
    return taken;
}

ssize_t packet_receive(int socket, void *bytes, size_t size, int *descriptors, size_t *count, bool wait)
{
    union control control;
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    size_t room = *count;
    bool dropped = false;
    ssize_t length;

    *count = 0;
    do {
        length = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
    } while (length < 0 && errno == EINTR);
    if (length < 0)
        return -errno;
    *count = take_descriptors(&message, descriptors, room, &dropped);
    if (!dropped && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return length;
    while (*count > 0)
        close(descriptors[--*count]);
    return -EMSGSIZE;
}
