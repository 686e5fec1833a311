#include "guest/internal.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 64 };

int loop_open(struct loop *loop)
{
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    return loop->epoll < 0 ? -errno : 0;
}

uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int watch_set(struct guest *guest, struct watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    int operation = events == 0 ? EPOLL_CTL_DEL : watch->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;

    if (events == watch->events)
        return 0;
    if (epoll_ctl(guest->loop.epoll, operation, watch->fd, &event) < 0)
        return -errno;
    watch->events = events;
    return 0;
}

void watch_close(struct guest *guest, struct watch *watch)
{
    if (watch->fd < 0)
        return;
    watch_set(guest, watch, 0);
    close(watch->fd);
    watch->fd = -1;
}

void timer_clear(struct guest *guest, struct timer *timer)
{
    if (timer->at_ns == 0)
        return;
    for (struct timer **at = &guest->loop.timers; *at != NULL; at = &(*at)->next) {
        if (*at == timer) {
            *at = timer->next;
            break;
        }
    }
    timer->at_ns = 0;
}

void timer_set(struct guest *guest, struct timer *timer, uint64_t at_ns)
{
    struct timer **at = &guest->loop.timers;

    timer_clear(guest, timer);
    while (*at != NULL && (*at)->at_ns <= at_ns)
        at = &(*at)->next;
    timer->at_ns = at_ns;
    timer->next = *at;
    *at = timer;
}

/* Milliseconds until the first timer, rounded up so that it has expired by then. */
static int patience_ms(const struct loop *loop)
{
    uint64_t now, left;

    if (loop->timers == NULL)
        return -1;
    now = now_ns();
    if (loop->timers->at_ns <= now)
        return 0;
    left = (loop->timers->at_ns - now + 999999) / 1000000;
    return left > 3600000 ? 3600000 : (int)left;
}

static void run_timers(struct guest *guest)
{
    uint64_t now;

    if (guest->loop.timers == NULL)
        return;
    now = now_ns();
    while (guest->loop.timers != NULL && guest->loop.timers->at_ns <= now) {
        struct timer *timer = guest->loop.timers;

        timer_clear(guest, timer);
        timer->expired(guest, timer);
    }
}

void loop_turn(struct guest *guest)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(guest->loop.epoll, events, EVENTS, patience_ms(&guest->loop));

    for (int i = 0; i < count; i++) {
        struct watch *watch = events[i].data.ptr;

        /* One that an earlier callback of this turn has closed, or asks nothing of any more, is still in the list. */
        if (watch->fd >= 0 && watch->events != 0)
            watch->ready(guest, watch, events[i].events);
    }
    run_timers(guest);
}
