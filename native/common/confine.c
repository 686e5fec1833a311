#include "common/confine.h"

#include "common/sys.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>

static uint64_t bit(unsigned capability)
{
    return (uint64_t)1 << capability;
}

uint64_t confine_default_capabilities(void)
{
    return bit(CAP_CHOWN) | bit(CAP_DAC_OVERRIDE) | bit(CAP_FSETID) | bit(CAP_FOWNER) | bit(CAP_MKNOD) | bit(CAP_NET_RAW) | bit(CAP_SETGID) |
           bit(CAP_SETUID) | bit(CAP_SETFCAP) | bit(CAP_SETPCAP) | bit(CAP_NET_BIND_SERVICE) | bit(CAP_SYS_CHROOT) | bit(CAP_KILL) |
           bit(CAP_AUDIT_WRITE);
}

int confine_bounding_set(uint64_t capabilities)
{
    /* Looking costs less than dropping, which makes new credentials: a process whose parent has dropped them only looks. The kernel says where they end. */
    for (unsigned capability = 0; capability < 64; capability++) {
        long kept;

        if ((capabilities & bit(capability)) != 0)
            continue;
        kept = sys(SYS_prctl, PR_CAPBSET_READ, capability, 0, 0, 0);
        if (kept == -EINVAL)
            return 0;
        if (kept < 0)
            return (int)kept;
        if (kept == 0)
            continue;
        kept = sys(SYS_prctl, PR_CAPBSET_DROP, capability, 0, 0, 0);
        if (kept < 0)
            return (int)kept;
    }
    return 0;
}

/* The inheritable set stays empty, or files with inheritable capabilities would hand them to ordinary users. */
static int hold_only(uint64_t capabilities)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct held[_LINUX_CAPABILITY_U32S_3] = {0};
    struct __user_cap_data_struct kept[_LINUX_CAPABILITY_U32S_3] = {0};
    long result = sys(SYS_capget, &header, held);

    if (result < 0)
        return (int)result;
    for (unsigned word = 0; word < _LINUX_CAPABILITY_U32S_3; word++) {
        /* What is not held cannot be asked for: the mask may name more than a container that confines its guest has. */
        kept[word].permitted = held[word].permitted & (uint32_t)(capabilities >> (32 * word));
        kept[word].effective = kept[word].permitted;
    }
    return (int)sys(SYS_capset, &header, kept);
}

int confine_self(const struct confinement *confinement)
{
    long result;

    if (confinement->no_new_privileges) {
        result = sys(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (result < 0)
            return (int)result;
    }
    /* Before the capabilities go: without no_new_privs the kernel takes a filter only from one who holds CAP_SYS_ADMIN. The filter allows prctl and capset. */
    if (confinement->filter) {
        result = sys(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, confinement->filter);
        if (result < 0)
            return (int)result;
    }
    result = sys(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (result < 0 && result != -EINVAL) /* a kernel that does not know the word has none to clear */
        return (int)result;
    result = confine_bounding_set(confinement->capabilities);
    if (result < 0)
        return (int)result;
    return hold_only(confinement->capabilities);
}
