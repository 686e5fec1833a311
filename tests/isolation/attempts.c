/* Attempts at what sandboxed code must not do: `attempts NAME [ARGUMENT...]`. Each leaves nothing behind when it succeeds, and touches only what it made.
 * Prints "succeeded" and exits 0, or prints what refused it ("EPERM") and exits 1. */
#include "attempts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/keyctl.h>
#include <linux/mount.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static char scratch[4096]; /* a directory of our own, in $TMPDIR */

static int answer(long result)
{
    return result < 0 ? -errno : 0;
}

/* ---- mounts */

static int mounted(const char *source, const char *type, unsigned long flags, const char *data)
{
    int error = answer(mount(source, scratch, type, flags, data));

    if (error == 0)
        umount2(scratch, MNT_DETACH);
    return error;
}

static int mount_type(char **words)
{
    unshare(CLONE_NEWNS); /* where that is allowed, the host sees nothing of it */
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    return mounted("none", words[0], 0, words[1]);
}

static int mount_bind(char **words)
{
    (void)words;
    return mounted("/", NULL, MS_BIND | MS_REC, NULL);
}

static int remount(char **words)
{
    return answer(mount(NULL, words[0], NULL, MS_REMOUNT | MS_BIND, NULL));
}

static int unmount(char **words)
{
    return answer(umount2(words[0], MNT_DETACH));
}

static int new_mount(char **words)
{
    (void)words;
    return answer(syscall(SYS_fsopen, "tmpfs", 0));
}

static int clone_mount(char **words)
{
    int tree = (int)syscall(SYS_open_tree, AT_FDCWD, "/", OPEN_TREE_CLONE | AT_RECURSIVE);
    int error = answer(tree);

    (void)words;
    if (error == 0 && (error = answer(syscall(SYS_move_mount, tree, "", AT_FDCWD, scratch, MOVE_MOUNT_F_EMPTY_PATH))) == 0)
        umount2(scratch, MNT_DETACH);
    return error;
}

static int change_mount(char **words)
{
    struct mount_attr change = {.attr_set = MOUNT_ATTR_NOSUID};

    return answer(syscall(SYS_mount_setattr, AT_FDCWD, words[0], 0, &change, sizeof change));
}

static int pivot(char **words)
{
    char old[sizeof scratch + 8];

    (void)words;
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    mount("none", scratch, "tmpfs", 0, NULL);
    snprintf(old, sizeof old, "%s/old", scratch);
    mkdir(old, 0700);
    return answer(syscall(SYS_pivot_root, scratch, old));
}

/* The classic: a second chroot below the first leaves the working directory outside of it. Succeeds if `words[0]` is then seen. */
static int leave_chroot(char **words)
{
    if (chroot(scratch) < 0)
        return -errno;
    for (int i = 0; i < 64; i++)
        if (chdir("..") < 0)
            return -errno;
    if (chroot(".") < 0)
        return -errno;
    return answer(access(words[0], F_OK));
}

/* ---- namespaces; the flags come as a number */

static int child_ends(long pid)
{
    if (pid == 0)
        _exit(0);
    if (pid < 0)
        return -errno;
    waitpid((pid_t)pid, NULL, __WALL);
    return 0;
}

static int unshare_flags(char **words)
{
    return answer(unshare((int)strtoul(words[0], NULL, 0)));
}

static int clone_flags(char **words)
{
    return child_ends(syscall(SYS_clone, strtoul(words[0], NULL, 0) | SIGCHLD, NULL, NULL, NULL, NULL));
}

static int clone3_flags(char **words)
{
    struct clone_args arguments = {.flags = strtoul(words[0], NULL, 0), .exit_signal = SIGCHLD};

    return child_ends(syscall(SYS_clone3, &arguments, sizeof arguments));
}

static int enter(char **words)
{
    int file = open(words[0], O_RDONLY);

    return file < 0 ? -errno : answer(setns(file, 0));
}

/* ---- the kernel's corners */

static int key(char **words)
{
    (void)words;
    return answer(syscall(SYS_add_key, "user", "excise-attempt", "x", 1, KEY_SPEC_PROCESS_KEYRING));
}

static int key_search(char **words)
{
    (void)words;
    return answer(syscall(SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_USER_SESSION_KEYRING, 1));
}

static int bpf_map(char **words)
{
    union bpf_attr attributes = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};

    (void)words;
    return answer(syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes));
}

static int perf(char **words)
{
    struct perf_event_attr event = {.type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_CPU_CLOCK};

    (void)words;
    return answer(syscall(SYS_perf_event_open, &event, 0, -1, -1, 0));
}

static int fault(char **words)
{
    (void)words;
    return answer(syscall(SYS_userfaultfd, 1 /* UFFD_USER_MODE_ONLY */));
}

