#include "guest/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CREDIT_STEP = WIRE_WINDOW / 4, /* so few credit frames, and the window never closes on a program that reads */
    END_OF_FILE = 4,               /* what a terminal's user types for it */
};

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
