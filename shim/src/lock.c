#include "lock.h"
#include "fdtab.h"
#include "kernel.h"
#include "text.h"

/*
 * A server that has just stopped may still hold the lock for a moment: the log collector ends at the end of file of its
 * pipe, after the postmaster (postmaster/syslogger.c), and backends of a killed postmaster end when they next look. So
 * `pg_ctl restart` must be given some time, and a second server is refused after it.
 */
enum {
	ATTEMPTS = 60,
	PAUSE_MS = 50,
};

static int lock_fd = -1;

int lz_lock_fd(void)
{
	return lock_fd;
}

_Noreturn void lz_refuse(const char *what, const char *pgdata, const char *why, int errnum)
{
	char line[LZ_PATH_MAX + 256] = "FATAL:  lazyrw: ";
	int rc = lz_append(line, sizeof(line), what);

	rc |= lz_append(line, sizeof(line), " \"");
	rc |= lz_append(line, sizeof(line), pgdata);
	rc |= lz_append(line, sizeof(line), "\"");
	rc |= lz_append(line, sizeof(line), why);
	if (errnum > 0)
		rc |= lz_append_number(line, sizeof(line), (unsigned long)errnum);
	rc |= lz_append(line, sizeof(line), "\n");
	(void)rc; /* a line that did not fit is still a line */
	(void)lz_sys_write(LZ_STDERR, line, lz_length(line)); /* exiting is all that is left to do either way */
	lz_sys_exit(1);
}

static long try_lock(int fd, const struct lz_contest *contest)
{
	long rc = lz_sys_flock(fd, LOCK_EX | LOCK_NB);

	if (rc != -EWOULDBLOCK)
		return rc;
	if (contest)
		contest->lost_first();
	for (int i = 1; i < ATTEMPTS && rc == -EWOULDBLOCK; i++) {
		lz_sys_sleep_ms(PAUSE_MS);
		rc = lz_sys_flock(fd, LOCK_EX | LOCK_NB);
	}
	if (contest && rc == 0)
		contest->won();
	if (contest && rc != 0)
		contest->lost(lz_sys_flock(fd, LOCK_EX | LOCK_NB) == 0);
	return rc;
}

/* Moves fd out of the untracked range; only a process with tens of thousands of open files gets such a number. */
static long tracked(long fd)
{
	if (fd < LZ_MAXFD)
		return fd;
	(void)lz_sys_close((int)fd);
	return -EMFILE;
}

int lz_lock_branch(const char *pgdata, const struct lz_contest *contest)
{
	/* O_CLOEXEC: an archive_command or a COPY PROGRAM that outlives the server is no server. */
	long fd = tracked(lz_sys_openat(AT_FDCWD, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0));
	long rc;

	if (fd < 0)
		lz_refuse("could not open data directory", pgdata, ": errno ", (int)-fd);
	rc = try_lock((int)fd, contest);
	if (rc == -EWOULDBLOCK)
		lz_refuse("data directory", pgdata, " is in use by another Postgres server on this branch; stop that one first", 0);
	if (rc < 0)
		lz_refuse("could not lock data directory", pgdata, ": errno ", (int)-rc);
	lock_fd = (int)fd;
	lz_fd_set(lock_fd, LZ_FD_LOCK);
	return lock_fd;
}

int lz_lock_move(void)
{
	int old = lock_fd;
	long fd = tracked(lz_sys_fcntl(old, F_DUPFD_CLOEXEC, 0)); /* the lock is the description's: both numbers hold it */

	if (fd < 0)
		return (int)fd;
	lz_fd_set((int)fd, LZ_FD_LOCK);
	lock_fd = (int)fd;
	lz_fd_set(old, 0);
	return 0; /* the caller's dup2 closes the old number */
}
