/* The emulated processor's time stamp counter is the host's. A kernel that measures it against an emulated timer, on a busy host, gets it wrong or hangs. */
#include "boot/boot.h"

#include <time.h>

#ifdef __x86_64__
#include <x86intrin.h>

enum { MEASURE_NS = 50000000 };

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

unsigned clock_khz(void)
{
    const struct timespec span = {.tv_nsec = MEASURE_NS};
    uint64_t begin = now_ns(), first = __rdtsc();

    nanosleep(&span, NULL);
    return (unsigned)((__rdtsc() - first) * 1000000 / (now_ns() - begin));
}
#else
unsigned clock_khz(void)
{
    return 0;
}
#endif
