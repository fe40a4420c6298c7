#include "server.h"
#include "shared.h"
#include "text.h"
#include "upgrade.h"
#include "wrap.h"

/* In every wrapper a refused first write is the wrapper's own failure, and nothing has been written. */

static lz_ssize lz_write(int fd, const void *buf, size_t n)
{
	long rc = lz_before_write(fd, LZ_WRITE);

	if (rc == 0)
		rc = lz_sys_write(fd, buf, n);
	return lz_return(rc);
}

static lz_ssize lz_writev(int fd, const void *iov, int count)
{
	long rc = lz_before_write(fd, LZ_WRITE);

	if (rc == 0)
		rc = lz_syscall(__NR_writev, fd, (long)iov, count, 0, 0, 0);
	return lz_return(rc);
}

static lz_ssize lz_pwrite(int fd, const void *buf, size_t n, lz_off off)
{
	long rc = lz_before_write(fd, LZ_WRITE);

	if (rc == 0)
		rc = lz_syscall(__NR_pwrite64, fd, (long)buf, (long)n, off, 0, 0);
	return lz_return(rc);
}

/* The offset goes in two halves (fs/read_write.c, pos_from_hilo); on 64 bits the low half is all of it. */
static lz_ssize lz_pwritev(int fd, const void *iov, int count, lz_off off)
{
	long rc = lz_before_write(fd, LZ_WRITE);

	if (rc == 0)
		rc = lz_syscall(__NR_pwritev, fd, (long)iov, count, off, 0, 0);
	return lz_return(rc);
}

static lz_ssize lz_pwritev2(int fd, const void *iov, int count, lz_off off, int flags)
{
	long rc = lz_before_write(fd, LZ_WRITE);

	if (rc == 0)
		rc = lz_syscall(__NR_pwritev2, fd, (long)iov, count, off, 0, flags);
	if (rc == -ENOSYS && flags == 0) /* an old kernel, or qemu-user: without flags the older calls do the same */
		return off == -1 ? lz_writev(fd, iov, count) : lz_pwritev(fd, iov, count, off);
	return lz_return(rc);
}

/*
 * A truncation that keeps a part has to copy the whole file first, and Postgres has no way back from one that fails: it
 * truncates in a critical section, so the error is a PANIC, and recovery repeats it until there is space (catalog/storage.c,
 * RelationTruncate and smgr_redo). The server's own message names the file and "No space left on device"; what it cannot
 * know is whose space.
 */
static void say_no_space(int fd)
{
	char link[64] = "/proc/thread-self/fd/", path[LZ_PATH_MAX], line[LZ_PATH_MAX + 256] = "lazyrw: no space to copy \"";
	long n;
	int rc = lz_append_number(link, sizeof(link), (unsigned long)fd);

	n = lz_sys_readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = '\0';
	rc |= lz_append(line, sizeof(line), path);
	rc |= lz_append(line, sizeof(line), "\", which a truncation needs; free space on the disk of the engine's data root, "
		"with `docker pgbranch rm` for one, and this server goes on or can be started again\n");
	(void)rc; /* a line that did not fit is still a line */
	(void)lz_sys_write(LZ_STDERR, line, lz_length(line)); /* the error itself goes to the caller */
}

static int lz_ftruncate(int fd, lz_off size)
{
	long rc = lz_before_write(fd, size == 0 ? LZ_EMPTY : LZ_WRITE);

	if (rc == -ENOSPC || rc == -EDQUOT)
		say_no_space(fd);
	if (rc == 0)
		rc = lz_syscall(__NR_ftruncate, fd, size, 0, 0, 0, 0);
	return (int)lz_return(rc);
}

/*
 * truncate(2) by path copies the file up with its data, also to size 0 (fs/overlayfs/inode.c, ovl_setattr: ATTR_SIZE takes
 * ovl_copy_up_with_data); an O_TRUNC open does not. Postgres empties every segment in this way before it unlinks it
 * (storage/smgr/md.c, do_truncate).
 */
static long empty_by_path(const char *path)
{
	long fd = lz_sys_openat(AT_FDCWD, path, O_WRONLY | O_TRUNC | O_CLOEXEC, 0);

	if (fd < 0)
		return fd;
	(void)lz_sys_close((int)fd); /* nothing was written through it */
	lz_count(&lz_shared->emptied);
	return 0;
}

