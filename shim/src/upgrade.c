#include "upgrade.h"
#include "kernel.h"
#include "shared.h"

/* The process id of the holder, 0 when free. */
static uint32_t upgrading;

/*
 * A process that forked while another of its threads was here has the word set and no thread that will ever clear it: a
 * holder that is not this process is such a leftover, and the lock is taken over.
 */
static void lock_upgrades(void)
{
	uint32_t self = (uint32_t)lz_sys_getpid();

	for (;;) {
		uint32_t holder = 0;

		if (__atomic_compare_exchange_n(&upgrading, &holder, self, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return;
		if (holder != self && __atomic_compare_exchange_n(&upgrading, &holder, self, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return;
		lz_sys_sched_yield();
	}
}

static void unlock_upgrades(void)
{
	__atomic_store_n(&upgrading, 0, __ATOMIC_RELEASE);
}

/* The kernel's sigset: 64 signals on both architectures. rt_sigprocmask fails only for a bad address or size. */
static void set_signal_mask(const uint64_t *mask, uint64_t *old)
{
	enum { SET_MASK = 2 }; /* SIG_SETMASK; <asm/signal.h> drags in structures that differ by architecture */

	(void)lz_syscall(__NR_rt_sigprocmask, SET_MASK, (long)mask, (long)old, sizeof(*mask), 0, 0);
}

/*
 * Signals stay blocked throughout: a handler that wrote to a lazy descriptor would otherwise wait for the code which it
 * interrupted. They would not be served earlier in any case: a copy-up answers only to SIGKILL, which no mask stops.
 */
int lz_upgrade(int fd, enum lz_intent intent)
{
	const uint64_t all = ~(uint64_t)0;
	uint64_t saved;
	unsigned state;
	int rc = 0;

	set_signal_mask(&all, &saved);
	lock_upgrades();
	state = lz_fd_get(fd); /* again: another thread may have been first */
	if (state & LZ_FD_LAZY) {
		rc = lz_strategy->first_write(fd, (int)(state & LZ_FD_ACCMODE), intent);
		if (rc == 0)
			lz_fd_set(fd, 0);
		lz_count(rc == 0 ? &lz_shared->first_writes : &lz_shared->refused);
		if (rc == 0 && intent == LZ_EMPTY)
			lz_count(&lz_shared->emptied);
	}
	unlock_upgrades();
	set_signal_mask(&saved, NULL);
	return rc;
}
