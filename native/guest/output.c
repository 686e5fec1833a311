#include "guest/internal.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    TERMINAL_HOLDS = 128 << 10, /* more than a terminal can hold: what comes beyond it was printed after the end */
    LISTEN_AFTER_NS = 1000000,
};

static void let_go(struct guest *guest, struct output *output)
{
    if (!output->borrowed) {
        watch_close(guest, &output->watch);
        return;
    }
    if (output->watch.fd >= 0)
        watch_set(guest, &output->watch, 0);
    output->watch.fd = -1;
}

static void throw_away(struct guest *guest, struct output *output)
{
    char nowhere[16384];
    ssize_t got = read(output->watch.fd, nowhere, sizeof nowhere);

    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        let_go(guest, output);
}

/* The bytes it holds now. */
static uint64_t held(const struct output *output)
{
    int count = 0;

    return output->watch.fd >= 0 && ioctl(output->watch.fd, FIONREAD, &count) == 0 && count > 0 ? (uint64_t)count : 0;
}

/* Sends one piece. True if there may be more to send now. */
static bool pump(struct guest *guest, struct output *output)
{
    size_t most = LINK_CHUNK;
    ssize_t got;

    if (output->watch.fd < 0 || output->credit == 0 || link_crowded(guest)) {
        if (output->watch.fd >= 0)
            watch_set(guest, &output->watch, 0);
        if (output->ending && held(output) == 0)
            output->left = 0;
        guest->link.stalled |= link_crowded(guest);
        return false;
    }
    most = most < output->credit ? most : output->credit;
    if (output->ending)
        most = most < output->left ? most : output->left;
    got = read(output->watch.fd, link_room(guest, LINK_CHUNK), most);
    if (got <= 0) {
        if (got < 0 && errno == EINTR)
            return true;
        if (got == 0 || errno != EAGAIN)
            let_go(guest, output);
        output->left = 0;
        return false;
    }
    link_put(guest, WIRE_OUTPUT, output->number, output->action->id, (size_t)got);
    output->credit -= (uint64_t)got;
    if (output->ending)
        output->left -= (uint64_t)got;
    return !output->ending || output->left > 0;
}

static void go_on(struct guest *guest, struct output *output)
{
    if (!output->ending) {
        if (output->watch.fd >= 0 && output->credit > 0 && output->listening)
            watch_set(guest, &output->watch, EPOLLIN);
        return;
    }
    if (output->left == 0)
        return;
    while (pump(guest, output))
        ;
    if (output_finished(output))
        action_sent(guest, output->action);
}

static void readable(struct guest *guest, struct watch *watch, uint32_t events)
{
    struct output *output = (struct output *)((char *)watch - offsetof(struct output, watch));

    (void)events;
    if (output->discard)
        throw_away(guest, output);
    else if (!output->ending)
        pump(guest, output);
}

void output_attach(struct output *output, int fd)
{
    output->watch = (struct watch){.fd = fd, .ready = readable};
}

void output_open(struct guest *guest, struct output *output, int fd)
{
    output_attach(output, fd);
    output->listening = true;
    go_on(guest, output);
}

void outputs_listen(struct guest *guest, struct action *action)
{
    for (int i = 0; i < 2; i++) {
        action->output[i].listening = true;
        if (!output_finished(&action->output[i]))
            go_on(guest, &action->output[i]);
    }
}

static void listen_now(struct guest *guest, struct timer *timer)
{
    outputs_listen(guest, (struct action *)((char *)timer - offsetof(struct action, listen)));
}

void outputs_listen_later(struct guest *guest, struct action *action)
{
    action->listen.expired = listen_now;
    timer_set(guest, &action->listen, now_ns() + LISTEN_AFTER_NS);
}

void output_credit(struct guest *guest, struct output *output, uint32_t bytes)
{
    output->credit += bytes;
    go_on(guest, output);
}

void output_resume(struct guest *guest, struct output *output)
{
    if (!output->discard)
        go_on(guest, output);
}

bool output_finished(const struct output *output)
{
    return output->watch.fd < 0 || (output->ending && output->left == 0);
}

bool output_finish(struct guest *guest, struct output *output)
{
    if (output->watch.fd < 0)
        return true;
    output->ending = true;
    /* A terminal tells of what it holds only as it is read. */
    output->left = output->terminal ? TERMINAL_HOLDS : held(output);
    while (output->left > 0 && pump(guest, output))
        ;
    return output_finished(output);
}

void output_close(struct guest *guest, struct output *output)
{
    output->left = 0;
    let_go(guest, output);
}

void output_discard(struct guest *guest, struct output *output)
{
    output->left = 0;
    output->discard = true;
    if (output->borrowed)
        let_go(guest, output);
    else if (output->watch.fd >= 0)
        watch_set(guest, &output->watch, EPOLLIN);
}
