/*
 * postmaster.pid, the file by which a server claims its data directory, and what the shim keeps beside it.
 *
 * In PGDATA/.pgoverlay lie, once a server has gone to work with the shim:
 *
 *   active          a few lines: which way in, whether opens are lazy, which object. The volume plugin reads it
 *   postmaster.pid  a second name of that server's postmaster.pid. The file that a server claims by is new at each start, so as long
 *                   as both names are one file, the server that claimed last is the one that `active` speaks of; and when the
 *                   first name is gone, the file's change time says when that server let go
 *
 * The second name also undoes what another server does that comes by the second way in: Postgres takes a postmaster.pid with its
 * own process id for a stale one, as every container has a process 1, and replaces it (utils/init/miscinit.c, CreateLockFile),
 * before it loads any library.
 */
#ifndef LAZYRW_CLAIM_H
#define LAZYRW_CLAIM_H

/*
 * Notes that this server has claimed the data directory, which is the current one: way is how the shim came in, and laziness
 * "yes" or the reason why it is not lazy. What cannot be written is left out: nothing but the plugin's word depends on it.
 */
void lz_claim_note(const char *way, const char *laziness);

/* Gives up the claim of a server that will not start. */
void lz_claim_drop(void);

/* Whether postmaster.pid says that this very process claimed the data directory. */
int lz_claim_is_own(void);

/*
 * Before the server opens its postmaster.pid again: if the name stands for another file just now, waits until the server that
 * replaced it has put it back, for three seconds at most. After that Postgres' own check is right to end the server
 * (RecheckDataDirLockFile): who replaced it knows nothing of the shim.
 */
void lz_claim_wait(void);

/*
 * For a server that has replaced another one's postmaster.pid and then found the branch locked. lend puts the other one's file
 * back under its name, and ours aside; retake undoes that, for when the lock could be had after all; leave removes ours for
 * good, and the other's too should nobody hold the branch any more.
 */
void lz_claim_lend(void);
void lz_claim_retake(void);
void lz_claim_leave(int branch_is_free);

#endif
