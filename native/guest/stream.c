#include "guest/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    CREDIT_STEP = WIRE_WINDOW / 4, /* so few credit frames, and the window never closes on a program that reads */
    TERMINAL_HOLDS = 128 << 10,    /* more than a terminal can hold: what comes beyond it was printed after the end */
    END_OF_FILE = 4,               /* what a terminal's user types for it */
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

static void give_credit(struct guest *guest, struct input *input, size_t taken)
{
    input->taken += (uint32_t)taken;
    if (input->taken < CREDIT_STEP || input->ended)
        return;
    link_send(guest, WIRE_CREDIT, WIRE_STDIN, input->action->id, &input->taken, sizeof input->taken);
    input->credit += input->taken;
    input->taken = 0;
}

static void nobody_reads(struct guest *guest, struct input *input)
{
    size_t held = input->end - input->begin;

    watch_close(guest, &input->watch);
    input->gone = true;
    input->begin = input->end = 0;
    give_credit(guest, input, held);
}

/* Writes what it takes. How much; 0 if it takes none now. */
static size_t offer(struct guest *guest, struct input *input, const char *bytes, size_t length)
{
    ssize_t put;

    do
        put = write(input->watch.fd, bytes, length);
    while (put < 0 && errno == EINTR);
    if (put >= 0)
        return (size_t)put;
    if (errno != EAGAIN)
        nobody_reads(guest, input);
    return 0;
}

/* Writes what is held, then ends it if it is to end. */
static void push(struct guest *guest, struct input *input)
{
    static const char end = END_OF_FILE;

    if (input->watch.fd < 0)
        return;
    while (input->begin < input->end) {
        size_t put = offer(guest, input, input->bytes + input->begin, input->end - input->begin);

        if (put == 0)
            break;
        input->begin += put;
        give_credit(guest, input, put);
    }
    if (input->watch.fd < 0)
        return;
    if (input->begin < input->end) {
        watch_set(guest, &input->watch, EPOLLOUT);
        return;
    }
    watch_set(guest, &input->watch, 0);
    if (input->ended && (!input->terminal || offer(guest, input, &end, 1) == 1))
        watch_close(guest, &input->watch);
}

static void writable(struct guest *guest, struct watch *watch, uint32_t events)
{
    (void)events;
    push(guest, (struct input *)((char *)watch - offsetof(struct input, watch)));
}

void input_open(struct guest *guest, struct input *input, int fd)
{
    input->watch = (struct watch){.fd = fd, .ready = writable};
    push(guest, input);
}

/* Keeps what the pipe did not take. A window is all that can ever be held. */
static int hold(struct input *input, const char *bytes, size_t length)
{
    if (input->bytes == NULL && (input->bytes = malloc(WIRE_WINDOW)) == NULL)
        return -ENOMEM;
    if (WIRE_WINDOW - input->end < length) {
        memmove(input->bytes, input->bytes + input->begin, input->end - input->begin);
        input->end -= input->begin;
        input->begin = 0;
    }
    if (WIRE_WINDOW - input->end < length)
        return -EPROTO;
    memcpy(input->bytes + input->end, bytes, length);
    input->end += length;
    return 0;
}

int input_data(struct guest *guest, struct input *input, const char *bytes, size_t length)
{
    size_t put = 0;

    if (length > input->credit || input->ended)
        return -EPROTO;
    input->credit -= (uint32_t)length;
    if (input->watch.fd >= 0 && input->begin == input->end)
        put = offer(guest, input, bytes, length);
    give_credit(guest, input, input->gone ? length : put);
    if (input->gone || put == length)
        return 0;
    if (hold(input, bytes + put, length - put) < 0)
        return -EPROTO;
    push(guest, input);
    return 0;
}

void input_end(struct guest *guest, struct input *input)
{
    input->ended = true;
    push(guest, input);
}

void input_close(struct guest *guest, struct input *input)
{
    watch_close(guest, &input->watch);
    free(input->bytes);
    input->bytes = NULL;
    input->begin = input->end = 0;
    input->gone = true;
}
