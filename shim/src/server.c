#include "server.h"
#include "fdtab.h"
#include "kernel.h"
#include "lock.h"
#include "reopen.h"
#include "shared.h"
#include "text.h"
#include "volume.h"

int lz_server_mode;

/* The data directory, as the kernel spells it: absolute, without links. */
static char pgdata[LZ_PATH_MAX];

int lz_is_server_claim(const char *path, int flags)
{
	const int both = O_CREAT | O_EXCL;

	return (flags & both) == both && path && lz_equal(path, "postmaster.pid");
}

static int is_postgres(void)
{
	char exe[LZ_PATH_MAX];
	long n = lz_sys_readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	if (n <= 0)
		return 0;
	exe[n] = '\0';
	return lz_equal(lz_basename(exe), "postgres");
}

static int is_beneath(const char *path, const char *dir)
{
	const char *rest = lz_after(path, dir);

	return rest && (*rest == '\0' || *rest == '/');
}

static int pgdata_in_volume(void)
{
	char volume[LZ_PATH_MAX];

	if (lz_volume_of_shim(volume, sizeof(volume)) < 0)
		return 0;
	if (lz_sys_getcwd(pgdata, sizeof(pgdata)) <= 0 || pgdata[0] != '/') /* "(unreachable)/…" is no path */
		return 0;
	return is_beneath(pgdata, volume);
}

void lz_server_start(void)
{
	lz_server_start_by(NULL);
}

void lz_server_start_by(unsigned (*interpose)(void))
{
	int fd, mode = LZ_SERVER_GUARD;

	if (lz_lock_fd() >= 0 || !is_postgres() || !pgdata_in_volume())
		return;
	fd = lz_lock_branch(pgdata);
	/* The wrappers are the bare calls until the mode is set below, so it does no harm to be in their way before. */
	if (lz_reopen_works(fd, O_RDONLY | O_DIRECTORY) && (!interpose || interpose() > 0))
		mode |= LZ_SERVER_LAZY;
	(void)lz_shared_map(); /* counts only */
	__atomic_store_n(&lz_server_mode, mode, __ATOMIC_RELEASE);
}

/*
 * The directories of relations and of transaction status (SLRUs). pg_wal is not among them: what the server opens for
 * writing there it writes at once, and the log must not depend on anything that can fail between open and write.
 */
static const char lazy_dirs[][16] = {
	"base/", "global/", "pg_tblspc/", "pg_xact/", "pg_multixact/", "pg_subtrans/", "pg_commit_ts/", "pg_serial/", "pg_notify/",
};

int lz_is_data_path(const char *path)
{
	if (path[0] == '/') {
		path = lz_after(path, pgdata);
		if (!path || *path++ != '/')
			return 0;
	}
	while (path[0] == '.' && path[1] == '/')
		path += 2;
	for (size_t i = 0; i < sizeof(lazy_dirs) / sizeof(lazy_dirs[0]); i++)
		if (lz_after(path, lazy_dirs[i]))
			return 1;
	return 0;
}

int lz_is_lazy_open(int dirfd, const char *path, int flags)
{
	const int accmode = flags & O_ACCMODE;

	if (!(lz_in_server() & LZ_SERVER_LAZY))
		return 0;
	if (accmode != O_RDWR && accmode != O_WRONLY)
		return 0;
	if (flags & (O_EXCL | O_TRUNC | O_PATH | O_DIRECTORY)) /* O_TMPFILE contains O_DIRECTORY */
		return 0;
	if (!path || (dirfd != AT_FDCWD && path[0] != '/'))
		return 0;
	return lz_is_data_path(path);
}
