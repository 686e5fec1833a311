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

/* Until the peer has ended and all it said was passed on. That our side ended is told to the peer, who may go on. That the peer ended is told by the end of
 * the action, which is all the host can see of it; what the host had said before goes out as far as it is taken. */
static int pump(int connection)
{
    struct flow in = {.in = STDIN_FILENO, .out = connection}, out = {.in = connection, .out = STDOUT_FILENO};

    while (!in.done || !out.done) {
        struct pollfd wanted[] = {want(&in), want(&out)};
        bool told = in.done;
        int ready = poll(wanted, 2, out.done ? 0 : -1);

        if (ready < 0 && errno != EINTR)
            return -errno;
        if (ready == 0)
            break;
        if (wanted[0].revents)
            step(&in);
        if (wanted[1].revents)
            step(&out);
        if (out.error) /* reset: nothing goes either way */
            return -out.error;
        if (in.done && !told)
            shutdown(connection, SHUT_WR);
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
