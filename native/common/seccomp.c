#include "common/seccomp.h"

#include "common/confine.h"
#include "common/seccomp_calls.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/netlink.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/socket.h>

#if defined(__x86_64__)
enum { ARCHITECTURE = AUDIT_ARCH_X86_64 };
#elif defined(__aarch64__)
enum { ARCHITECTURE = AUDIT_ARCH_AARCH64 };
#endif

#define REFUSE(number) (SECCOMP_RET_ERRNO | (number))

enum {
    CALLS = 512, /* more than any architecture has; what is above is unknown like any other */
    RULE_CONDITIONS = 2,
};

/* Arguments are compared by their low 32 bits: the kernel, too, takes these calls' arguments as ints and drops what is above. */
enum test { ALWAYS, IS, HAS }; /* HAS: any of these bits */

struct condition {
    uint8_t test;
    uint8_t argument;
    uint32_t value;
};

/* All conditions of a rule must hold; the first rule that holds decides. The last has none. */
struct rule {
    uint32_t answer;
    struct condition conditions[RULE_CONDITIONS];
};

#define NEW_NAMESPACES                                                                                                                                           \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | (uint32_t)CLONE_NEWNET)

static const struct rule clone_rules[] = {{REFUSE(EPERM), {{HAS, 0, NEW_NAMESPACES}}}, {SECCOMP_RET_ALLOW, {{0}}}};

/* CLONE_NEWTIME shares its bit with clone's exit signal: only unshare (and clone3) knows it. */
static const struct rule unshare_rules[] = {{REFUSE(EPERM), {{HAS, 0, NEW_NAMESPACES | 0x80}}}, {SECCOMP_RET_ALLOW, {{0}}}};

/* Asking, 32-bit and old machine names, and the fixed addresses gdb wants. */
static const struct rule personality_rules[] = {
    {SECCOMP_RET_ALLOW, {{IS, 0, 0xffffffff}}},
    {REFUSE(EPERM), {{HAS, 0, ~(uint32_t)(PER_LINUX32 | UNAME26 | ADDR_NO_RANDOMIZE)}}},
    {SECCOMP_RET_ALLOW, {{0}}},
};

/* Typing into another's terminal, pasting into a console, and line disciplines, most of which are old drivers nobody audits. */
static const struct rule ioctl_rules[] = {
    {REFUSE(EPERM), {{IS, 1, TIOCSTI}}},
    {REFUSE(EPERM), {{IS, 1, TIOCLINUX}}},
    {REFUSE(EPERM), {{IS, 1, TIOCSETD}}},
    {SECCOMP_RET_ALLOW, {{0}}},
};

/* Unix, IP (TCP, UDP, ICMP, raw) and the netlink that lists interfaces, as every resolver does. The answers are those of a kernel built without the others, so that programs go on: packet, vsock, alg, key, xdp, sctp, audit ... */
static const struct rule socket_rules[] = {
    {SECCOMP_RET_ALLOW, {{IS, 0, AF_UNIX}}},
    {SECCOMP_RET_ALLOW, {{IS, 0, AF_NETLINK}, {IS, 2, NETLINK_ROUTE}}},
    {REFUSE(EPROTONOSUPPORT), {{IS, 0, AF_NETLINK}}},
    {REFUSE(ESOCKTNOSUPPORT), {{HAS, 1, 0xc}}}, /* only stream, datagram and raw are below 4 */
    {REFUSE(EPROTONOSUPPORT), {{IS, 2, IPPROTO_SCTP}}},
    {REFUSE(EPROTONOSUPPORT), {{IS, 2, IPPROTO_DCCP}}},
    {REFUSE(EPROTONOSUPPORT), {{IS, 2, IPPROTO_MPTCP}}},
    {REFUSE(EPROTONOSUPPORT), {{IS, 2, 256}}}, /* SMC */
    {SECCOMP_RET_ALLOW, {{IS, 0, AF_INET}}},
    {SECCOMP_RET_ALLOW, {{IS, 0, AF_INET6}}},
    {REFUSE(EAFNOSUPPORT), {{0}}},
};

static const struct rule socketpair_rules[] = {{SECCOMP_RET_ALLOW, {{IS, 0, AF_UNIX}}}, {REFUSE(EAFNOSUPPORT), {{0}}}};

/* The verdict of a call with rules is VERDICT_RULES plus its place here. */
static const struct {
    uint16_t call;
    const struct rule *rules;
} seccomp_ruled[] = {
    {__NR_clone, clone_rules}, {__NR_unshare, unshare_rules}, {__NR_personality, personality_rules},
    {__NR_ioctl, ioctl_rules}, {__NR_socket, socket_rules},   {__NR_socketpair, socketpair_rules},
};

struct writer {
    struct sock_filter *program;
    size_t size;
    size_t used; /* goes on counting when there is no room, so that the size needed is known */
};

static void put(struct writer *writer, struct sock_filter instruction)
{
    if (writer->used < writer->size)
        writer->program[writer->used] = instruction;
    writer->used++;
}

static void put_return(struct writer *writer, uint32_t answer)
{
    put(writer, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer));
}

