#include "guest/file_work.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

/* One direction: bytes that were read from `in` and not yet written to `out`. */
struct flow {
    int in, out;
    bool ended; /* `in` gave all it has */
    bool done;  /* and all of it was written, or nobody takes it */
    int error;  /* why `in` ended before its end */
    size_t at, end;
    char bytes[FILE_CHUNK];
};

static bool would_block(void)
{
    return errno == EAGAIN || errno == EINTR;
}

static void fill(struct flow *flow)
{
    ssize_t got = read(flow->in, flow->bytes, sizeof flow->bytes);

    if (got < 0 && would_block())
        return;
    flow->ended = got <= 0;
    flow->error = got < 0 ? errno : 0;
    flow->at = 0;
    flow->end = got > 0 ? (size_t)got : 0;
}

static void drain(struct flow *flow)
{
    ssize_t put_now = write(flow->out, flow->bytes + flow->at, flow->end - flow->at);

    if (put_now >= 0)
        flow->at += (size_t)put_now;
    else if (!would_block())
        flow->done = true;
}

/* What the flow waits for: to write what it has, else to read. */
static struct pollfd want(const struct flow *flow)
{
    if (flow->done)
        return (struct pollfd){.fd = -1};
    if (flow->at < flow->end)
        return (struct pollfd){.fd = flow->out, .events = POLLOUT};
    return (struct pollfd){.fd = flow->in, .events = POLLIN};
}

static void step(struct flow *flow)
{
    if (flow->at < flow->end)
        drain(flow);
    else
        fill(flow);
    if (flow->ended && flow->at == flow->end)
        flow->done = true;
}

/* Each end is passed on by itself: a peer may go on after the other fell silent. */
static void pass_on(struct flow *in, struct flow *out)
{
    if (in->done && in->out >= 0) {
        shutdown(in->out, SHUT_WR);
        in->out = -1;
    }
    if (out->done && out->out >= 0) {
        close(out->out);
        out->out = -1;
    }
}

static int pump(int connection)
{
    struct flow in = {.in = STDIN_FILENO, .out = connection}, out = {.in = connection, .out = STDOUT_FILENO};

    while (!in.done || !out.done) {
        struct pollfd wanted[] = {want(&in), want(&out)};

        if (poll(wanted, 2, -1) < 0 && errno != EINTR)
            return -errno;
        if (wanted[0].revents)
            step(&in);
        if (wanted[1].revents)
            step(&out);
        if (out.error) /* reset: nothing goes either way */
            return -out.error;
        pass_on(&in, &out);
    }
    return 0;
}

int file_relay(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons(port),
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    CLEAN_FD int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int fds[] = {STDIN_FILENO, STDOUT_FILENO, connection};

    if (connection < 0)
        return -errno;
    if (connect(connection, (struct sockaddr *)&address, sizeof address) < 0)
        return -errno;
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) | O_NONBLOCK) < 0)
            return -errno;
    (void)!write(STDERR_FILENO, "", 1); /* the guest waits for it: the connection has begun */
    return pump(connection);
}
