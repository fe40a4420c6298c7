/*
 * When and where the shim works: in a `postgres` process, from the moment it is about to create postmaster.pid, if its
 * data directory lies in the volume that carries the shim. Everywhere else each wrapper is the bare system call behind
 * one load and one branch.
 */
#ifndef LAZYRW_SERVER_H
#define LAZYRW_SERVER_H

/* Bits of lz_server_mode. Set once, by the postmaster (or --single, --boot) before its first fork. */
enum {
	LZ_SERVER_GUARD = 1, /* the branch lock is held and its descriptor protected */
	LZ_SERVER_LAZY = 2,  /* opens are lazy */
};

extern int lz_server_mode;

static inline int lz_in_server(void)
{
	return __atomic_load_n(&lz_server_mode, __ATOMIC_RELAXED);
}

/*
 * Whether this open is the one by which every Postgres server claims its data directory: CreateLockFile
 * (utils/init/miscinit.c, 14 to 18) does open("postmaster.pid", O_RDWR | O_CREAT | O_EXCL), relative, after
 * ChangeToDataDir. PostmasterMain, PostgresSingleUserMain and BootstrapModeMain all come through here before they open a
 * relation, pg_control for writing, or fork.
 */
int lz_is_server_claim(const char *path, int flags);

/* Decides whether this process is such a server; if so takes the branch lock (which may end the process) and goes to work. */
void lz_server_start(void);

/*
 * The same for a server that has its postmaster.pid already, and whose calls do not yet come here: interpose makes them,
 * and returns 0 when it cannot.
 */
void lz_server_start_late(unsigned (*interpose)(void));

/* Notes that the server's claim has succeeded: postmaster.pid is there. */
void lz_server_claimed(void);

/*
 * Whether an open of path for writing with these flags is to be lazy. It decides what is saved, never what is right: a
 * lazy descriptor behaves the same whatever its file.
 */
int lz_is_lazy_open(int dirfd, const char *path, int flags);

/* Whether path is one of the files that are opened lazily. */
int lz_is_data_path(const char *path);

#endif