static int uring(char **words)
{
    struct io_uring_params parameters = {0};

    (void)words;
    return answer(syscall(SYS_io_uring_setup, 1, &parameters));
}

static int aio(char **words)
{
    unsigned long context = 0;
    int error = answer(syscall(SYS_io_setup, 1, &context));

    (void)words;
    if (error == 0)
        syscall(SYS_io_destroy, context);
    return error;
}

/* A file opened by its handle: no directory's permissions are asked, and no mount's root is in the way. */
static int by_handle(char **words)
{
    struct {
        struct file_handle head;
        char bytes[MAX_HANDLE_SZ];
    } handle = {.head.handle_bytes = MAX_HANDLE_SZ};
    int where = open(words[0], O_RDONLY | O_DIRECTORY), mount_id;

    if (name_to_handle_at(where, ".", &handle.head, &mount_id, 0) < 0)
        return -errno;
    return answer(open_by_handle_at(where, &handle.head, O_RDONLY | O_DIRECTORY));
}

static int kernel_log(char **words)
{
    (void)words;
    return answer(syscall(SYS_syslog, 10 /* its size */, NULL, 0));
}

static int host_name(char **words)
{
    char name[65] = "";

    (void)words;
    gethostname(name, sizeof name - 1);
    return answer(sethostname(name, strlen(name)));
}

static int make_socket(char **words)
{
    return answer(socket(atoi(words[0]), atoi(words[1]), atoi(words[2])));
}

static int make_device(char **words)
{
    char path[sizeof scratch + 8];
    int error;

    (void)words;
    snprintf(path, sizeof path, "%s/zero", scratch);
    error = answer(mknod(path, S_IFCHR | 0600, makedev(1, 5))); /* what may be done with a harmless one may be done with all */
    unlink(path);
    return error;
}

/* Writes a file's own content back to it. */
static int write_back(char **words)
{
    char text[4096];
    int file = open(words[0], O_RDWR);
    ssize_t length;

    if (file < 0)
        return -errno;
    length = read(file, text, sizeof text);
    return answer(pwrite(file, text, length > 0 ? (size_t)length : 0, 0));
}

static int open_to(char **words)
{
    return answer(open(words[0], strcmp(words[1], "write") == 0 ? O_WRONLY | O_NONBLOCK : O_RDONLY | O_NONBLOCK));
}

static int read_byte(char **words)
{
    char byte;
    int file = open(words[0], O_RDONLY | O_NONBLOCK);
    ssize_t got = file < 0 ? -1 : read(file, &byte, 1);

    return got == 1 ? 0 : got == 0 ? -ENODATA : -errno;
}

static const struct attempt ATTEMPTS[] = {
    {"mount", 2, mount_type}, {"bind", 0, mount_bind}, {"remount", 1, remount}, {"unmount", 1, unmount},
    {"fsopen", 0, new_mount}, {"open_tree", 0, clone_mount}, {"mount_setattr", 1, change_mount}, {"pivot_root", 0, pivot},
    {"leave_chroot", 1, leave_chroot}, {"unshare", 1, unshare_flags}, {"clone", 1, clone_flags}, {"clone3", 1, clone3_flags},
    {"setns", 1, enter}, {"add_key", 0, key}, {"keyctl", 0, key_search}, {"bpf", 0, bpf_map}, {"perf_event_open", 0, perf},
    {"userfaultfd", 0, fault}, {"io_uring", 0, uring}, {"aio", 0, aio}, {"open_by_handle_at", 1, by_handle},
    {"syslog", 0, kernel_log}, {"sethostname", 0, host_name}, {"socket", 3, make_socket}, {"mknod", 0, make_device},
    {"write_back", 1, write_back}, {"open", 2, open_to}, {"read", 1, read_byte},
};

static int said(int error)
{
    const char *name = error == 0 ? "succeeded" : strerrorname_np(-error);

    puts(name ? name : "unknown");
    return error != 0;
}

static int perform(const struct attempt *list, size_t count, int argc, char **argv)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(list[i].name, argv[1]) == 0 && argc - 2 == list[i].words) {
            int error = list[i].perform(argv + 2);

            return said(error);
        }
    }
    return -1;
}

int main(int argc, char **argv)
{
    const char *place = getenv("TMPDIR");
    int result;

    snprintf(scratch, sizeof scratch, "%s/attempt-XXXXXX", place ? place : "/tmp");
    if (argc < 2 || !mkdtemp(scratch))
        return 2;
    result = perform(ATTEMPTS, sizeof ATTEMPTS / sizeof *ATTEMPTS, argc, argv);
    if (result < 0)
        result = perform(process_attempts, process_attempt_count, argc, argv);
    rmdir(scratch);
    if (result < 0)
        fprintf(stderr, "there is no attempt %s with so many arguments\n", argv[1]);
    return result < 0 ? 2 : result;
}
