/* Which system calls sandboxed code may make. Data only, used by seccomp.c.
 *
 * The measure is an ordinary root of a user namespace who runs apt-get, git, pip, npm, compilers, gdb and strace of his own processes. What is in neither list does not exist here
 * (ENOSYS): C libraries then fall back to an older call, and a call the kernel gains later is not ours by accident. A few that libraries probe for are left out on purpose, so that they fall back too:
 * clone3 (its flags are in memory, where a filter cannot look; a runner is let by a key), io_uring (its operations pass no filter), userfaultfd (the classic helper of kernel exploits), Linux AIO (its
 * contexts are counted for the whole host, so one sandbox could take them all), modify_ldt, memfd_secret. */
#ifndef EXCISE_SECCOMP_CALLS_H
#define EXCISE_SECCOMP_CALLS_H

#include <asm/unistd.h>
#include <stdint.h>

/* Newer than the oldest headers we build with; the numbers are the same on every architecture. */
enum { NR_cachestat = 451, NR_fchmodat2 = 452, NR_futex_wake = 454, NR_futex_wait = 455, NR_futex_requeue = 456, NR_mseal = 462 };
#if defined(__x86_64__)
enum { NR_uretprobe = 335, NR_uprobe = 336, NR_map_shadow_stack = 453 };
#endif

static const uint16_t seccomp_allowed[] = {
    /* files and directories */
    __NR_chdir, __NR_chroot, __NR_close, __NR_close_range, __NR_copy_file_range, __NR_dup, __NR_dup3, __NR_faccessat, __NR_faccessat2, __NR_fadvise64, __NR_fallocate, __NR_fchdir,
    __NR_fchmod, __NR_fchmodat, NR_fchmodat2, __NR_fchown, __NR_fchownat, __NR_fcntl, __NR_fdatasync, __NR_fgetxattr, __NR_flistxattr, __NR_flock, __NR_fremovexattr,
    __NR_fsetxattr, __NR_fstat, __NR_fstatfs, __NR_fsync, __NR_ftruncate, __NR_getcwd, __NR_getdents64, __NR_getxattr, __NR_inotify_add_watch, __NR_inotify_init1,
    __NR_inotify_rm_watch, __NR_lgetxattr, __NR_linkat, __NR_listxattr, __NR_llistxattr, __NR_lremovexattr, __NR_lseek, __NR_lsetxattr, __NR_mkdirat, __NR_mknodat,
    __NR_newfstatat, __NR_openat, __NR_openat2, __NR_pipe2, __NR_pread64, __NR_preadv, __NR_preadv2, __NR_pwrite64, __NR_pwritev, __NR_pwritev2, __NR_read, __NR_readahead,
    __NR_readlinkat, __NR_readv, __NR_removexattr, __NR_renameat, __NR_renameat2, __NR_sendfile, __NR_setxattr, __NR_splice, __NR_statfs, __NR_statx, __NR_symlinkat, __NR_sync,
    __NR_sync_file_range, __NR_syncfs, __NR_tee, __NR_truncate, __NR_umask, __NR_unlinkat, __NR_utimensat, __NR_vmsplice, __NR_write, __NR_writev, NR_cachestat,
    /* waiting */
    __NR_epoll_create1, __NR_epoll_ctl, __NR_epoll_pwait, __NR_epoll_pwait2, __NR_eventfd2, __NR_futex, __NR_futex_waitv, NR_futex_requeue, NR_futex_wait, NR_futex_wake,
    __NR_get_robust_list, __NR_ppoll, __NR_pselect6, __NR_restart_syscall, __NR_set_robust_list, __NR_signalfd4, __NR_timerfd_create, __NR_timerfd_gettime, __NR_timerfd_settime,
    /* memory */
    __NR_brk, __NR_madvise, __NR_membarrier, __NR_memfd_create, __NR_mincore, __NR_mlock, __NR_mlock2, __NR_mlockall, __NR_mmap, __NR_mprotect, __NR_mremap, NR_mseal, __NR_msync,
    __NR_munlock, __NR_munlockall, __NR_munmap, __NR_pkey_alloc, __NR_pkey_free, __NR_pkey_mprotect, __NR_remap_file_pages,
    /* processes; ptrace and process_vm_* reach only what the kernel's own check lets a debugger reach, and the guest is not among it */
    __NR_execve, __NR_execveat, __NR_exit, __NR_exit_group, __NR_getcpu, __NR_getitimer, __NR_getpgid, __NR_getpid, __NR_getppid, __NR_getpriority, __NR_getrlimit, __NR_getrusage,
    __NR_getsid, __NR_gettid, __NR_ioprio_get, __NR_ioprio_set, __NR_kill, __NR_pidfd_open, __NR_pidfd_send_signal, __NR_prctl, __NR_process_vm_readv,
    __NR_process_vm_writev, __NR_ptrace, __NR_rseq, __NR_rt_sigaction, __NR_rt_sigpending, __NR_rt_sigprocmask, __NR_rt_sigqueueinfo, __NR_rt_sigreturn, __NR_rt_sigsuspend,
    __NR_rt_sigtimedwait, __NR_rt_tgsigqueueinfo, __NR_sched_get_priority_max, __NR_sched_get_priority_min, __NR_sched_getaffinity, __NR_sched_getattr, __NR_sched_getparam,
    __NR_sched_getscheduler, __NR_sched_rr_get_interval, __NR_sched_setaffinity, __NR_sched_setattr, __NR_sched_setparam, __NR_sched_setscheduler, __NR_sched_yield,
    __NR_set_tid_address, __NR_setitimer, __NR_setpgid, __NR_setpriority, __NR_setrlimit, __NR_setsid, __NR_sigaltstack, __NR_tgkill, __NR_tkill, __NR_wait4, __NR_waitid,
    /* who one is */
    __NR_capget, __NR_capset, __NR_getegid, __NR_geteuid, __NR_getgid, __NR_getgroups, __NR_getresgid, __NR_getresuid, __NR_getuid, __NR_landlock_add_rule,
    __NR_landlock_create_ruleset, __NR_landlock_restrict_self, __NR_seccomp, __NR_setfsgid, __NR_setfsuid, __NR_setgid, __NR_setgroups, __NR_setregid, __NR_setresgid,
    __NR_setresuid, __NR_setreuid, __NR_setuid,
    /* sockets and IPC */
    __NR_accept, __NR_accept4, __NR_bind, __NR_connect, __NR_getpeername, __NR_getsockname, __NR_getsockopt, __NR_listen, __NR_mq_getsetattr, __NR_mq_notify, __NR_mq_open,
    __NR_mq_timedreceive, __NR_mq_timedsend, __NR_mq_unlink, __NR_msgctl, __NR_msgget, __NR_msgrcv, __NR_msgsnd, __NR_recvfrom, __NR_recvmmsg, __NR_recvmsg, __NR_semctl, __NR_semget,
    __NR_semop, __NR_semtimedop, __NR_sendmmsg, __NR_sendmsg, __NR_sendto, __NR_setsockopt, __NR_shmat, __NR_shmctl, __NR_shmdt, __NR_shmget, __NR_shutdown,
    /* time and the machine; the clock can be read by adjtimex, and set only by the host */
    __NR_adjtimex, __NR_clock_adjtime, __NR_clock_getres, __NR_clock_gettime, __NR_clock_nanosleep, __NR_getrandom, __NR_gettimeofday, __NR_nanosleep, __NR_sysinfo,
    __NR_timer_create, __NR_timer_delete, __NR_timer_getoverrun, __NR_timer_gettime, __NR_timer_settime, __NR_times, __NR_uname,
#if defined(__x86_64__)
    __NR_access, __NR_alarm, __NR_arch_prctl, __NR_chmod, __NR_chown, __NR_creat, __NR_dup2, __NR_epoll_create, __NR_epoll_wait, __NR_eventfd, __NR_fork, __NR_futimesat, __NR_getdents,
    __NR_getpgrp, __NR_inotify_init, __NR_lchown, __NR_link, __NR_lstat, __NR_mkdir, __NR_mknod, __NR_open, __NR_pause, __NR_pipe, __NR_poll, __NR_readlink, __NR_rename, __NR_rmdir,
    __NR_select, __NR_signalfd, __NR_stat, __NR_symlink, __NR_time, __NR_unlink, __NR_utime, __NR_utimes, __NR_vfork, NR_map_shadow_stack,
    NR_uprobe, NR_uretprobe, /* made by a probe of the host's in a library of ours, never by the program: refusing it would kill the program. New kernels do not even ask the filter */
#endif
};

