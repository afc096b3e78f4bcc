/* The same as test_ha, under the thread sanitizer: the two ends, puts and dispatchers at once. */
#include "test_ha.c" /* NOLINT */
