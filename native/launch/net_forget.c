/* Connections outlive the processes that had them: for a minute their ports would be taken, in the next life too. */
#include "launch/failure.h"
#include "launch/net.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_BYTES = 32768 };

struct diag_request {
    struct nlmsghdr head;
    struct inet_diag_req_v2 asked;
};

/* What no process has any more, and the kernel still does. Connections of the door are somebody's, out there. */
static const uint32_t NOBODYS = 1u << TCP_TIME_WAIT | 1u << TCP_FIN_WAIT1 | 1u << TCP_FIN_WAIT2 | 1u << TCP_CLOSING | 1u << TCP_LAST_ACK;

static bool some_are_left(void)
{
    char text[512];
    CLOSES int file = open("/proc/net/sockstat", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    unsigned orphans = 0, waiting = 0;
    const char *line;

    if (length <= 0)
        return true;
    text[length] = '\0';
    line = strstr(text, "TCP: ");
    return !line || sscanf(line, "TCP: inuse %*u orphan %u tw %u", &orphans, &waiting) != 2 || orphans > 0 || waiting > 0;
}

static int ask(int socket, struct diag_request *request, uint16_t type, uint16_t flags)
{
    request->head = (struct nlmsghdr){.nlmsg_len = sizeof *request, .nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | flags};
    return send(socket, request, sizeof *request, 0) == sizeof *request ? 0 : -errno;
}

static int destroy(int socket, uint8_t family, const struct inet_diag_msg *found)
{
    struct diag_request request = {.asked = {.sdiag_family = family, .sdiag_protocol = IPPROTO_TCP, .id = found->id}};
    char answer[1024];
    int error = ask(socket, &request, SOCK_DESTROY, NLM_F_ACK);
    ssize_t length = error ? error : recv(socket, answer, sizeof answer, 0);
    const struct nlmsghdr *head = (const struct nlmsghdr *)answer;

    if (length < (ssize_t)sizeof *head || head->nlmsg_type != NLMSG_ERROR)
        return error;
    error = ((const struct nlmsgerr *)NLMSG_DATA(head))->error;
    return error == -ENOENT ? 0 : error; /* it went by itself */
}

/* 1: there may be more; 0; or -errno. */
static int destroy_all(int lists, int socket, uint8_t family)
{
    struct diag_request request = {.asked = {.sdiag_family = family, .sdiag_protocol = IPPROTO_TCP, .idiag_states = NOBODYS}};
    static char answer[ANSWER_BYTES] __attribute__((aligned(8)));
    int error = ask(lists, &request, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP);

    while (!error) {
        ssize_t length = recv(lists, answer, sizeof answer, 0);
        unsigned left = length < 0 ? 0 : (unsigned)length;

        if (length <= 0)
            return length < 0 ? -errno : 0;
        for (const struct nlmsghdr *head = (const struct nlmsghdr *)answer; !error && NLMSG_OK(head, left); head = NLMSG_NEXT(head, left)) {
            if (head->nlmsg_type == NLMSG_DONE)
                return 0;
            if (head->nlmsg_type == NLMSG_ERROR)
                return ((const struct nlmsgerr *)NLMSG_DATA(head))->error;
            error = destroy(socket, family, NLMSG_DATA(head));
        }
    }
    return error;
}

int net_forget(struct failure *failure)
{
    static const uint8_t FAMILIES[] = {AF_INET, AF_INET6};
    CLOSES int lists = -1;
    CLOSES int one = -1;
    int error = 0;

    if (!some_are_left())
        return 0;
    lists = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    one = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    if (lists < 0 || one < 0)
        error = -errno;
    for (size_t index = 0; !error && index < sizeof FAMILIES; index++)
        error = destroy_all(lists, one, FAMILIES[index]);
    /* A kernel that was built without it: ports stay taken for their minute. */
    return error && error != -EOPNOTSUPP && error != -ENOENT && error != -EPROTONOSUPPORT ? fail(failure, -error, "end the connections of the life before") : 0;
}
