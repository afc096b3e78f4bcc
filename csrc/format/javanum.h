/* Text to numbers as Java's Integer.valueOf, Long.valueOf and Double.valueOf read it, down to what
 * they refuse: filters must agree with upstream's about which properties are numbers. No
 * allocation; the text is not terminated. */
#ifndef PS_JAVANUM_H
#define PS_JAVANUM_H

#include <stdbool.h>
#include <stdint.h>

/* An optional sign and decimal digits of any script of the basic plane, in UTF-8; no blanks. False
 * when it is not a number, or not within min to max. min is negative, max positive. */
bool ps_java_integer(const uint8_t *text, int32_t len, int64_t min, int64_t max, int64_t *out);

/* Decimal or hexadecimal, NaN and Infinity, with blanks around and a type suffix as Java allows. */
bool ps_java_double(const uint8_t *text, int32_t len, double *out);

/* Double.compare: NaN is equal to itself and above every number, and -0.0 is below 0.0. */
int ps_java_double_compare(double a, double b);

#endif
