#include "reopen.h"
#include "kernel.h"
#include "text.h"

int lz_reopen(int fd, int flags)
{
	char path[64] = "/proc/thread-self/fd/";
	long fresh;

	if (fd < 0 || lz_append_number(path, sizeof(path), (unsigned long)fd) < 0)
		return -EBADF;

	/* The link itself is the last part of the path: O_NOFOLLOW would refuse it. */
	fresh = lz_sys_openat(AT_FDCWD, path, flags & ~O_NOFOLLOW, 0);
	if (fresh == -EEXIST) /* no O_EXCL here: from ovl_copy_up_one's vfs_link or rename (fs/overlayfs/copy_up.c) */
		return -ESTALE;
	return (int)fresh;
}

int lz_reopen_works(int fd, int flags)
{
	struct stat a, b;
	int fresh = lz_reopen(fd, flags | O_CLOEXEC);
	int works;

	if (fresh < 0)
		return 0;
	works = lz_sys_fstat(fd, &a) == 0 && lz_sys_fstat(fresh, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
	(void)lz_sys_close(fresh);
	return works;
}
