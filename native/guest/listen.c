/* A link over TCP, where pods can be reached. Others can reach them too: one who does not know the secret is hung up on. */
#include "guest/arrive.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "guest/file_work.h"

/* Strangers who say nothing may hold so many places; one more takes the oldest's. */
enum { CALLERS = 16 };

struct caller {
    int fd; /* or -1 */
    size_t count;
    char said[ARRIVE_SECRET_BYTES];
};

/* On the loopback, or on every address of either kind; where the kernel has no IPv6, of the other. */
static int listen_on(uint16_t port, bool local)
{
    struct sockaddr_in6 either = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in old = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY)};
    CLEAN_FD int fd = local ? -1 : socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int no = 0, result, listening;

    if (fd >= 0) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
        result = bind(fd, (struct sockaddr *)&either, sizeof either);
    } else {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        result = bind(fd, (struct sockaddr *)&old, sizeof old);
    }
    if (result < 0 || listen(fd, CALLERS) < 0)
        return -errno;
    listening = fd;
    fd = -1;
    return listening;
}

static bool is_secret(const char *said, const char *secret)
{
    unsigned differing = 0;

    for (size_t i = 0; i < ARRIVE_SECRET_BYTES; i++) /* all of it, so that time tells nothing */
        differing |= (unsigned char)(said[i] ^ secret[i]);
    return differing == 0;
}

static void hang_up(struct caller *caller)
{
    close(caller->fd);
    *caller = (struct caller){.fd = -1};
}

/* True if it has said the secret. */
static bool hear(struct caller *caller, const char *secret)
{
    ssize_t got = recv(caller->fd, caller->said + caller->count, ARRIVE_SECRET_BYTES - caller->count, MSG_DONTWAIT);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    caller->count += got > 0 ? (size_t)got : 0;
    if (caller->count == ARRIVE_SECRET_BYTES && is_secret(caller->said, secret))
        return true;
    if (got <= 0 || caller->count == ARRIVE_SECRET_BYTES)
        hang_up(caller);
    return false;
}

static void admit(struct caller callers[CALLERS], size_t *oldest, int fd)
{
    struct caller *place = &callers[*oldest];

    if (place->fd >= 0)
        hang_up(place);
    *place = (struct caller){.fd = fd};
    *oldest = (*oldest + 1) % CALLERS;
}

/* The connection of the first who says the secret. */
static int choose(int listening, const char *secret, struct caller callers[CALLERS])
{
    size_t oldest = 0;

    for (;;) {
        struct pollfd wanted[CALLERS + 1] = {[CALLERS] = {.fd = listening, .events = POLLIN}};

        for (size_t i = 0; i < CALLERS; i++)
            wanted[i] = (struct pollfd){.fd = callers[i].fd, .events = POLLIN};
        if (poll(wanted, CALLERS + 1, -1) < 0 && errno != EINTR)
            return -errno;
        for (size_t i = 0; i < CALLERS; i++) {
            if (wanted[i].revents && hear(&callers[i], secret)) {
                int chosen = callers[i].fd;

                callers[i].fd = -1;
                return chosen;
            }
        }
        if (wanted[CALLERS].revents) {
            int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);

            if (fd >= 0)
                admit(callers, &oldest, fd);
        }
    }
}

int arrive_listen(uint16_t port, bool local, int link[2])
{
    struct caller callers[CALLERS];
    const char *secret = getenv(ARRIVE_SECRET);
    CLEAN_FD int listening = -1;
    int chosen, at_once = 1;

    if (secret == NULL || strlen(secret) != ARRIVE_SECRET_BYTES)
        return -EINVAL;
    if ((listening = listen_on(port, local)) < 0)
        return listening;
    for (size_t i = 0; i < CALLERS; i++)
        callers[i] = (struct caller){.fd = -1};
    chosen = choose(listening, secret, callers);
    for (size_t i = 0; i < CALLERS; i++)
        if (callers[i].fd >= 0)
            hang_up(&callers[i]);
    if (chosen < 0)
        return chosen;
    if (setsockopt(chosen, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once) < 0)
        return -errno;
    /* Whoever hears from it may rely on it that nobody else is let in. */
    close(listening);
    listening = -1;
    link[0] = link[1] = chosen;
    return arrive_tell(chosen);
}
