#include <linux/resource.h>
#include <stdarg.h>

#include "fdtab.h"
#include "lock.h"
#include "server.h"
#include "upgrade.h"
#include "wrap.h"

/* A process that closes numbers at random must not release the branch: to it that number is not open. */
static int is_lock(int fd)
{
	return lz_in_server() && (lz_fd_get(fd) & LZ_FD_LOCK);
}

/* Forget first: once the number is free, another thread's open may be given it. close never leaves it open (EBADF apart). */
static int lz_close(int fd)
{
	if (lz_in_server()) {
		if (is_lock(fd))
			return (int)lz_return(-EBADF);
		lz_fd_set(fd, 0);
	}
	return (int)lz_return(lz_sys_close(fd));
}

/* Closes the numbers beside the lock. CLOSE_RANGE_UNSHARE is safe to ask for twice. */
static long close_around_lock(unsigned first, unsigned last, unsigned flags, unsigned lock)
{
	long rc = 0;

	if (first < lock)
		rc = lz_sys_close_range(first, lock - 1, flags);
	if (rc == 0 && last > lock)
		rc = lz_sys_close_range(lock + 1, last, flags);
	return rc;
}

static long close_numbers(unsigned first, unsigned last, unsigned flags)
{
	unsigned lock = (unsigned)lz_lock_fd();
	long rc;

	if (!lz_in_server() || flags & CLOSE_RANGE_CLOEXEC) /* the lock is close-on-exec already */
		return lz_sys_close_range(first, last, flags);
	if (first <= lock && lock <= last)
		rc = close_around_lock(first, last, flags, lock);
	else
		rc = lz_sys_close_range(first, last, flags);
	if (rc == 0)
		lz_fd_forget(first, last);
	return rc;
}

static int lz_close_range(unsigned first, unsigned last, int flags)
{
	return (int)lz_return(close_numbers(first, last, (unsigned)flags));
}

/* Kernels before 5.9 have no close_range. */
static void close_one_by_one(unsigned first)
{
	struct rlimit64 limit;

	if (lz_syscall(__NR_prlimit64, 0, RLIMIT_NOFILE, 0, (long)&limit, 0, 0) < 0 || limit.rlim_cur > INT32_MAX)
		limit.rlim_cur = INT32_MAX;
	for (unsigned fd = first; fd < limit.rlim_cur; fd++) {
		if (is_lock((int)fd))
			continue;
		if (lz_in_server())
			lz_fd_set((int)fd, 0);
		(void)lz_sys_close((int)fd); /* most are not open */
	}
}

static void lz_closefrom(int first)
{
	unsigned from = first < 0 ? 0 : (unsigned)first;

	if (close_numbers(from, ~0u, 0) < 0)
		close_one_by_one(from);
}

/* A copy shares its description with fd, so fd must have its final one: it is made writable first. */
static int lz_dup(int fd)
{
	long rc = lz_before_write(fd, LZ_WRITE);

	if (rc == 0) {
		rc = lz_syscall(__NR_dup, fd, 0, 0, 0, 0, 0);
		if (rc >= 0 && lz_in_server())
			lz_fd_set((int)rc, 0);
	}
	return (int)lz_return(rc);
}

static long dup_onto(int from, int to, int flags)
{
	long rc = lz_before_write(from, LZ_WRITE);

	if (rc == 0 && is_lock(to))
		rc = lz_lock_move();
	if (rc == 0)
		rc = lz_sys_dup3(from, to, flags);
	if (rc >= 0 && lz_in_server())
		lz_fd_set(to, 0);
	return rc;
}

/* AArch64 has no dup2; dup3 differs from it only when both numbers are the same. */
static int lz_dup2(int from, int to)
{
	long rc;

	if (from != to)
		return (int)lz_return(dup_onto(from, to, 0));
	rc = lz_sys_fcntl(from, F_GETFD, 0);
	return (int)lz_return(rc < 0 ? rc : to);
}

static int lz_dup3(int from, int to, int flags)
{
	if (from == to)
		return (int)lz_return(-EINVAL);
	return (int)lz_return(dup_onto(from, to, flags));
}

static long dup_at_least(int fd, int cmd, long min)
{
	long rc = lz_before_write(fd, LZ_WRITE);

	if (rc == 0)
		rc = lz_sys_fcntl(fd, cmd, min);
	if (rc >= 0 && lz_in_server())
		lz_fd_set((int)rc, 0);
	return rc;
}

/* The access mode that was asked for: pg_fsync of an assert-enabled server insists on it (storage/file/fd.c). */
static long get_flags(int fd)
{
	long flags = lz_sys_fcntl(fd, F_GETFL, 0);
	unsigned state = lz_in_server() ? lz_fd_get(fd) : 0;

	if (flags < 0 || !(state & LZ_FD_LAZY) || (flags & O_ACCMODE) != O_RDONLY)
		return flags;
	return (flags & ~(long)O_ACCMODE) | (long)(state & LZ_FD_ACCMODE);
}

/* A write lock needs a writable descriptor, and any record lock of the process on the file goes when a descriptor of it is
 * closed, as the reopening does (fs/locks.c, locks_remove_posix): so lock the final description. */
static long lock_records(int fd, int cmd, long arg)
{
	long rc = lz_before_write(fd, LZ_WRITE);

	return rc == 0 ? lz_sys_fcntl(fd, cmd, arg) : rc;
}

/* The kernel's F_GETOWN answers a process group with a small negative number, which looks like an error: ask the other way. */
static int get_owner(int fd)
{
	struct {
		int type;
		int pid;
	} owner;
	const int process_group = 2; /* F_OWNER_PGRP */
	long rc = lz_sys_fcntl(fd, F_GETOWN_EX, (long)&owner);

	if (rc < 0)
		return (int)lz_return(rc);
	return owner.type == process_group ? -owner.pid : owner.pid;
}

static int lz_fcntl(int fd, int cmd, ...)
{
	va_list ap;
	long arg;

	va_start(ap, cmd);
	arg = va_arg(ap, long); /* an int, a pointer or nothing: all of them travel in one register */
	va_end(ap);

	switch (cmd) {
	case F_DUPFD:
	case F_DUPFD_CLOEXEC:
		return (int)lz_return(dup_at_least(fd, cmd, (int)arg));
	case F_GETFL:
		return (int)lz_return(get_flags(fd));
	case F_SETLK:
	case F_SETLKW:
	case F_OFD_SETLK:
	case F_OFD_SETLKW:
		return (int)lz_return(lock_records(fd, cmd, arg));
	case F_GETOWN:
		return get_owner(fd);
	default:
		return (int)lz_return(lz_sys_fcntl(fd, cmd, arg));
	}
}

/* The lock is the description's, which a first write replaces. */
static int lz_flock(int fd, int op)
{
	long rc = lz_before_write(fd, LZ_WRITE);

	if (rc == 0)
		rc = lz_sys_flock(fd, op);
	return (int)lz_return(rc);
}

#define WRAP_FD LZ_EXPORT
#include "wrapped.def"

#define WRAP_FD LZ_LIST
const struct lz_wrapper lz_fd_wrappers[] = {
#include "wrapped.def"
	{ NULL, NULL },
};
