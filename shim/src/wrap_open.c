#include <stdarg.h>

#include "claim.h"
#include "fdtab.h"
#include "server.h"
#include "shared.h"
#include "text.h"
#include "wrap.h"

static int is_regular(int fd)
{
	struct stat st;

	return lz_sys_fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

/*
 * Opens for reading what was to be opened for writing, and notes it. -errno when that cannot be; the caller then opens as
 * it was asked to, whose answer is the right one in every case (O_CREAT and no file, no read permission, a directory).
 */
static long open_lazily(int dirfd, const char *path, int flags)
{
	long fd = lz_sys_openat(dirfd, path, (flags & ~(O_ACCMODE | O_CREAT)) | O_RDONLY, 0);

	if (fd < 0)
		return fd;
	if (fd >= LZ_MAXFD || !is_regular((int)fd)) {
		(void)lz_sys_close((int)fd);
		return -EBADF;
	}
	lz_fd_set((int)fd, LZ_FD_LAZY | (unsigned)(flags & LZ_FD_ACCMODE));
	lz_count(&lz_shared->lazy_opens);
	return fd;
}

static long open_claim(int dirfd, const char *path, int flags, unsigned mode)
{
	long fd;

	if (!lz_in_server())
		lz_server_start();
	fd = lz_sys_openat(dirfd, path, flags, mode);
	if (fd >= 0 && lz_in_server()) {
		lz_fd_set((int)fd, 0);
		lz_server_claimed();
	}
	return fd;
}

/* An open with these flags that has succeeded made the file. */
static int makes_data_file(int dirfd, const char *path, int flags)
{
	const int both = O_CREAT | O_EXCL;

	return (flags & both) == both && (dirfd == AT_FDCWD || path[0] == '/') && lz_is_data_path(path);
}

static long open_any(int dirfd, const char *path, int flags, unsigned mode)
{
	long fd;

	if (__builtin_expect(lz_is_server_claim(path, flags), 0))
		return open_claim(dirfd, path, flags, mode);
	if (lz_in_server() && path && lz_equal(path, "postmaster.pid"))
		lz_claim_wait();
	if (lz_is_lazy_open(dirfd, path, flags)) {
		fd = open_lazily(dirfd, path, flags);
		if (fd >= 0)
			return fd;
		/* Probing for the next segment (storage/smgr/md.c, mdnblocks) ends here each time: one call is enough. */
		if (fd == -ENOENT && !(flags & O_CREAT))
			return fd;
	}
	fd = lz_sys_openat(dirfd, path, flags, mode);
	if (fd >= 0 && lz_in_server())
		lz_fd_set((int)fd, makes_data_file(dirfd, path, flags) ? LZ_FD_MADE : 0);
	return fd;
}

/* open takes a mode only with these; O_TMPFILE is more than one bit. */
static int has_mode(int flags)
{
	return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

static int lz_open(const char *path, int flags, ...)
{
	unsigned mode = 0;

	if (has_mode(flags)) {
		va_list ap;

		va_start(ap, flags);
		mode = va_arg(ap, unsigned);
		va_end(ap);
	}
	return (int)lz_return(open_any(AT_FDCWD, path, flags, mode));
}

static int lz_openat(int dirfd, const char *path, int flags, ...)
{
	unsigned mode = 0;

	if (has_mode(flags)) {
		va_list ap;

		va_start(ap, flags);
		mode = va_arg(ap, unsigned);
		va_end(ap);
	}
	return (int)lz_return(open_any(dirfd, path, flags, mode));
}

static int lz_open_2(const char *path, int flags)
{
	return (int)lz_return(open_any(AT_FDCWD, path, flags, 0));
}

static int lz_openat_2(int dirfd, const char *path, int flags)
{
	return (int)lz_return(open_any(dirfd, path, flags, 0));
}

static int lz_creat(const char *path, unsigned mode)
{
	return (int)lz_return(open_any(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode));
}

#define WRAP_OPEN LZ_EXPORT
#include "wrapped.def"

#define WRAP_OPEN LZ_LIST
const struct lz_wrapper lz_open_wrappers[] = {
#include "wrapped.def"
	{ NULL, NULL },
};
