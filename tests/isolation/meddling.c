/* What a process of a sandbox can do to others there that are not its own: each way is tried by name. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { GIVE_UP_S = 60 };

/* limit WHOM WHAT: lowers a limit to nothing. WHOM 0 is the parent, which is a runner. */
static int limit(char **words)
{
    const struct rlimit none = {0};
    int whom = atoi(words[0]);

    puts(prlimit(whom ? whom : getppid(), (enum __rlimit_resource)atoi(words[1]), &none, NULL) ? strerror(errno) : "succeeded");
    return 0;
}

/* A program that is traced by its parent, which is a runner, and goes on. */
static int traced_by_parent(char **words)
{
    (void)words;
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGCHLD);
    raise(SIGWINCH);
    return 7;
}

static void trace(int pid, long options)
{
    char path[64], name[64] = "";
    int fd;

    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    if ((fd = open(path, O_RDONLY)) < 0)
        return;
    if (read(fd, name, sizeof name - 1) > 0 && strcmp(name, "sleep\n") == 0 && ptrace(PTRACE_SEIZE, pid, 0, options) == 0) {
        if ((fd = open("/tmp/traced", O_WRONLY | O_CREAT | O_APPEND, 0666)) >= 0)
            dprintf(fd, "%d\n", pid);
    }
}

/* tracer HOW: stays behind, traces every `sleep` it finds, and never waits for one. */
static int tracer(char **words)
{
    long options = strcmp(words[0], "exit") == 0 ? PTRACE_O_TRACEEXIT : 0;

    if (fork() > 0)
        return 0;
    setsid();
    alarm(GIVE_UP_S);
    for (;;) {
        DIR *all = opendir("/proc");
        const struct dirent *entry;

        while (all != NULL && (entry = readdir(all)) != NULL)
            if (isdigit((unsigned char)entry->d_name[0]))
                trace(atoi(entry->d_name), options);
        if (all != NULL)
            closedir(all);
        usleep(2000);
    }
}

/* siblings HOW-MANY: each makes the next, a child of its own parent, and ends. */
static int siblings(char **words)
{
    for (int left = atoi(words[0]); left > 0; left--) {
        if (fork() != 0)
            continue;
        alarm(GIVE_UP_S);
        for (;;)
            if (syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL) > 0)
                _exit(0);
            else
                setsid();
    }
    for (;;)
        pause();
}

/* loops HOW-MANY: leaves them behind. */
static int loops(char **words)
{
    for (int left = atoi(words[0]); left > 0; left--) {
        if (fork() != 0)
            continue;
        alarm(GIVE_UP_S);
        for (;;)
            ;
    }
    return 0;
}

/* Gives its runner, and itself, what the loops leave. */
static int starve(char **words)
{
    const struct sched_param none = {0};

    (void)words;
    sched_setscheduler(getppid(), SCHED_IDLE, &none);
    sched_setscheduler(0, SCHED_IDLE, &none);
    while (getppid() > 0)
        ;
    return 0;
}

/* A sibling that ends well beside a program that does not. */
static int good_sibling(char **words)
{
    (void)words;
    if (syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL) == 0)
        _exit(0);
    usleep(50000);
    return 3;
}

int main(int count, char **words)
{
    static const struct {
        const char *name;
        int (*way)(char **words);
    } ways[] = {{"limit", limit}, {"traced", traced_by_parent}, {"tracer", tracer}, {"siblings", siblings},
                {"loops", loops}, {"starve", starve}, {"good-sibling", good_sibling}};

    for (size_t i = 0; count > 1 && i < sizeof ways / sizeof *ways; i++)
        if (strcmp(words[1], ways[i].name) == 0)
            return ways[i].way(words + 2);
    return 99;
}
