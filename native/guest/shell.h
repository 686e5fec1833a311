/* A session's bash. It is opaque: executed from a file that may be executed and not read, so that the kernel closes its memory and descriptors to every other process
 * of the sandbox from its first instruction on. It reads commands from a socket and tells their status there; the kernel says who wrote, so nobody else can. */
#ifndef EXCISE_GUEST_SHELL_H
#define EXCISE_GUEST_SHELL_H

#include <sys/types.h>

#include "guest/loop.h"
#include "guest/runner.h"
#include "guest/status.h"

struct action;
struct session;

enum shell_state { SHELL_STARTING, SHELL_GREETING, SHELL_READY, SHELL_ENDED };

struct shell {
    struct session *session; /* NULL: another stands in its place, and what it left still runs */
    enum shell_state state;
    bool emptied;            /* nothing is left below its runner */
    bool greeted;            /* it has been READY */
    struct runner *runner;
    pid_t pid;
    struct watch channel;    /* commands go in, statuses come out */
    int children[2];         /* the kernel's lists of its runner's children, and of its own */
    struct watch pipes[2];   /* its stdout and stderr; watched here only between commands, and read into nothing */
    struct status status;
    struct program_end end;
    char *text;              /* what the channel has not taken yet */
    size_t text_begin, text_end;
    struct timer burial;     /* freed from the loop: this turn's events may still name it */
    struct shell *next;
};

/* The descriptor of an execute-only bash: the one the guest was given, or a copy of the sandbox's own, made once and kept in `*kept`. -errno: there is no bash. */
int shell_program(struct guest *guest, int *kept);

/* Called before such a file is executed: without the right to read it all the same. Raw system calls only. 0 or -errno. */
int shell_conceal(void);

/* Starts one as the action's request says; what that points to must live until it is READY. NULL: `*error` says why. */
struct shell *shell_start(struct guest *guest, struct session *session, const struct action *action, int program, int *error);

/* Gives it a command; its status comes to session_status(). 0 or -errno. */
int shell_command(struct guest *guest, struct shell *shell, const char *script, bool merge);
/* SIGINT, and once more the request for the status. */
void shell_interrupt(struct guest *guest, struct shell *shell);
/* Part of the command is still here: it has not begun. */
bool shell_hearing(const struct shell *shell);
/* It has ended, and left nothing: its runner is not its own any more. */
bool shell_left_nothing(const struct shell *shell);
/* Hears what it has said and nobody has read yet. */
void shell_listen(struct shell *shell);

/* Reads what is in its pipes into nothing; with `on`, also what comes until they are lent again. */
void shell_discard(struct guest *guest, struct shell *shell, bool on);
/* Takes it off the list it is on, `*at`; frees it after this turn. */
void shell_bury(struct guest *guest, struct shell **at);

#endif
