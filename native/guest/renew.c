/* A machine that was copied while it ran would draw the random numbers of its copies, and have their names. */
#include "guest/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int renew_random(const struct wire_renewal *renewal)
{
    struct {
        struct rand_pool_info info;
        uint8_t seed[WIRE_SEED_BYTES];
    } pool = {.info = {.entropy_count = 8 * WIRE_SEED_BYTES, .buf_size = WIRE_SEED_BYTES}};
    int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC), result = 0;

    if (fd < 0)
        return -errno;
    memcpy(pool.info.buf, renewal->seed, sizeof renewal->seed);
    /* The second makes it count at once: the generator would else go on with what it has for minutes. */
    if (ioctl(fd, RNDADDENTROPY, &pool) < 0 || ioctl(fd, RNDRESEEDCRNG) < 0)
        result = -errno;
    close(fd);
    explicit_bzero(&pool, sizeof pool);
    return result;
}

static int renew_clock(const struct wire_renewal *renewal)
{
    const struct timespec now = {.tv_sec = (time_t)(renewal->time_ns / 1000000000), .tv_nsec = (long)(renewal->time_ns % 1000000000)};

    return clock_settime(CLOCK_REALTIME, &now) < 0 ? -errno : 0;
}

/* In place of what is there, and at no link's other end: an image may have put anything under this name. */
static int write_id(const char *hex)
{
    static const char path[] = "/etc/machine-id", beside[] = "/etc/.machine-id.new";
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444), result = 0;

    if (fd < 0)
        return errno == EEXIST ? (unlink(beside), -EAGAIN) : errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    if (dprintf(fd, "%s\n", hex) < 0 || rename(beside, path) < 0)
        result = -errno;
    close(fd);
    return result;
}

static int renew_names(const struct guest *guest, const struct wire_renewal *renewal)
{
    char hex[2 * WIRE_ID_BYTES + 1], boot[40];
    int result;

    for (size_t at = 0; at < WIRE_ID_BYTES; at++)
        snprintf(hex + 2 * at, 3, "%02x", renewal->id[at]);
    if (sethostname(hex, 12) < 0)
        return -errno;
    /* Of the same bits, the other way round: nobody should be able to tell one from the other's name. */
    snprintf(boot, sizeof boot, "%.8s-%.4s-%.4s-%.4s-%.12s\n", hex + 24, hex + 20, hex + 16, hex + 12, hex);
    if (pwrite(guest->config->machine->boot_id, boot, strlen(boot), 0) < 0)
        return -errno;
    result = write_id(hex);
    if (result == -EAGAIN)
        result = write_id(hex);
    /* A full disk is the sandbox's own doing; it keeps the name it had. */
    return result == -ENOSPC || result == -EDQUOT || result == -EAGAIN ? 0 : result;
}

int renew(const struct guest *guest, const struct wire_renewal *renewal)
{
    static const uint8_t none[WIRE_ID_BYTES];
    int result = renew_random(renewal);

    if (result == 0)
        result = renew_clock(renewal);
    /* Without an id it is the machine that it was, and stood still for a while. */
    if (result < 0 || memcmp(renewal->id, none, sizeof none) == 0)
        return result;
    return renew_names(guest, renewal);
}