/* Known and dangerous: EPERM, which is what one without the privilege gets from the kernel itself. */
static const uint16_t seccomp_refused[] = {
    /* mounts and namespaces */
    __NR_fsconfig, __NR_fsmount, __NR_fsopen, __NR_fspick, __NR_mount, __NR_mount_setattr, __NR_move_mount, __NR_open_tree, __NR_pivot_root, __NR_setns, __NR_umount2,
    /* files by handle, past every directory's permissions; watching whole mounts; quotas */
    __NR_fanotify_init, __NR_fanotify_mark, __NR_name_to_handle_at, __NR_open_by_handle_at, __NR_quotactl, __NR_quotactl_fd,
    /* into other processes, or into the kernel; keyrings are not in any namespace */
    __NR_add_key, __NR_bpf, __NR_kcmp, __NR_keyctl, __NR_lookup_dcookie, __NR_perf_event_open, __NR_pidfd_getfd, __NR_process_madvise, __NR_request_key,
    /* pages placed on nodes: the host's to decide */
    __NR_get_mempolicy, __NR_mbind, __NR_migrate_pages, __NR_move_pages, __NR_set_mempolicy,
    /* the machine */
    __NR_acct, __NR_clock_settime, __NR_delete_module, __NR_finit_module, __NR_init_module, __NR_kexec_file_load, __NR_kexec_load, __NR_reboot, __NR_setdomainname, __NR_sethostname,
    __NR_settimeofday, __NR_swapoff, __NR_swapon, __NR_syslog, __NR_vhangup,
#if defined(__x86_64__)
    __NR_ioperm, __NR_iopl,
#endif
};

#endif
