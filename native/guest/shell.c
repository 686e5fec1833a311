#include "guest/session.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The shell has no terminal and is interactive all the same: only then does it drop a whole command list on SIGINT and live on. `_excise NONCE [STATUS]` tells a status, once for a
 * nonce, and leaves $? as it was. */
static const char greeting[] = "set +H +o history; unset HISTFILE MAILCHECK; PS1= PS2=; "
                               "_excise() { \\builtin set -- \"$?\" \"$@\"; "
                               "if [[ $2 != \"${_excise_nonce-}\" ]]; then _excise_nonce=$2; \\builtin printf '\\0%s %s\\0' \"$2\" \"${3-$1}\" >&0; fi; "
                               "\\builtin return \"$1\"; }; readonly -f _excise; _excise ";

/* A command is one unit with its own report, so that losing a part of it, to a subshell that reads the channel too, is never success. SIGINT drops the unit: the last line tells
 * that. The empty line is for the parser, which forgets what begins a command after an error in `eval`. */
static const char before[] = "{ \\builtin eval -- \"";
static const char after[] = "\" </dev/null";
static const char merged[] = " 2>&1";
static const char report[] = "; { _excise %s; } 2>/dev/null; }\n\n{ _excise %s 130; } 2>/dev/null\n";
static const char asking[] = "\n\n{ _excise %s 130; } 2>/dev/null\n";

static struct shell *shell_of(struct watch *watch)
{
    return (struct shell *)((char *)watch - offsetof(struct shell, channel));
}

/* Writes what it takes now; the rest when it takes more. */
static void push(struct guest *guest, struct shell *shell)
{
    while (shell->text_begin < shell->text_end) {
        ssize_t put = send(shell->channel.fd, shell->text + shell->text_begin, shell->text_end - shell->text_begin, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && errno == EAGAIN)
            break;
        if (put < 0)
            shell->text_begin = shell->text_end; /* it is gone, and its end will be told */
        else
            shell->text_begin += (size_t)put;
    }
    watch_set(guest, &shell->channel, shell->text_begin < shell->text_end ? EPOLLIN | EPOLLOUT : EPOLLIN);
    if (shell->text_begin == shell->text_end) {
        free(shell->text);
        shell->text = NULL;
        shell->text_begin = shell->text_end = 0;
    }
}

bool shell_hearing(const struct shell *shell)
{
    return shell->text != NULL;
}

/* Reads one piece: how many bytes, 0 at the end, or -errno. Only what the shell itself wrote counts: the kernel names the writer, and to name another takes rights nobody in a
 * sandbox has. */
static int hear(struct shell *shell)
{
    char bytes[1024];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(struct ucred))]; /* and no more: descriptors sent along are closed by the kernel */
    } control;
    struct iovec piece = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(shell->channel.fd, &message, MSG_DONTWAIT);
    const struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    struct ucred writer;

    if (header != NULL && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_CREDENTIALS) {
        memcpy(&writer, CMSG_DATA(header), sizeof writer);
        if (writer.pid == shell->pid)
            status_feed(&shell->status, bytes, (size_t)got);
    }
    return got < 0 ? -errno : (int)got;
}

bool shell_left_nothing(const struct shell *shell)
{
    return shell->emptied || (shell->state == SHELL_ENDED && !shell->end.left_running);
}

void shell_listen(struct shell *shell)
{
    while (!shell->status.told && hear(shell) > 0)
        ;
}

static void heard(struct guest *guest, struct watch *watch, uint32_t events)
{
    struct shell *shell = shell_of(watch);
    bool told = shell->status.told;

    if (events & EPOLLOUT)
        push(guest, shell);
    if ((events & ~(uint32_t)EPOLLOUT) != 0 && hear(shell) == 0)
        watch_set(guest, watch, 0); /* nobody is left at the other end; the shell's own end is told by its runner */
    if (told || !shell->status.told || shell->session == NULL)
        return;
    if (shell->state == SHELL_GREETING) {
        shell->state = SHELL_READY;
        shell->greeted = true;
        session_ready(guest, shell->session);
    } else {
        session_status(guest, shell->session);
    }
}

static void nowhere(struct guest *guest, struct watch *watch, uint32_t events)
{
    char bytes[16384];
    ssize_t got = read(watch->fd, bytes, sizeof bytes);

    (void)events;
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        watch_set(guest, watch, 0);
}

void shell_discard(struct guest *guest, struct shell *shell, bool on)
{
    char bytes[16384];

    for (int i = 0; i < 2; i++) {
        /* At most what a pipe holds: a writer that goes on must not hold us here. */
        for (int piece = 0; piece < 64 && !on && read(shell->pipes[i].fd, bytes, sizeof bytes) > 0; piece++)
            ;
        if (shell->pipes[i].fd >= 0)
            watch_set(guest, &shell->pipes[i], on ? EPOLLIN : 0);
    }
}

/* Takes over `text`. */
static void say(struct guest *guest, struct shell *shell, char *text, size_t length)
{
    free(shell->text);
    shell->text = text;
    shell->text_begin = 0;
    shell->text_end = length;
    push(guest, shell);
}

static void say_formatted(struct guest *guest, struct shell *shell, const char *format)
{
    char *text;
    int length = asprintf(&text, format, shell->status.nonce);

    if (length >= 0)
        say(guest, shell, text, (size_t)length);
}

