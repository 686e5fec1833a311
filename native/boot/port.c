/* The virtio-serial port whose name is "excise": the link to the host. */
#include "boot/boot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/vm_sockets.h>

#define PORTS "/sys/class/virtio-ports"

enum { WAIT_US = 1000, WAITS = 5000 };

static bool is_ours(const char *port)
{
    char path[128], name[32] = "";
    int file;

    snprintf(path, sizeof path, PORTS "/%.64s/name", port);
    if ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        return false;
    (void)!read(file, name, sizeof name - 1);
    close(file);
    return strcmp(name, "excise\n") == 0;
}

static int find(char *path, size_t size)
{
    DIR *ports = opendir(PORTS);
    struct dirent *entry;
    int result = -ENODEV;

    while (ports != NULL && result < 0 && (entry = readdir(ports)) != NULL) {
        if (entry->d_name[0] != '.' && is_ours(entry->d_name)) {
            snprintf(path, size, "/dev/%.64s", entry->d_name);
            result = 0;
        }
    }
    if (ports != NULL)
        closedir(ports);
    return result;
}

int port_open(void)
{
    char path[80];
    int port;

    /* The device tells of its ports by messages, some time after its driver was loaded. */
    for (int turn = 0; find(path, sizeof path) < 0; turn++) {
        if (turn == WAITS)
            return boot_failed(ENODEV, "find the port to the host");
        usleep(WAIT_US);
    }
    if ((port = open(path, O_RDWR | O_CLOEXEC)) < 0)
        return boot_failed(errno, "open %s", path);
    return port;
}

int port_listen(unsigned number)
{
    struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = number};
    int listener = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 1) < 0)
        return boot_failed(errno, "listen for the host");
    return listener;
}

int port_accept(int listener)
{
    int port;

    fprintf(stderr, "excise-boot: listens\n"); /* who saves the machine waits for it: a call would be the first */
    fflush(stderr);
    /* A copy of the machine is called anew: until the first call nothing of it is anybody's. */
    while ((port = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0 && errno == EINTR)
        ;
    if (port < 0)
        return boot_failed(errno, "be called by the host");
    close(listener);
    return port;
}
