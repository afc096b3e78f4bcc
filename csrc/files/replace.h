/* Small files of a store's root that are replaced as a whole. */
#ifndef PS_REPLACE_H
#define PS_REPLACE_H

#include <limits.h>

#include "base/error.h"
#include "files/io.h"

/* folder/name; PS_E_ARGUMENT when that is too long. */
int ps_path_in(char out[PATH_MAX], const char *folder, const char *name, ps_error *e);
/* Makes folder/name hold these bytes, by a temporary file, a sync and a rename; then syncs the
 * folder. A crash leaves the old file or the new one. */
int ps_replace_file(ps_io *io, const char *folder, const char *name, const void *bytes, int64_t len,
                    ps_error *e);

#endif
