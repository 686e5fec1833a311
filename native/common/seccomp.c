#include "common/seccomp.h"

#include "common/confine.h"
#include "common/seccomp_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/netlink.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
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
    RULE_CONDITIONS = CONFINE_KEY_WORDS,
    KEY_ARGUMENT = 2, /* clone3 has two arguments; the registers of the others are nobody's */
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

/* The first process is the guest. Where there is more than one user, its ids refuse this too, and those of its runners. */
static const struct rule prlimit_rules[] = {{REFUSE(EPERM), {{IS, 0, 1}}}, {SECCOMP_RET_ALLOW, {{0}}}};

/* The guard's: the first process, by its number, as a group, and as whom a descriptor tells of its events, by whatever signal one likes. */
static const struct rule first_rules[] = {{REFUSE(EPERM), {{IS, 0, 1}}}, {SECCOMP_RET_ALLOW, {{0}}}};
static const struct rule group_rules[] = {{REFUSE(EPERM), {{IS, 1, 1}}}, {SECCOMP_RET_ALLOW, {{0}}}};
static const struct rule owner_rules[] = {
    {REFUSE(EPERM), {{IS, 1, F_SETOWN}, {IS, 2, 1}}},
    {REFUSE(EPERM), {{IS, 1, F_SETOWN}, {IS, 2, 0xffffffff}}},
    {REFUSE(EPERM), {{IS, 1, F_SETOWN_EX}}}, /* these three take a pointer, where a filter cannot look */
    {SECCOMP_RET_ALLOW, {{0}}},
};
static const struct rule owner_ioctl_rules[] = {
    {REFUSE(EPERM), {{IS, 1, FIOSETOWN}}},
    {REFUSE(EPERM), {{IS, 1, SIOCSPGRP}}},
    {SECCOMP_RET_ALLOW, {{0}}},
};

/* The verdict of a call with rules is VERDICT_RULES plus its place here; from GUARD on, only the guard's. */
enum { GUARD = 7 };
static const struct {
    uint16_t call;
    const struct rule *rules;
} seccomp_ruled[] = {
    {__NR_clone, clone_rules},
    {__NR_unshare, unshare_rules},
    {__NR_personality, personality_rules},
    {__NR_ioctl, ioctl_rules},
    {__NR_socket, socket_rules},
    {__NR_socketpair, socketpair_rules},
    {__NR_prlimit64, prlimit_rules},
    {__NR_kill, first_rules},
    {__NR_tkill, first_rules},
    {__NR_tgkill, first_rules},
    {__NR_rt_sigqueueinfo, first_rules},
    {__NR_rt_tgsigqueueinfo, first_rules},
    {__NR_pidfd_open, first_rules},
    {__NR_prlimit64, prlimit_rules},
    {__NR_setpgid, group_rules},
    {__NR_fcntl, owner_rules},
    {__NR_ioctl, owner_ioctl_rules},
};

/* Writes from the last instruction to the first, since jumps only lead forward: whatever is jumped to has been written. The length is what installing costs (the kernel
 * compiles the program each time), so answers are written once and shared. A place is how far from the end an instruction begins. */
struct writer {
    struct sock_filter *end;
    size_t size;
    const uint32_t *key;
    size_t used; /* goes on counting when there is no room */
};

static size_t put(struct writer *writer, struct sock_filter instruction)
{
    writer->used++;
    if (writer->used <= writer->size)
        *(writer->end - writer->used) = instruction;
    return writer->used;
}

static size_t put_load(struct writer *writer, size_t offset)
{
    return put(writer, (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset));
}

/* An answer that stands close enough to be jumped to; a new one otherwise. */
static size_t put_answer(struct writer *writer, uint32_t answer)
{
    for (size_t place = writer->used; place > 0 && place <= writer->size && writer->used - place < UINT8_MAX - 2; place--) {
        const struct sock_filter *instruction = writer->end - place;

        if (instruction->code == (BPF_RET | BPF_K) && instruction->k == answer)
            return place;
    }
    return put(writer, (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer));
}

/* A place within reach of the next two instructions: a conditional jump reaches 255 further, an unconditional one everything. */
static size_t put_bridge(struct writer *writer, size_t place)
{
    if (writer->used - place < UINT8_MAX - 2)
        return place;
    return put(writer, (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, (uint32_t)(writer->used - place)));
}

static size_t put_jump(struct writer *writer, uint16_t test, uint32_t value, size_t yes, size_t no)
{
    yes = put_bridge(writer, yes);
    no = put_bridge(writer, no);
    return put(writer, (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_K | test, value, (uint8_t)(writer->used - yes), (uint8_t)(writer->used - no)));
}

/* `otherwise` is where the rules after it begin. */
static size_t put_rule(struct writer *writer, const struct rule *rule, size_t otherwise)
{
    size_t place = put_answer(writer, rule->answer);

    for (unsigned i = RULE_CONDITIONS; i-- > 0;) {
        const struct condition *condition = &rule->conditions[i];

        if (condition->test == ALWAYS)
            continue;
        put_jump(writer, condition->test == IS ? BPF_JEQ : BPF_JSET, condition->value, place, otherwise);
        place = put_load(writer, offsetof(struct seccomp_data, args) + 8u * condition->argument);
    }
    return place;
}

