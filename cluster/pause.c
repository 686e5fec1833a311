/* What a pod's namespaces live in: it waits, reaps what its pod leaves behind, and ends when it is told to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int number)
{
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

static void end(int number)
{
    (void)number;
    _exit(0);
}

int main(void)
{
    struct sigaction reaping = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP}, ending = {.sa_handler = end};

    if (sigaction(SIGCHLD, &reaping, NULL) < 0 || sigaction(SIGTERM, &ending, NULL) < 0 || sigaction(SIGINT, &ending, NULL) < 0)
        return 1;
    for (;;)
        pause();
}
