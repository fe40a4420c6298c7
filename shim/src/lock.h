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

/*
 * Takes the lock for the server whose data directory is the current one, called pgdata in messages. Returns the
 * descriptor, marked in the descriptor table. Does not return when another server holds the lock, or when it cannot be
 * had for another reason: one line on stderr, exit status 1.
 */
int lz_lock_branch(const char *pgdata);

/*
 * Gives the lock another number, because the process wants this one (dup2 onto it). Returns 0 or -errno.
 */
int lz_lock_move(void);

/* The number of the lock's descriptor, or -1. */
int lz_lock_fd(void);

#endif
