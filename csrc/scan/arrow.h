/* The Arrow C data and stream interfaces, and what turns rows of a scan into record batches.
 *
 * A batch object owns the buffers of its columns. Every ArrowArray handed out (the batch itself,
 * each column, each child of a map) holds one reference on it, so a consumer may move and release
 * them in any order and on any thread. When the last is released the object goes back to the pool
 * with its buffers, already as large as the next batch needs them, with their pages already there.
 * ABI: https://arrow.apache.org/docs/format/CDataInterface.html and CStreamInterface.html. */
#ifndef PS_ARROW_H
#define PS_ARROW_H

#include <stdbool.h>
#include <stdint.h>

#include "format/layout.h"
#include "pystore.h"

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

#endif

#define PS_COLUMNS_MAX 32

/* One message on its way into the columns. Pointers borrow from the log's mapping, but for a body
 * that was inflated. What no column needs is not set; a row from a unit has offset, physical
 * offset and size alone. */
typedef struct ps_row {
    int64_t rw_offset;            /* queue offset */
    int64_t rw_physical;
    int64_t rw_from;              /* where the scan found it: the scan's own business */
    int32_t rw_size;              /* totalSize */
    int32_t rw_body_len;
    const uint8_t *rw_start;      /* of the record */
    const uint8_t *rw_middle;     /* store timestamp, store host */
    const uint8_t *rw_late;       /* reconsumeTimes and what follows */
    const uint8_t *rw_body;
    const uint8_t *rw_topic;
    const uint8_t *rw_properties;
    const uint8_t *rw_tags;       /* NULL: the message has none */
    const uint8_t *rw_keys;
    const uint8_t *rw_uniq;       /* UNIQ_KEY */
    const uint8_t *rw_lite;       /* __LITE_TOPIC */
    int32_t rw_topic_len, rw_properties_len;
    int32_t rw_tags_len, rw_keys_len, rw_uniq_len, rw_lite_len;
    int32_t rw_sys_flag;
} ps_row;

/* What every batch of a stream looks like. topic NULL: topic and queue id come from the records. */
typedef struct ps_arrow_layout {
    int32_t ly_count;
    int32_t ly_columns[PS_COLUMNS_MAX];  /* PS_COL_ */
    bool ly_nullable[PS_COLUMNS_MAX];
    const char *ly_topic;
    int32_t ly_topic_len;
    int32_t ly_queue_id;
    const char *ly_broker_name;
    int32_t ly_broker_name_len;
    int32_t ly_rows;                     /* of a full batch */
    int64_t ly_bytes;
} ps_arrow_layout;

typedef struct ps_arrow_pool ps_arrow_pool;
typedef struct ps_arrow_batch ps_arrow_batch;

/* Copies the layout, its strings too. NULL: no memory. */
ps_arrow_pool *ps_arrow_pool_new(const ps_arrow_layout *layout);
/* Ends the stream's part in the pool; batches out there keep it until they are released. */
void ps_arrow_pool_close(ps_arrow_pool *pool);

/* The schema of the layout. 0 or PS_E_NO_MEMORY. */
int ps_arrow_schema(const ps_arrow_layout *layout, struct ArrowSchema *out);

/* An empty batch, used before when there is one. NULL: no memory. */
ps_arrow_batch *ps_arrow_begin(ps_arrow_pool *pool);
/* Appends rows. 0, or PS_E_NO_MEMORY: then only dropping the batch makes sense. */
int ps_arrow_add(ps_arrow_batch *batch, const ps_row *rows, int32_t count);
/* Hands the batch over as a struct array. 0, or PS_E_NO_MEMORY with the batch dropped. */
int ps_arrow_finish(ps_arrow_batch *batch, struct ArrowArray *out);
void ps_arrow_drop(ps_arrow_batch *batch);

#endif
