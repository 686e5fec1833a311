/* The sequence. Whatever fails is said on the console, and the machine ends: its host reads the console's tail. */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boot/boot.h"
#include "common/confine.h"
#include "guest/guest.h"

int boot_failed(int error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fprintf(stderr, "excise-boot: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, ": %s\n", strerror(error));
    va_end(arguments);
    return -error;
}

static int mount_first(void)
{
    static const char *const kinds[][2] = {{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}};

    for (size_t at = 0; at < sizeof kinds / sizeof *kinds; at++) {
        mkdir(kinds[at][1], 0755);
        if (mount(kinds[at][0], kinds[at][1], kinds[at][0], 0, NULL) < 0 && errno != EBUSY)
            return boot_failed(errno, "mount %s", kinds[at][1]);
    }
    return 0;
}

static int read_options(struct options *options)
{
    char line[4096] = "";
    int file = open("/proc/cmdline", O_RDONLY | O_CLOEXEC), result;

    if (file < 0 || read(file, line, sizeof line - 1) < 0)
        return boot_failed(errno, "read the command line");
    close(file);
    result = options_parse(options, line);
    return result < 0 ? boot_failed(-result, "understand the command line %s", line) : 0;
}

static int raise_loopback(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int result = fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0 ? -errno : 0;

    if (fd >= 0)
        close(fd);
    return result < 0 ? boot_failed(-result, "raise the loopback") : 0;
}

static void be_guest(const struct options *options, const struct groups *groups, int port, int boot_id, bool first)
{
    struct guest_machine machine = {.boot_id = boot_id};
    struct confinement confinement = {.capabilities = confine_default_capabilities()};
    struct guest_config config = {
        .link_in = port,
        .link_out = port,
        .memory_events = groups->memory_events,
        .memory_tasks = -1,
        .cgroup = groups->programs,
        .pids_events = groups->pids_events,
        .proc = -1,
        .shell = -1,
        .disk_limited = options->disk_bytes > 0 || options->inodes > 0,
        .pid1 = first,
        .confinement = &confinement,
        .machine = first ? &machine : NULL,
        .talk = -1,
    };

    guest_main(&config);
    boot_failed(EIO, "serve the host");
}

/* The image's own first process, as in a machine that is nobody's sandbox; the guest, if it is wanted, is beside it. */
static void be_init(const struct options *options, int port)
{
    static const struct groups none = {-1, -1, -1};
    char *const arguments[] = {(char *)options->init, NULL};

    if (port >= 0 && fork() == 0) {
        setsid();
        be_guest(options, &none, port, -1, false);
        _exit(1);
    }
    close(port);
    execv(options->init, arguments);
    boot_failed(errno, "execute %s", options->init);
}

static int boot(void)
{
    struct options options;
    struct groups groups = {-1, -1, -1};
    bool own = false;
    int port = -1, boot_id = -1, result = mount_first();

    if (result == 0)
        result = read_options(&options);
    if (result == 0 && options.probe)
        return boot_failed(0, "probe"); /* what the host looks for on the console */
    if (result == 0)
        result = modules_load();
    if (result < 0)
        return result;
    own = options.init[0] != 0;
    if (options.guest && (port = options.vsock > 0 ? port_listen((unsigned)options.vsock) : port_open()) < 0)
        return port;
    if (!own)
        result = groups_make(&options, &groups);
    if (result == 0)
        result = raise_loopback();
    if (result == 0)
        result = root_make(&options, &boot_id);
    if (result < 0)
        return result;
    (void)!sethostname("excise", 6);
    if (port >= 0 && options.vsock > 0 && (port = port_accept(port)) < 0)
        return port;
    if (own)
        be_init(&options, port);
    else
        be_guest(&options, &groups, port, boot_id, true);
    return -EIO;
}

int main(void)
{
    /* On the host it is asked one thing: how fast the counter runs by which the kernel inside will tell the time. */
    if (getpid() != 1)
        return printf("%u\n", clock_khz()) < 0;
    boot();
    fflush(stderr);
    reboot(RB_AUTOBOOT); /* the machine was started with -no-reboot: this ends it */
    return 1;
}
