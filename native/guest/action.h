/* Actions: the table by id, and the life of one: waiting for its turn, running, ending (its output is being sent), ended (what it left still runs). */
#ifndef EXCISE_GUEST_ACTION_H
#define EXCISE_GUEST_ACTION_H

#include "common/wire.h"
#include "guest/kill.h"
#include "guest/limits.h"
#include "guest/request.h"
#include "guest/runner.h"
#include "guest/stream.h"

enum { ACTIONS_MAX = 1024, ACTION_BUCKETS = 256 };

enum action_state { ACTION_WAITING, ACTION_RUNNING, ACTION_ENDING, ACTION_ENDED };

/* What differs between a program, a file worker and a session's command. */
struct action_kind {
    /* Begin. 0, or -errno: nothing was started. */
    int (*begin)(struct guest *guest, struct action *action);
    /* End everything it started; action_ended() first if it has not been called, then action_empty(). Never both from within this call. */
    void (*kill)(struct guest *guest, struct action *action);
    void (*signal)(struct guest *guest, struct action *action, int number);
    void (*resize)(struct guest *guest, struct action *action, uint32_t rows, uint32_t columns);
    /* ENDED was sent; its output may be taken back. NULL: nothing to do. */
    void (*told)(struct guest *guest, struct action *action);
};

struct action {
    uint32_t id;
    enum action_state state;
    const struct action_kind *kind;
    struct request request;
    struct output output[2]; /* WIRE_STDOUT - 1, WIRE_STDERR - 1 */
    struct input input;
    struct timer deadline;
    struct timer listen; /* its outputs are read from then on */
    struct wire_ended record;
    struct counts counts; /* of the sandbox, as it began */
    bool killing;      /* KILL or the deadline has come */
    uint8_t kill_end;  /* END_KILLED or END_TIMED_OUT */
    bool answer_kill;  /* KILLED is owed */
    bool empty;        /* nothing it started is left */
    struct action *follower; /* begins when this one has ended */
    struct action *next;     /* in its bucket */
    struct action *next_dead;
    /* Of its kind */
    struct runner *runner;   /* a program's */
    struct kill kill;
    int worker;              /* a file worker's process; 0: none */
    uint64_t began_ns;
    struct watch connected;  /* a byte from a worker that says: it has begun */
    void *own;               /* a session's command */
};

struct action *action_find(struct guest *guest, uint32_t id);

/* The main process has ended; what is in the pipes is sent, then ENDED. `record`: exit_code, signal, flags, durations; its `end` may be changed by what
 * the limits say. `alone`: nothing is left running that could still write to the pipes. */
void action_ended(struct guest *guest, struct action *action, const struct wire_ended *record, bool alone);

/* One of its outputs has nothing more to send: ENDED, if that was the last one. */
void action_sent(struct guest *guest, struct action *action);

/* Nothing it started is left: KILLED if that is owed, and it is forgotten once ENDED has been sent. */
void action_empty(struct guest *guest, struct action *action);

/* The deadline, or KILL. */
void action_kill(struct guest *guest, struct action *action, uint8_t end);

/* It was never started, for this errno: an end if a limit of the sandbox is why, else REFUSED. For begin()'s callbacks that come later. */
void action_failed(struct guest *guest, struct action *action, int error);

/* A new action: begins at once, or after the one before it. Keeps the request. */
void action_take(struct guest *guest, uint32_t id, const struct request *request, const struct action_kind *kind);

/* The one before it has ended. */
void action_follow(struct guest *guest, struct action *action, bool succeeded);
void action_unfollow(struct guest *guest, struct action *action);

/* Gives back what the actions forgotten in this turn had. */
void actions_bury(struct guest *guest);

/* Every action is forgotten, without a word: their epoch is over. */
void actions_forget(struct guest *guest);

extern const struct action_kind exec_kind, file_kind, session_kind;

#endif