static int lz_truncate(const char *path, lz_off size)
{
	if (size == 0 && path && (lz_in_server() & LZ_SERVER_LAZY) && lz_is_data_path(path)) {
		long rc = empty_by_path(path);

		/* truncate needs no descriptor: where there is none left, what it does without one is still right. */
		if (rc != -EMFILE && rc != -ENFILE)
			return (int)lz_return(rc);
	}
	return (int)lz_return(lz_syscall(__NR_truncate, (long)path, size, 0, 0, 0, 0));
}

/*
 * Returns the error number and leaves errno alone. A file system that cannot (EOPNOTSUPP) is reported as such, as musl does:
 * Postgres then writes zeros itself (storage/file/fd.c, FileFallocate), which glibc's way of touching each block would not improve on.
 */
static int lz_posix_fallocate(int fd, lz_off off, lz_off len)
{
	long rc = lz_before_write(fd, LZ_WRITE);

	if (rc == 0)
		rc = lz_syscall(__NR_fallocate, fd, 0, off, len, 0, 0);
	return (int)-rc;
}

static int lz_fallocate(int fd, int mode, lz_off off, lz_off len)
{
	long rc = lz_before_write(fd, LZ_WRITE);

	if (rc == 0)
		rc = lz_syscall(__NR_fallocate, fd, mode, off, len, 0, 0);
	return (int)lz_return(rc);
}

static lz_ssize lz_copy_file_range(int in, lz_off *in_off, int out, lz_off *out_off, size_t n, unsigned flags)
{
	long rc = lz_before_write(out, LZ_WRITE);

	if (rc == 0)
		rc = lz_syscall(__NR_copy_file_range, in, (long)in_off, out, (long)out_off, (long)n, flags);
	return lz_return(rc);
}

static lz_ssize lz_sendfile(int out, int in, lz_off *off, size_t n)
{
	long rc = lz_before_write(out, LZ_WRITE);

	if (rc == 0)
		rc = lz_syscall(__NR_sendfile, out, in, (long)off, (long)n, 0, 0);
	return lz_return(rc);
}

static lz_ssize lz_splice(int in, lz_off *in_off, int out, lz_off *out_off, size_t n, unsigned flags)
{
	long rc = lz_before_write(out, LZ_WRITE);

	if (rc == 0)
		rc = lz_syscall(__NR_splice, in, (long)in_off, out, (long)out_off, (long)n, flags);
	return lz_return(rc);
}

/*
 * sync_file_range does nothing on an overlay (fs/sync.c starts the writeback of the overlay's inode, which has no pages).
 * copy_file (storage/file/copydir.c) counts on it: CREATE DATABASE by FILE_COPY writes all files, and then fsyncs one after the
 * other. Where nothing has been written back by then, each fsync allocates its file's blocks and commits the file system's log
 * for it alone. POSIX_FADV_DONTNEED starts the writeback and goes through to the upper file (ovl_fadvise); pages that are clean
 * by then leave the cache, so only a file that this descriptor has made is treated so, and no table is that a checkpoint flushes.
 */
static int lz_sync_file_range(int fd, lz_off off, lz_off n, unsigned flags)
{
	const unsigned write = 2; /* SYNC_FILE_RANGE_WRITE; <linux/fs.h> has it, and half the VFS with it */
	const int dontneed = 4;   /* POSIX_FADV_DONTNEED */
	long rc = lz_syscall(__NR_sync_file_range, fd, off, n, flags, 0, 0);

	if (rc == 0 && flags & write && lz_in_server() && lz_fd_get(fd) & LZ_FD_MADE)
		(void)lz_syscall(__NR_fadvise64, fd, off, n, dontneed, 0, 0); /* an advice: durability is fsync's */
	return (int)lz_return(rc);
}

/*
 * A shared mapping may be written through, now or after an mprotect, and one that was made before the copy-up would show
 * the lower file for ever: both kinds need the file that is ours.
 */
static void *lz_mmap(void *addr, size_t len, int prot, int flags, int fd, lz_off off)
{
	long rc = 0;

	if (!(flags & MAP_ANONYMOUS) && (flags & MAP_TYPE) != MAP_PRIVATE)
		rc = lz_before_write(fd, LZ_WRITE);
	if (rc == 0)
		rc = lz_sys_mmap(addr, len, prot, flags, fd, off);
	return (void *)lz_return(rc);
}

#define WRAP_WRITE LZ_EXPORT
#include "wrapped.def"

#define WRAP_WRITE LZ_LIST
const struct lz_wrapper lz_write_wrappers[] = {
#include "wrapped.def"
	{ NULL, NULL },
};
