/*
 * The kernel, as the shim sees it: the uapi headers and nothing from any libc, so that one object fits glibc and musl.
 *
 * Every lz_sys_* function returns what the kernel returned: a value, or -errno. errno itself is touched in one place
 * only, lz_return() in wrap.h, on the way out of a failing wrapper.
 */
#ifndef LAZYRW_KERNEL_H
#define LAZYRW_KERNEL_H

#include <asm/errno.h>
#include <asm/stat.h>
#include <asm/unistd.h>
#include <linux/close_range.h>
#include <linux/fcntl.h>
#include <linux/mman.h>
#include <linux/stat.h>
#include <linux/time_types.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
#include "arch/amd64.h"
#elif defined(__aarch64__)
#include "arch/arm64.h"
#else
#error "lazyrw is built for x86-64 and AArch64"
#endif

typedef long lz_ssize; /* ssize_t of both ABIs */
typedef long lz_off;   /* off_t and off64_t of both ABIs: 64 bits */

#define RENAME_EXCHANGE (1 << 1) /* <linux/fs.h> has it, and half the VFS with it */

enum {
	LZ_SEEK_SET = 0, /* <linux/fs.h> has these three, and half the VFS with them */
	LZ_SEEK_CUR = 1,
	LZ_PATH_MAX = 4096,
	LZ_STDERR = 2,
};

static inline long lz_sys_openat(int dirfd, const char *path, int flags, unsigned mode)
{
	return lz_syscall(__NR_openat, dirfd, (long)path, flags, mode, 0, 0);
}

static inline long lz_sys_close(int fd)
{
	return lz_syscall(__NR_close, fd, 0, 0, 0, 0, 0);
}

static inline long lz_sys_read(int fd, void *buf, size_t n)
{
	return lz_syscall(__NR_read, fd, (long)buf, (long)n, 0, 0, 0);
}

static inline long lz_sys_write(int fd, const void *buf, size_t n)
{
	return lz_syscall(__NR_write, fd, (long)buf, (long)n, 0, 0, 0);
}

static inline long lz_sys_lseek(int fd, lz_off off, int whence)
{
	return lz_syscall(__NR_lseek, fd, off, whence, 0, 0, 0);
}

static inline long lz_sys_fcntl(int fd, int cmd, long arg)
{
	return lz_syscall(__NR_fcntl, fd, cmd, arg, 0, 0, 0);
}

static inline long lz_sys_fstat(int fd, struct stat *st)
{
	return lz_syscall(__NR_fstat, fd, (long)st, 0, 0, 0, 0);
}

static inline long lz_sys_lstat(const char *path, struct stat *st)
{
	return lz_syscall(LZ_NR_FSTATAT, AT_FDCWD, (long)path, (long)st, AT_SYMLINK_NOFOLLOW, 0, 0);
}

static inline long lz_sys_link(const char *from, const char *to)
{
	return lz_syscall(__NR_linkat, AT_FDCWD, (long)from, AT_FDCWD, (long)to, 0, 0);
}

static inline long lz_sys_rename(const char *from, const char *to, unsigned flags)
{
	return lz_syscall(__NR_renameat2, AT_FDCWD, (long)from, AT_FDCWD, (long)to, flags, 0);
}

static inline long lz_sys_unlink(const char *path)
{
	return lz_syscall(__NR_unlinkat, AT_FDCWD, (long)path, 0, 0, 0, 0);
}

static inline long lz_sys_mkdir(const char *path, unsigned mode)
{
	return lz_syscall(__NR_mkdirat, AT_FDCWD, (long)path, mode, 0, 0, 0);
}

static inline long lz_sys_dup3(int from, int to, int flags)
{
	return lz_syscall(__NR_dup3, from, to, flags, 0, 0, 0);
}

static inline long lz_sys_close_range(unsigned first, unsigned last, unsigned flags)
{
	return lz_syscall(__NR_close_range, first, last, flags, 0, 0, 0);
}

static inline long lz_sys_flock(int fd, int op)
{
	return lz_syscall(__NR_flock, fd, op, 0, 0, 0, 0);
}

static inline long lz_sys_getcwd(char *buf, size_t n)
{
	return lz_syscall(__NR_getcwd, (long)buf, (long)n, 0, 0, 0, 0);
}

static inline long lz_sys_readlink(const char *path, char *buf, size_t n)
{
	return lz_syscall(__NR_readlinkat, AT_FDCWD, (long)path, (long)buf, (long)n, 0, 0);
}

static inline long lz_sys_mmap(void *addr, size_t len, int prot, int flags, int fd, lz_off off)
{
	return lz_syscall(__NR_mmap, (long)addr, (long)len, prot, flags, fd, off);
}

static inline long lz_sys_getpid(void)
{
	return lz_syscall(__NR_getpid, 0, 0, 0, 0, 0, 0);
}

static inline void lz_sys_sched_yield(void)
{
	(void)lz_syscall(__NR_sched_yield, 0, 0, 0, 0, 0, 0); /* cannot fail */
}

/* Sleeps for ms milliseconds, or less when a signal comes: callers count attempts, not time. */
static inline void lz_sys_sleep_ms(long ms)
{
	struct __kernel_timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	(void)lz_syscall(__NR_nanosleep, (long)&t, 0, 0, 0, 0, 0);
}

_Noreturn static inline void lz_sys_exit(int status)
{
	for (;;)
		(void)lz_syscall(__NR_exit_group, status, 0, 0, 0, 0, 0);
}

#endif
