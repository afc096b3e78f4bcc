/* Names of lite topics. */
#ifndef PS_LITENAME_H
#define PS_LITENAME_H

#include <stdint.h>

/* cdef begin */
#define PS_LITE_NAME_MAX 64 /* bytes, as Apache's proxy has it (maxLiteTopicSize) */
#define PS_LITE_BLANK 1
#define PS_LITE_LONG 2
#define PS_LITE_LETTERS 3 /* others than A to Z, a to z, 0 to 9, '-' and '_' */
/* What is wrong with the name of a lite topic, of `most` bytes; 0: nothing. Upstream checks it in
 * its proxy alone (GrpcValidator). */
int32_t ps_lite_name_problem(const uint8_t *name, int32_t len, int32_t most);
/* Returns how many of these names, one after the other, `lens` bytes each, come before the first
 * one that has a problem. */
int32_t ps_lite_names_sound(const uint8_t *names, const int32_t *lens, int32_t count, int32_t most);
/* cdef end */

#endif
