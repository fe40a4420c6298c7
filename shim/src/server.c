#include "server.h"
#include "claim.h"
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

/* The volume that it lies in. */
static char volume[LZ_PATH_MAX];

/* How the shim came in, and whether, or why not, it is lazy: for the note that a claim leaves. */
static const char *way, *laziness;

/* Of the server, from 18 on: a setting (storage/aio/aio.c). Weak, since every program of a container loads this object. */
extern int io_method __attribute__((weak, visibility("default")));

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
	if (lz_volume_of_shim(volume, sizeof(volume)) < 0)
		return 0;
	if (lz_sys_getcwd(pgdata, sizeof(pgdata)) <= 0 || pgdata[0] != '/') /* "(unreachable)/…" is no path */
		return 0;
	return is_beneath(pgdata, volume);
}

/* The plugin's word that this branch is to be eager, whatever its container says (volumedriver/preload.go). */
static int eager_is_wanted(void)
{
	char path[LZ_PATH_MAX + 32] = "";
	struct stat st;

	if (lz_append(path, sizeof(path), volume) < 0 || lz_append(path, sizeof(path), "/.pgoverlay/eager") < 0)
		return 0;
	return lz_sys_lstat(path, &st) == 0;
}

/*
 * io_uring goes around libc, and so around the wrappers. The settings have been read by the time of either way in: of a
 * server that knows this one, and was built with io_uring, the value is IOMETHOD_IO_URING (include/storage/aio.h).
 */
static int would_go_around(void)
{
	const int io_uring = 2;

	return &io_method && io_method == io_uring && !eager_is_wanted();
}

_Noreturn static void refuse_io_uring(void)
{
	lz_refuse("data directory", pgdata, " is a lazy branch, which io_method=io_uring would go around; "
		  "set io_method to worker or sync, or make the branch with cow=off", 0);
}

/* What the server may do, and in `laziness` why it may not be lazy. */
static int mode_of(int fd, unsigned (*interpose)(void))
{
	if (eager_is_wanted()) {
		laziness = "unwanted";
		return LZ_SERVER_GUARD;
	}
	if (!lz_reopen_works(fd, O_RDONLY | O_DIRECTORY)) {
		laziness = "no /proc";
		return LZ_SERVER_GUARD;
	}
	/* The wrappers are the bare calls until the mode is set, so it does no harm to be in their way before. */
	if (interpose && interpose() == 0) {
		laziness = "not interposed";
		return LZ_SERVER_GUARD;
	}
	laziness = "yes";
	return LZ_SERVER_GUARD | LZ_SERVER_LAZY;
}

static int is_ours(void)
{
	return lz_lock_fd() < 0 && is_postgres() && pgdata_in_volume();
}

static void go_to_work(int lock, unsigned (*interpose)(void))
{
	int mode = mode_of(lock, interpose);

	(void)lz_shared_map(); /* counts only */
	__atomic_store_n(&lz_server_mode, mode, __ATOMIC_RELEASE);
}

void lz_server_start(void)
{
	if (!is_ours())
		return;
	if (would_go_around())
		refuse_io_uring();
	way = "LD_PRELOAD";
	go_to_work(lz_lock_branch(pgdata, NULL), NULL);
}

void lz_server_start_late(unsigned (*interpose)(void))
{
	static const struct lz_contest contest = { lz_claim_lend, lz_claim_retake, lz_claim_leave };
	int lock;

	if (!is_ours())
		return;
	way = "shared_preload_libraries";
	lock = lz_lock_branch(pgdata, &contest);
	if (!lz_claim_is_own())
		lz_refuse("data directory", pgdata, " was claimed by another Postgres server at the same moment; start this one again", 0);
	if (would_go_around()) {
		lz_claim_drop();
		refuse_io_uring();
	}
	go_to_work(lock, interpose);
	lz_server_claimed();
}

void lz_server_claimed(void)
{
	lz_claim_note(way, laziness);
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