static size_t put_rules(struct writer *writer, const struct rule *rules)
{
    size_t last = 0, place;

    while (rules[last].conditions[0].test != ALWAYS)
        last++;
    place = put_answer(writer, rules[last].answer);
    while (last-- > 0)
        place = put_rule(writer, &rules[last], place);
    return place;
}

static size_t put_key(struct writer *writer)
{
    struct rule rules[] = {{SECCOMP_RET_ALLOW, {{0}}}, {REFUSE(ENOSYS), {{0}}}};

    for (unsigned word = 0; word < CONFINE_KEY_WORDS; word++)
        rules[0].conditions[word] = (struct condition){IS, (uint8_t)(KEY_ARGUMENT + word), writer->key[word]};
    return put_rules(writer, rules);
}

static size_t put_verdict(struct writer *writer, uint8_t verdict)
{
    switch (verdict) {
    case VERDICT_ENOSYS:
        return put_answer(writer, REFUSE(ENOSYS));
    case VERDICT_ALLOW:
        return put_answer(writer, SECCOMP_RET_ALLOW);
    case VERDICT_EPERM:
        return put_answer(writer, REFUSE(EPERM));
    case VERDICT_KEY:
        return put_key(writer);
    default:
        return put_rules(writer, seccomp_ruled[verdict - VERDICT_RULES].rules);
    }
}

/* Neighbours with one verdict are one range; the last begins at `count` or before and has no end. */
struct range {
    uint32_t first;
    uint8_t verdict;
};

/* A binary search: the kernel also runs the program once for each number there is when it is installed, to know which are always allowed. */
static size_t put_tree(struct writer *writer, const struct range *ranges, size_t count)
{
    size_t middle = count / 2, below, from;

    if (count == 1)
        return put_verdict(writer, ranges[0].verdict);
    from = put_tree(writer, ranges + middle, count - middle);
    below = put_tree(writer, ranges, middle);
    return put_jump(writer, BPF_JGE, ranges[middle].first, from, below);
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

int seccomp_compile(const uint8_t *verdicts, size_t count, const uint32_t *key, struct sock_filter *program, size_t size)
{
    struct writer writer = {.end = program + size, .size = size, .key = key};
    struct range ranges[CALLS + 1];
    size_t tree, death;

    if (count > CALLS)
        return -ENOSPC;
    tree = put_tree(&writer, ranges, find_ranges(verdicts, count, ranges));
    /* A load must follow the right architecture whatever the tree begins with. */
    if (tree != writer.used)
        put(&writer, (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, (uint32_t)(writer.used - tree)));
    tree = put_load(&writer, offsetof(struct seccomp_data, nr));
    /* Another architecture's calls (int 0x80) are a way round the numbers: death, as on a kernel built without them. x32's are numbers from 2^30 on: unknown, as on one built without x32. */
    death = put_answer(&writer, SECCOMP_RET_KILL_PROCESS);
    put_jump(&writer, BPF_JEQ, ARCHITECTURE, tree, death);
    put_load(&writer, offsetof(struct seccomp_data, arch));
    if (writer.used > size)
        return -ENOSPC;
    memmove(program, program + size - writer.used, writer.used * sizeof *program);
    return (int)writer.used;
}

static void mark(uint8_t *verdicts, const uint16_t *calls, size_t count, uint8_t verdict)
{
    for (size_t i = 0; i < count; i++)
        verdicts[calls[i]] = verdict;
}

/* Takes on the program for these verdicts. 0 or -errno. */
static int build(const uint8_t verdicts[CALLS], const uint32_t *key, struct sock_fprog *program)
{
    struct sock_filter *filter = malloc(BPF_MAXINSNS * sizeof *filter);
    int length;

    if (!filter)
        return -ENOMEM;
    length = seccomp_compile(verdicts, CALLS, key, filter, BPF_MAXINSNS);
    if (length < 0) {
        free(filter);
        return length;
    }
    filter = realloc(filter, (size_t)length * sizeof *filter); /* smaller: it cannot fail */
    *program = (struct sock_fprog){.len = (unsigned short)length, .filter = filter};
    return 0;
}

static void mark_ruled(uint8_t *verdicts, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        verdicts[seccomp_ruled[i].call] = (uint8_t)(VERDICT_RULES + i);
}

int confine_build_filter(struct sock_fprog *program, const uint32_t *key)
{
    uint8_t verdicts[CALLS] = {0};

    mark(verdicts, seccomp_allowed, sizeof seccomp_allowed / sizeof *seccomp_allowed, VERDICT_ALLOW);
    mark(verdicts, seccomp_refused, sizeof seccomp_refused / sizeof *seccomp_refused, VERDICT_EPERM);
    mark_ruled(verdicts, 0, GUARD);
    if (key)
        verdicts[__NR_clone3] = VERDICT_KEY;
    return build(verdicts, key, program);
}

int confine_build_guard(struct sock_fprog *program)
{
    uint8_t verdicts[CALLS];

    memset(verdicts, VERDICT_ALLOW, sizeof verdicts);
    mark_ruled(verdicts, GUARD, sizeof seccomp_ruled / sizeof *seccomp_ruled);
    return build(verdicts, NULL, program);
}
