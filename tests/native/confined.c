/* For tests: the filter as text, and a program run under a confinement in a user namespace of its own.
 *   confined filter                         the filter of this architecture, an instruction a line: code jt jf k
 *   confined keyed                          the same for who says the key 1, 2, 3, 2^32 - 1
 *   confined compile VERDICT...             the same for a table of verdicts
 *   confined run [privileges] [bare] ARG... `bare`: without the filter */
#include "common/confine.h"
#include "common/seccomp.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int print(const struct sock_filter *program, int length)
{
    for (int i = 0; i < length; i++)
        printf("%u %u %u %u\n", program[i].code, program[i].jt, program[i].jf, program[i].k);
    return length < 0;
}

static int compile(char **words, int count)
{
    static struct sock_filter program[BPF_MAXINSNS];
    uint8_t verdicts[1024];

    for (int i = 0; i < count; i++)
        verdicts[i] = (uint8_t)atoi(words[i]);
    return print(program, seccomp_compile(verdicts, (size_t)count, NULL, program, BPF_MAXINSNS));
}

static int write_file(const char *path, const char *text)
{
    int file = open(path, O_WRONLY);
    ssize_t written = write(file, text, strlen(text));

    close(file);
    return written < 0 ? -1 : 0;
}

static int become_root_of_a_namespace(void)
{
    char users[64], groups[64];

    snprintf(users, sizeof users, "0 %d 1", geteuid());
    snprintf(groups, sizeof groups, "0 %d 1", getegid());
    if (unshare(CLONE_NEWUSER) < 0 || write_file("/proc/self/setgroups", "deny") < 0)
        return -1;
    return write_file("/proc/self/uid_map", users) < 0 || write_file("/proc/self/gid_map", groups) < 0 ? -1 : 0;
}

static int run(char **words, const struct sock_fprog *filter)
{
    struct confinement confinement = {.capabilities = confine_default_capabilities(), .no_new_privileges = true, .filter = filter};

    for (;; words++) {
        if (strcmp(*words, "privileges") == 0)
            confinement.no_new_privileges = false;
        else if (strcmp(*words, "bare") == 0)
            confinement.filter = NULL;
        else
            break;
    }
    if (become_root_of_a_namespace() < 0) {
        perror("user namespace");
        return 125;
    }
    int error = confine_self(&confinement);
    if (error < 0) {
        fprintf(stderr, "confine: %s\n", strerror(-error));
        return 126;
    }
    execvp(*words, words);
    return 127;
}

int main(int argc, char **argv)
{
    static const uint32_t key[CONFINE_KEY_WORDS] = {1, 2, 3, UINT32_MAX};
    struct sock_fprog filter;

    if (argc < 2 || confine_build_filter(&filter, strcmp(argv[1], "keyed") == 0 ? key : NULL) < 0)
        return 1;
    if (strcmp(argv[1], "filter") == 0 || strcmp(argv[1], "keyed") == 0)
        return print(filter.filter, filter.len);
    if (strcmp(argv[1], "compile") == 0)
        return compile(argv + 2, argc - 2);
    return run(argv + 2, &filter);
}
