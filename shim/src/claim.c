#include "claim.h"
#include "kernel.h"
#include "text.h"
#include "volume.h"

#define DIR ".pgoverlay"
#define PID "postmaster.pid"
#define KEPT DIR "/" PID

enum {
	ATTEMPTS = 60,
	PAUSE_MS = 50,
};

/* Our own postmaster.pid while another server's has its name; empty when it is not lent. */
static char aside[64];

/* A name that no other container uses: the process id alone does not do, they all have a process 1. */
static int fresh_name(char *name, size_t size)
{
	struct __kernel_timespec now = { 0 };
	const int realtime = 0; /* CLOCK_REALTIME */
	int rc;

	(void)lz_syscall(__NR_clock_gettime, realtime, (long)&now, 0, 0, 0, 0); /* fails for no clock of that number */
	name[0] = '\0';
	rc = lz_append(name, size, KEPT ".");
	rc |= lz_append_number(name, size, (unsigned long)lz_sys_getpid());
	rc |= lz_append(name, size, ".");
	rc |= lz_append_number(name, size, (unsigned long)now.tv_sec * 1000000000 + (unsigned long)now.tv_nsec);
	return rc;
}

static int same_file(const char *a, const char *b)
{
	struct stat sa, sb;

	return lz_sys_lstat(a, &sa) == 0 && lz_sys_lstat(b, &sb) == 0 && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

/* A second name for postmaster.pid, in place of the last server's. */
static void keep(void)
{
	char name[64];

	if (fresh_name(name, sizeof(name)) < 0 || lz_sys_link(PID, name) < 0)
		return;
	/* A rename between two names of one file does nothing (rename(2)): the fresh one is removed in any case. */
	(void)lz_sys_rename(name, KEPT, 0);
	(void)lz_sys_unlink(name);
}

static void write_note(const char *way, const char *laziness)
{
	char object[LZ_PATH_MAX], text[512] = "way=";
	int rc = 0;
	long fd;

	if (lz_path_of_shim(object, sizeof(object)) < 0)
		object[0] = '\0';
	rc |= lz_append(text, sizeof(text), way);
	rc |= lz_append(text, sizeof(text), "\nlazy=");
	rc |= lz_append(text, sizeof(text), laziness);
	rc |= lz_append(text, sizeof(text), "\narch=" LZ_ARCH "\nobject=");
	rc |= lz_append(text, sizeof(text), lz_basename(object));
	rc |= lz_append(text, sizeof(text), "\n");
	fd = lz_sys_openat(AT_FDCWD, DIR "/active", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	if (rc == 0)
		(void)lz_sys_write((int)fd, text, lz_length(text));
	(void)lz_sys_close((int)fd);
}

void lz_claim_note(const char *way, const char *laziness)
{
	/* Up to 17 the runtime's own folder; from 18 on PGDATA has one of its own for this. */
	(void)lz_sys_mkdir(DIR, 0755);
	write_note(way, laziness);
	keep(); /* last: it is what makes the note this server's */
}

void lz_claim_drop(void)
{
	(void)lz_sys_unlink(PID); /* left behind it is a stale one, which the next server takes for what it is */
}

int lz_claim_is_own(void)
{
	char text[32] = "";
	unsigned long pid;
	long fd = lz_sys_openat(AT_FDCWD, PID, O_RDONLY | O_CLOEXEC, 0);
	long n = -1;

	if (fd >= 0) {
		n = lz_sys_read((int)fd, text, sizeof(text) - 1);
		(void)lz_sys_close((int)fd);
	}
	if (n <= 0)
		return 0;
	pid = lz_number(text[0] == '-' ? text + 1 : text); /* negative in a standalone backend (miscinit.c, CreateLockFile) */
	return pid == (unsigned long)lz_sys_getpid();
}

void lz_claim_wait(void)
{
	struct stat st;

	if (lz_sys_lstat(KEPT, &st) < 0)
		return;
	for (int i = 0; i < ATTEMPTS && !same_file(PID, KEPT); i++)
		lz_sys_sleep_ms(PAUSE_MS);
}

void lz_claim_lend(void)
{
	if (aside[0] || same_file(PID, KEPT) || fresh_name(aside, sizeof(aside)) < 0)
		return;
	if (lz_sys_link(KEPT, aside) < 0) {
		aside[0] = '\0'; /* the other one's shim is older than this, and keeps none */
		return;
	}
	/* In one step: at no moment is there no postmaster.pid, which would end the other server. */
	if (lz_sys_rename(aside, PID, RENAME_EXCHANGE) < 0 && lz_sys_rename(aside, PID, 0) < 0)
		(void)lz_sys_unlink(aside);
}

void lz_claim_retake(void)
{
	if (aside[0])
		(void)lz_sys_rename(aside, PID, 0); /* lz_claim_is_own tells */
	aside[0] = '\0';
}

void lz_claim_leave(int branch_is_free)
{
	if (!aside[0])
		return;
	(void)lz_sys_unlink(aside);
	if (branch_is_free)
		(void)lz_sys_unlink(PID); /* put back at the moment when its server ended, and took nothing away */
}
