/* MD5 (RFC 1321), for digests that clients compare bodies with. Of no use against anybody. */
#ifndef PS_MD5_H
#define PS_MD5_H

#include <stdint.h>

#define PS_MD5_LEN 16

void ps_md5(const uint8_t *data, int64_t len, uint8_t out[PS_MD5_LEN]);

#endif
