/* Settings: their defaults and what is refused. */
#define _GNU_SOURCE
#include <limits.h>
#include <string.h>

#include "store/store.h"

#define GIB (1LL << 30)

int32_t ps_abi(void) {
    return PS_ABI;
}

int64_t ps_struct_size(int32_t which) {
    static const int64_t sizes[] = {sizeof(ps_conf), sizeof(ps_report),     sizeof(ps_info),
                                    sizeof(ps_view), sizeof(ps_put_result), sizeof(ps_scan)};
    return which >= 0 && which < (int32_t)(sizeof sizes / sizeof sizes[0]) ? sizes[which] : -1;
}

static void default_levels(ps_conf *c) {
    static const int32_t seconds[] = {1,   5,   10,  30,  60,  120,  180,  240,  300,
                                      360, 420, 480, 540, 600, 1200, 1800, 3600, 7200};
    c->level_count = sizeof seconds / sizeof seconds[0];
    for (int32_t i = 0; i < c->level_count; i++) c->level_delay_ms[i] = seconds[i] * 1000LL;
}

void ps_conf_init(ps_conf *c) {
    static const uint8_t loopback[8] = {127, 0, 0, 1, 0, 0, 0x2A, 0x9F};
    *c = (ps_conf){.commitlog_file_size = GIB,
                   .consumequeue_file_size = 300000 * PS_UNIT,
                   .index_slots = 5000000,
                   .index_entries = 20000000,
                   .adopt_sizes = 1,
                   .compare_queues = 1,
                   .flush_interval_ms = 500,
                   .flush_least_pages = 4,
                   .flush_thorough_ms = 10000,
                   .queue_flush_interval_ms = 1000,
                   .queue_flush_least_pages = 2,
                   .queue_flush_thorough_ms = 60000,
                   .sync_flush_timeout_ms = 5000,
                   .max_message_size = 4 << 20,
                   .check_crc_on_recover = 1,
                   .message_index_enable = 1,
                   .long_topic_v2 = 1,
                   .clean_interval_ms = 10000,
                   .file_reserved_hours = 72,
                   .delete_when_hours = 1u << 4,
                   .disk_max_used_ratio = 75,
                   .disk_clean_ratio = 85,
                   .disk_warning_ratio = 90,
                   .clean_forcibly = 1,
                   .delete_batch_max = 10,
                   .max_messages_in_memory = 32,
                   .max_bytes_in_memory = 256 << 10,
                   .max_messages_in_disk = 8,
                   .max_bytes_in_disk = 64 << 10,
                   .memory_ratio = 40,
                   .timer_enable = 1,
                   .timer_max_delay_s = 3 * 86400,
                   .timer_precision_ms = 1000,
                   .store_host_len = 8,
                   .reserve_window = 64 << 20,
                   .mapped_files_max = 16384,
                   .file_mode = PS_FILE_MODE,
                   .background = 1};
    memcpy(c->store_host, loopback, sizeof loopback);
    default_levels(c);
}

int ps_conf_check(const ps_conf *c, ps_error *e) {
    if (c->root == NULL || *c->root == 0)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "storePathRootDir is empty");
    if (strlen(c->root) > PATH_MAX - 400)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "storePathRootDir is too long");
    if (c->commitlog_file_size < 4096 || c->commitlog_file_size > INT32_MAX)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "mappedFileSizeCommitLog %lld is not between 4096 and 2147483647",
                       (long long)c->commitlog_file_size);
    if (c->consumequeue_file_size < PS_UNIT || c->consumequeue_file_size > INT32_MAX - PS_UNIT)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "mappedFileSizeConsumeQueue %lld is not between 20 and 2147483627",
                       (long long)c->consumequeue_file_size);
    if (c->index_slots < 1 || c->index_entries < 2)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "maxHashSlotNum %d is below 1, or maxIndexNum %d below 2", c->index_slots,
                       c->index_entries);
    if (c->store_host_len != 8 && c->store_host_len != 20)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "the store host is neither 8 nor 20 bytes long");
    if (c->reserve_window < 4096 || c->level_count < 0 || c->level_count > 64)
        return ps_fail(
            e, PS_E_ARGUMENT, 0, -1, NULL,
            "a reserve window of %lld bytes is below 4096, or %d delay levels are not from"
            " 0 to 64",
            (long long)c->reserve_window, c->level_count);
    if (c->mapped_files_max < 16)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL, "mappedFilesMax %d is below 16",
                       c->mapped_files_max);
    if ((c->file_mode & ~0066) != 0600)
        return ps_fail(e, PS_E_ARGUMENT, 0, -1, NULL,
                       "storeFileMode %04o: the owner must be able to read and write, and nobody to"
                       " execute",
                       (unsigned)c->file_mode);
    return 0;
}
