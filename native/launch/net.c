#include "launch/net.h"

#include "launch/failure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 128 };

int net_loopback_up(struct failure *failure)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    CLOSES int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (any < 0 || ioctl(any, SIOCSIFFLAGS, &request))
        return fail(failure, errno, "bring up the loopback interface");
    return 0;
}

int net_listen(uint16_t port, struct failure *failure)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int error;

    if (listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, BACKLOG) == 0)
        return listener;
    error = fail(failure, errno, "listen on port %u", port);
    close_descriptor(&listener);
    return error;
}
