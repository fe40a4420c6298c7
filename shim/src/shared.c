#include "shared.h"
#include "kernel.h"

static struct lz_shared unshared;

struct lz_shared *lz_shared = &unshared;

int lz_shared_map(void)
{
	long at = lz_sys_mmap(NULL, sizeof(*lz_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at < 0 && at > -4096)
		return (int)at;
	lz_shared = (struct lz_shared *)at;
	return 0;
}
