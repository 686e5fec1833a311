#include "launch/serve.h"

#include "launch/launcher.h"
#include "launch/packets.h"
#include "launch/plan.h"
#include "launch/request.h"
#include "launch/sandbox.h"
#include "launch/uppers.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EVENTS = 64, REQUEST_DESCRIPTORS = 2, BUSY_MS = 2 };

/* What an event is about: a sandbox, or one of these. Every other pointer in the set is a sandbox's. */
static char CONTROL, CHILDREN, CLIENT;

/* Children's ends come as one signal: a pidfd for each sandbox would be copied and closed again by every fork. */
static int watch_children(struct launcher *launcher)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &CHILDREN};
    sigset_t set;
    int signals;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    if (sigprocmask(SIG_BLOCK, &set, NULL))
        return -errno;
    signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals < 0 || epoll_ctl(launcher->epoll, EPOLL_CTL_ADD, signals, &event))
        return -errno;
    return signals;
}

/* The socket alone does not tell that the client died: a child that it forked holds a copy. */
static int watch_client(struct launcher *launcher)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &CLIENT};
    int client = (int)syscall(SYS_pidfd_open, getppid(), 0);

    return client < 0 || epoll_ctl(launcher->epoll, EPOLL_CTL_ADD, client, &event) ? -errno : 0;
}

static int watch_control(struct launcher *launcher, int operation, bool room)
{
    struct epoll_event event = {.events = EPOLLIN | (room ? EPOLLOUT : 0), .data.ptr = &CONTROL};

    return epoll_ctl(launcher->epoll, operation, launcher->replies.control, &event) ? -errno : 0;
}

static struct plan plan; /* large, and one at a time */

static int root(struct launcher *launcher, uint32_t id, const char *fields, size_t length)
{
    struct failure failure = {0};

    if (plan_parse(&plan, false, fields, length, NULL, 0, &failure))
        return replies_rooted(&launcher->replies, id, 0, &failure);
    return sandbox_root(launcher, id, &plan);
}

static int create(struct launcher *launcher, uint32_t id, const char *fields, size_t length, const int *descriptors, size_t count)
{
    struct failure failure = {0};

    if (plan_parse(&plan, true, fields, length, descriptors, count, &failure)) {
        plan_close(&plan);
        return replies_failed(&launcher->replies, id, &failure);
    }
    return sandbox_create(launcher, id, &plan);
}

/* Requests without descriptors. */
static int serve(struct launcher *launcher, const struct launch_header *header, const char *fields, size_t length)
{
    switch (header->type) {
    case LAUNCH_CLOSE:
        return sandbox_close(launcher, header->id);
    case LAUNCH_ROOT:
        return root(launcher, header->id, fields, length);
    case LAUNCH_OPEN:
        return sandbox_open(launcher, header->id);
    case LAUNCH_MAKE:
        return sandbox_make_layer(launcher, header->id);
    case LAUNCH_DROP:
        layers_drop(&launcher->layers, header->id);
        return 0;
    default:
        return -EPROTO;
    }
}

/* 0; 1: the client is gone; or -errno. */
static int hear_client(struct launcher *launcher)
{
    static char packet[PLAN_PACKET_BYTES];
    int descriptors[REQUEST_DESCRIPTORS];
    size_t count = REQUEST_DESCRIPTORS;
    struct launch_header header;
    ssize_t length = packet_receive(launcher->replies.control, packet, sizeof packet, descriptors, &count, false);

    if (length == -EAGAIN)
        return 0;
    if (length <= 0)
        return length == 0 || length == -ECONNRESET ? 1 : (int)length;
    if ((size_t)length >= sizeof header) {
        memcpy(&header, packet, sizeof header);
        if (header.type == LAUNCH_CREATE)
            return create(launcher, header.id, packet + sizeof header, (size_t)length - sizeof header, descriptors, count);
        if (count == 0)
            return serve(launcher, &header, packet + sizeof header, (size_t)length - sizeof header);
    }
    while (count > 0)
        close(descriptors[--count]);
    return -EPROTO;
}

static int handle(struct launcher *launcher, const struct epoll_event *event, bool *children)
{
    if (event->data.ptr == &CHILDREN) {
        *children = true;
        return 0;
    }
    if (event->data.ptr == &CONTROL)
        return event->events & (EPOLLIN | EPOLLHUP | EPOLLERR) ? hear_client(launcher) : 0;
    if (event->data.ptr == &CLIENT)
        return 1;
    return sandbox_hear(launcher, event->data.ptr);
}

static int reap(struct launcher *launcher, int signals)
{
    struct signalfd_siginfo news;

    while (read(signals, &news, sizeof news) > 0)
        ;
    return sandbox_reap(launcher);
}

/* Events of one round, then the dead: an event of this round may be about a sandbox that reaping frees. 0; 1: the client is gone; or -errno. */
static int take_round(struct launcher *launcher, int signals, bool *busy)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(launcher->epoll, events, EVENTS, *busy ? BUSY_MS : -1);
    bool children = *busy;
    int result = count < 0 && errno != EINTR ? -errno : 0;

    for (int index = 0; result == 0 && index < count; index++)
        result = handle(launcher, &events[index], &children);
    if (result == 0 && children) {
        result = reap(launcher, signals);
        *busy = result == 1;
        result = result == 1 ? 0 : result;
    }
    return result;
}

int launcher_serve(struct launcher *launcher)
{
    int signals = watch_children(launcher), waiting = 0;
    int result = signals < 0 ? signals : watch_control(launcher, EPOLL_CTL_ADD, false);
    bool busy = false;

    if (result == 0)
        result = watch_client(launcher);
    while (result == 0) {
        int before = waiting;

        result = take_round(launcher, signals, &busy);
        waiting = replies_flush(&launcher->replies);
        if (result == 0 && waiting < 0)
            result = waiting;
        else if (result == 0 && waiting != before)
            result = watch_control(launcher, EPOLL_CTL_MOD, waiting);
    }
    return result < 0 ? result : 0;
}
