#include "table.h"
#include "text.h"

static void *in_list(const struct lz_wrapper *list, const char *name)
{
	for (; list->name; list++)
		if (lz_equal(list->name, name))
			return list->function;
	return NULL;
}

void *lz_wrapper_of(const char *name)
{
	void *found = in_list(lz_open_wrappers, name);

	if (!found)
		found = in_list(lz_write_wrappers, name);
	if (!found)
		found = in_list(lz_fd_wrappers, name);
	return found;
}