static void put_load(struct writer *writer, size_t offset)
{
    put(writer, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

static void put_rule(struct writer *writer, const struct rule *rule)
{
    unsigned count = 0;

    while (count < RULE_CONDITIONS && rule->conditions[count].test != ALWAYS)
        count++;
    for (unsigned i = 0; i < count; i++) {
        const struct condition *condition = &rule->conditions[i];
        uint16_t jump = condition->test == IS ? BPF_JEQ : BPF_JSET;
        uint8_t past = (uint8_t)(2 * (count - i - 1) + 1); /* the other conditions, a load and a jump each, and the answer */

        put_load(writer, offsetof(struct seccomp_data, args) + 8u * condition->argument);
        put(writer, (struct sock_filter)BPF_JUMP(BPF_JMP | jump | BPF_K, condition->value, 0, past));
    }
    put_return(writer, rule->answer);
}

static void put_verdict(struct writer *writer, uint8_t verdict)
{
    const struct rule *rule;

    switch (verdict) {
    case VERDICT_ENOSYS:
        put_return(writer, REFUSE(ENOSYS));
        return;
    case VERDICT_ALLOW:
        put_return(writer, SECCOMP_RET_ALLOW);
        return;
    case VERDICT_EPERM:
        put_return(writer, REFUSE(EPERM));
        return;
    }
    for (rule = seccomp_ruled[verdict - VERDICT_RULES].rules; rule->conditions[0].test != ALWAYS; rule++)
        put_rule(writer, rule);
    put_rule(writer, rule);
}

/* Neighbours with one verdict are one range; the last begins at `count` and has no end. */
struct range {
    uint32_t first;
    uint8_t verdict;
};

/* A binary search: the kernel runs the program once for each number there is when it is installed, to know which are always allowed. */
static void put_tree(struct writer *writer, const struct range *ranges, size_t count)
{
    struct writer measure = {0};
    size_t middle = count / 2;

    if (count == 1) {
        put_verdict(writer, ranges[0].verdict);
        return;
    }
    put_tree(&measure, ranges, middle);
    if (measure.used <= UINT8_MAX) {
        put(writer, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, ranges[middle].first, (uint8_t)measure.used, 0));
    } else { /* a conditional jump reaches 255 instructions, an unconditional one all of them */
        put(writer, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, ranges[middle].first, 0, 1));
        put(writer, (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, (uint32_t)measure.used));
    }
    put_tree(writer, ranges, middle);
    put_tree(writer, ranges + middle, count - middle);
}

static size_t find_ranges(const uint8_t *verdicts, size_t count, struct range *ranges)
{
    size_t used = 0;

    for (size_t number = 0; number <= count; number++) {
        uint8_t verdict = number < count ? verdicts[number] : VERDICT_ENOSYS;

        if (used == 0 || ranges[used - 1].verdict != verdict)
            ranges[used++] = (struct range){(uint32_t)number, verdict};
    }
    return used;
}

int seccomp_compile(const uint8_t *verdicts, size_t count, struct sock_filter *program, size_t size)
{
    struct writer writer = {.program = program, .size = size};
    struct range ranges[CALLS + 1];

    if (count > CALLS)
        return -ENOSPC;
    put_load(&writer, offsetof(struct seccomp_data, arch));
    put(&writer, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0));
    /* Another architecture's calls (int 0x80) are a way round the numbers: death, as on a kernel built without them. x32's are numbers from 2^30 on: unknown, as on one built without x32. */
    put_return(&writer, SECCOMP_RET_KILL_PROCESS);
    put_load(&writer, offsetof(struct seccomp_data, nr));
    put_tree(&writer, ranges, find_ranges(verdicts, count, ranges));
    return writer.used <= size ? (int)writer.used : -ENOSPC;
}

static void mark(uint8_t *verdicts, const uint16_t *calls, size_t count, uint8_t verdict)
{
    for (size_t i = 0; i < count; i++)
        verdicts[calls[i]] = verdict;
}

int confine_build_filter(struct sock_fprog *program)
{
    uint8_t verdicts[CALLS] = {0};
    struct sock_filter *filter = malloc(BPF_MAXINSNS * sizeof *filter);
    int length;

    if (!filter)
        return -ENOMEM;
    mark(verdicts, seccomp_allowed, sizeof seccomp_allowed / sizeof *seccomp_allowed, VERDICT_ALLOW);
    mark(verdicts, seccomp_refused, sizeof seccomp_refused / sizeof *seccomp_refused, VERDICT_EPERM);
    for (size_t i = 0; i < sizeof seccomp_ruled / sizeof *seccomp_ruled; i++)
        verdicts[seccomp_ruled[i].call] = (uint8_t)(VERDICT_RULES + i);
    length = seccomp_compile(verdicts, CALLS, filter, BPF_MAXINSNS);
    if (length < 0) {
        free(filter);
        return length;
    }
    filter = realloc(filter, (size_t)length * sizeof *filter); /* smaller: it cannot fail */
    *program = (struct sock_fprog){.len = (unsigned short)length, .filter = filter};
    return 0;
}
