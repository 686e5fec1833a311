/* The streams of an action: what its program prints, within the host's credit; what it reads, within ours. */
#ifndef EXCISE_GUEST_STREAM_H
#define EXCISE_GUEST_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "guest/loop.h"

struct action;

/* Output: a pipe (or terminal) whose bytes go to the host. Without credit, or while the host does not read, it is not read either. */
struct output {
    struct watch watch;
    struct action *action;
    uint8_t number;    /* WIRE_STDOUT or WIRE_STDERR */
    bool terminal;
    bool borrowed;     /* the descriptor is somebody else's: let go of, not closed */
    bool listening;    /* it may be read */
    bool discard;      /* its action has ended: read into nothing */
    uint64_t credit;   /* bytes the host will still take */
    uint64_t left;     /* while ending: bytes still to be sent */
    bool ending;
};

/* Stream `number` of the action is `fd`, which must not block; it is not read yet. */
void output_attach(struct output *output, int fd);
/* The same, and read from now on. */
void output_open(struct guest *guest, struct output *output, int fd);
/* Begins to read what was attached: now, or in a millisecond. What a program that ends within it has printed goes out together with its end, so that the
 * host wakes once. */
void outputs_listen(struct guest *guest, struct action *action);
void outputs_listen_later(struct guest *guest, struct action *action);
void output_credit(struct guest *guest, struct output *output, uint32_t bytes);
/* Reads again what stood still while the host did not read. */
void output_resume(struct guest *guest, struct output *output);
/* The program has ended: send what is in the pipe now and no more. True when all of it was sent. */
bool output_finish(struct guest *guest, struct output *output);
/* True if nothing is left to be sent. */
bool output_finished(const struct output *output);
/* Stop sending. Closes it, or reads what still comes into nothing. */
void output_close(struct guest *guest, struct output *output);
void output_discard(struct guest *guest, struct output *output);

struct input {
    struct watch watch;
    struct action *action;
    bool terminal;
    bool ended;      /* no more will come: close when empty */
    bool gone;       /* nobody reads: what comes is dropped */
    char *bytes;     /* what the pipe did not take yet: at most a window */
    size_t begin, end;
    uint32_t credit; /* bytes the host may still send */
    uint32_t taken;  /* bytes taken since we last gave credit */
};

void input_open(struct guest *guest, struct input *input, int fd);
/* -EPROTO: more than we gave credit for. */
int input_data(struct guest *guest, struct input *input, const char *bytes, size_t length);
void input_end(struct guest *guest, struct input *input);
void input_close(struct guest *guest, struct input *input);

#endif
