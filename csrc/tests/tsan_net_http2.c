/* The same under the thread sanitizer: calls of Python's, sends that the thread stores, and ends of
 * both. */
#include "test_net_http2.c"
