/* One epoll for all the guest waits for: descriptors and deadlines. Callbacks run one after another and never block. */
#ifndef EXCISE_GUEST_LOOP_H
#define EXCISE_GUEST_LOOP_H

#include <stdint.h>
#include <sys/epoll.h>

struct guest;

struct watch {
    int fd;          /* -1: not open */
    uint32_t events; /* what epoll was told; 0: it does not know this descriptor */
    void (*ready)(struct guest *guest, struct watch *watch, uint32_t events);
};

struct timer {
    uint64_t at_ns; /* 0: not set */
    struct timer *next;
    void (*expired)(struct guest *guest, struct timer *timer);
};

struct loop {
    int epoll;
    struct timer *timers;
};

int loop_open(struct loop *loop);

/* Waits once, runs what is ready, then what was due. */
void loop_turn(struct guest *guest);

/* Waits for `events` from now on; 0: no longer. Needed before a close: a copy in a forked process keeps a descriptor in epoll. 0 or -errno. */
int watch_set(struct guest *guest, struct watch *watch, uint32_t events);

/* Stops watching and closes. Nothing happens if it is closed already. */
void watch_close(struct guest *guest, struct watch *watch);

/* Sets, or moves, a timer to `at_ns` of the monotonic clock. */
void timer_set(struct guest *guest, struct timer *timer, uint64_t at_ns);
void timer_clear(struct guest *guest, struct timer *timer);

uint64_t now_ns(void);

#endif
