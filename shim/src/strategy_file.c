#include "strategy.h"
#include "kernel.h"
#include "reopen.h"

/* Same file, by the numbers of this moment: on layers of different file systems they change at copy-up (fs/overlayfs/inode.c,
 * ovl_map_dev_ino), so a number stored earlier proves nothing. */
static int same_file(int a, int b)
{
	struct stat sa, sb;
	long rc = lz_sys_fstat(a, &sa);

	if (rc == 0)
		rc = lz_sys_fstat(b, &sb);
	if (rc < 0)
		return (int)rc;
	return sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino ? 0 : -ESTALE;
}

static int carry_offset(int from, int to)
{
	long at = lz_sys_lseek(from, 0, LZ_SEEK_CUR);

	if (at > 0)
		at = lz_sys_lseek(to, at, LZ_SEEK_SET);
	return at < 0 ? (int)at : 0;
}

/* Puts fresh under fd's number. dup3 replaces in one step: another thread that reads fd sees the old or the new. */
static int install(int fresh, int fd)
{
	long flags = lz_sys_fcntl(fd, F_GETFD, 0);

	if (flags >= 0)
		flags = lz_sys_dup3(fresh, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0);
	return flags < 0 ? (int)flags : 0;
}

/*
 * Whether fd still is what the table says. Its number may have been closed and given out again by a call inside libc
 * that no wrapper sees (closedir, fclose of an fdopen): then it is not ours to change. Returns 1 or 0, or -errno when
 * nobody can tell: XFS answers EIO for every file once it has shut down (xfs_vn_getattr), and the descriptor is lazy still.
 */
static int still_lazy(int fd, long status)
{
	struct stat st;
	long rc;

	if ((status & O_ACCMODE) != O_RDONLY)
		return 0;
	rc = lz_sys_fstat(fd, &st);
	return rc < 0 ? (int)rc : S_ISREG(st.st_mode);
}

static int file_first_write(int fd, int accmode, enum lz_intent intent)
{
	long status = lz_sys_fcntl(fd, F_GETFL, 0);
	int flags, fresh, rc;

	if (status < 0)
		return (int)status;
	rc = still_lazy(fd, status);
	if (rc <= 0)
		return rc;

	/* F_GETFL has what F_SETFL changed since the open, and O_SYNC, O_DIRECT and the like from the open itself. */
	flags = (int)(status & ~(long)O_ACCMODE) | accmode | O_CLOEXEC;
	if (intent == LZ_EMPTY)
		flags |= O_TRUNC; /* ovl_copy_up_flags (fs/overlayfs/copy_up.c): O_TRUNC copies a file of size 0 */

	fresh = lz_reopen(fd, flags);
	if (fresh < 0)
		return fresh;
	rc = same_file(fd, fresh);
	if (rc == 0)
		rc = carry_offset(fd, fresh);
	if (rc == 0)
		rc = install(fresh, fd);
	(void)lz_sys_close(fresh); /* nothing was written through it: no error can be lost */
	return rc;
}

const struct lz_strategy lz_strategy_file = {
	.name = "file",
	.first_write = file_first_write,
};

const struct lz_strategy *lz_strategy = &lz_strategy_file;
