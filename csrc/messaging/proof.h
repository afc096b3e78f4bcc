/* The header `authorization` of a call: whose key it names, and the signature of the date. What it
 * proves is for tables/access.h to say; what is not plain in it is for broker/grpc/access.py,
 * which has the rules. docs/internals/access.md#grpc-and-the-proxy */
#ifndef PS_H2_PROOF_H
#define PS_H2_PROOF_H

#include "messaging/proto.h"

/* False: it is not plain, or one of the two is missing. Both are borrowed from the text. */
bool ps_h2_proof_read(const char *text, ps_h2_text *key, ps_h2_text *signature);

#endif
