/*
 * The branch lock: two Postgres servers on one branch are impossible.
 *
 * flock(LOCK_EX) on a descriptor of PGDATA itself, opened O_RDONLY|O_DIRECTORY: it leaves no file, copies nothing up, and
 * holds across containers, since a volume that several of them use is one overlay mount, with one inode for PGDATA. The
 * lock belongs to the open file description: every backend inherits it by fork, and it is gone when the last one is.
 * Postgres' own check cannot do this: it asks kill(pid, 0) for the pid in postmaster.pid (utils/init/miscinit.c,
 * CreateLockFile), which means nothing in another container's process namespace, and then unlinks the file.
 */
#ifndef LAZYRW_LOCK_H
#define LAZYRW_LOCK_H

/* What a server does that has claimed the data directory before it asks for the lock. One that has not has no contest. */
struct lz_contest {
	void (*lost_first)(void);     /* another server holds the branch now */
	void (*won)(void);            /* and does no more: the lock is ours */
	void (*lost)(int is_free);    /* it still does; is_free: it ended in this very moment */
};

/*
 * Takes the lock for the server whose data directory is the current one, called pgdata in messages. Returns the
 * descriptor, marked in the descriptor table. Does not return when another server holds the lock, or when it cannot be
 * had for another reason: one line on stderr, exit status 1.
 */
int lz_lock_branch(const char *pgdata, const struct lz_contest *contest);

/* Ends the server with one line: what "pgdata" why, and the errno when it is not 0. */
_Noreturn void lz_refuse(const char *what, const char *pgdata, const char *why, int errnum);

/*
 * Gives the lock another number, because the process wants this one (dup2 onto it). Returns 0 or -errno.
 */
int lz_lock_move(void);

/* The number of the lock's descriptor, or -1. */
int lz_lock_fd(void);

#endif