/* In double quotes, because bash takes time by the square of the quotes in single ones. */
static bool is_special(char byte)
{
    return byte == '"' || byte == '$' || byte == '`' || byte == '\\';
}

static char *put_quoted(char *at, const char *script)
{
    for (; *script != 0; script++) {
        if (is_special(*script))
            *at++ = '\\';
        *at++ = *script;
    }
    return at;
}

int shell_command(struct guest *guest, struct shell *shell, const char *script, bool merge)
{
    size_t length = 0;
    char *text, *at;

    for (const char *byte = script; *byte != 0; byte++)
        length += is_special(*byte) ? 2 : 1;
    text = malloc(sizeof before + length + sizeof after + sizeof merged + sizeof report + 2 * NONCE_BYTES);
    if (text == NULL)
        return -ENOMEM;
    if (status_expect(&shell->status) < 0) {
        free(text);
        return -EIO;
    }
    at = put_quoted(stpcpy(text, before), script);
    at = stpcpy(at, after);
    if (merge)
        at = stpcpy(at, merged);
    at += sprintf(at, report, shell->status.nonce, shell->status.nonce);
    say(guest, shell, text, (size_t)(at - text));
    return 0;
}

void shell_interrupt(struct guest *guest, struct shell *shell)
{
    kill(shell->pid, SIGINT);
    if (!shell_hearing(shell))
        say_formatted(guest, shell, asking);
}

static int open_children(const struct guest *guest, int pid)
{
    char path[64];

    snprintf(path, sizeof path, "%d/task/%d/children", pid, pid);
    return openat(guest->proc, path, O_RDONLY | O_CLOEXEC);
}

static void started(struct guest *guest, void *owner)
{
    struct shell *shell = owner;
    char *text;
    int length;

    shell->pid = runner_main(shell->runner);
    shell->children[0] = open_children(guest, runner_pid(shell->runner));
    shell->children[1] = open_children(guest, shell->pid);
    shell->state = SHELL_GREETING;
    if (status_expect(&shell->status) < 0)
        return;
    length = asprintf(&text, "%s%s\n", greeting, shell->status.nonce);
    if (length >= 0)
        say(guest, shell, text, (size_t)length);
    session_greeting(guest, shell->session);
}

static void ended(struct guest *guest, void *owner, const struct program_end *end)
{
    struct shell *shell = owner;

    shell->end = *end;
    shell->state = SHELL_ENDED;
    session_shell_ended(guest, shell->session);
}

static void emptied(struct guest *guest, void *owner)
{
    struct shell *shell = owner;

    shell->emptied = true;
    session_shell_emptied(guest, shell);
}

static const struct runner_owner calls = {.started = started, .ended = ended, .emptied = emptied};

/* Its descriptors 0, 1 and 2 into `theirs`. 0 or -errno: then those that were opened are closed with the shell. */
static int open_streams(struct shell *shell, int theirs[3])
{
    int ends[2], on = 1, result;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return -errno;
    shell->channel.fd = ends[0];
    theirs[0] = ends[1];
    if (setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on) < 0)
        return -errno;
    for (int i = 0; i < 2; i++) {
        if ((result = pipe_open(ends, 0)) < 0)
            return result;
        shell->pipes[i].fd = ends[0];
        theirs[i + 1] = ends[1];
    }
    return 0;
}

static int start(struct guest *guest, struct shell *shell, const struct action *action, int program)
{
    static char *argv[] = {"bash", "--noprofile", "--norc", "--noediting", "-i", NULL};
    struct spawn spawn = {.descriptors = {-1, -1, -1, -1, -1, -1, -1, -1}, .close_after = {true, true, true}, .program = program, .argv = argv};
    int result = open_streams(shell, spawn.descriptors);

    spawn.environment = action->request.environment;
    spawn_place(guest, &action->request, &spawn);
    if (result == 0)
        result = runner_start(guest, &spawn, true, &calls, shell, &shell->runner);
    for (int i = 0; i < 3 && result < 0; i++) {
        if (spawn.descriptors[i] >= 0)
            close(spawn.descriptors[i]);
    }
    return result;
}

static void let_go(struct guest *guest, struct shell *shell)
{
    watch_close(guest, &shell->channel);
    for (int i = 0; i < 2; i++)
        watch_close(guest, &shell->pipes[i]);
    for (int i = 0; i < 2; i++) {
        if (shell->children[i] >= 0)
            close(shell->children[i]);
    }
    free(shell->text);
    shell->text = NULL;
}

struct shell *shell_start(struct guest *guest, struct session *session, const struct action *action, int program, int *error)
{
    struct shell *shell = calloc(1, sizeof *shell);

    *error = -ENOMEM;
    if (shell == NULL)
        return NULL;
    shell->session = session;
    shell->children[0] = shell->children[1] = -1;
    shell->channel = (struct watch){.fd = -1, .ready = heard};
    for (int i = 0; i < 2; i++)
        shell->pipes[i] = (struct watch){.fd = -1, .ready = nowhere};
    if ((*error = start(guest, shell, action, program)) == 0)
        return shell;
    let_go(guest, shell);
    free(shell);
    return NULL;
}

static void bury(struct guest *guest, struct timer *timer)
{
    (void)guest;
    free((char *)timer - offsetof(struct shell, burial));
}

void shell_bury(struct guest *guest, struct shell **at)
{
    struct shell *shell = *at;

    *at = shell->next;
    let_go(guest, shell);
    shell->burial.expired = bury;
    timer_set(guest, &shell->burial, 1);
}
