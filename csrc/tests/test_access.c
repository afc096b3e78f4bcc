/* Grants of the protocol core: who is let in by a signature, and who is handed to the broker. */
#define _GNU_SOURCE
#include <ctype.h>

#include "core_kit.h"
#include "messaging/proof.h"
#include "tables/access.h"
#include "toy.h"

#define SECRET "a-secret"

static const uint8_t here[4] = {10, 0, 0, 1}; /* of kit_conn */
static const uint8_t there[4] = {10, 0, 0, 2};

static char *folder;
static ps_conn *conn;

/* T may be sent to, and pulled from by G. */
static void begin(void) {
    ps_conf conf = kit_conf();
    ps_error e = {0};
    snprintf(kit_root, sizeof kit_root, "%s/store", folder);
    kit_open(&conf, 50);
    kit_topic("T", 1, HOT);
    kit_topic("U", 1, HOT);
    CHECK_EQ(0, ps_core_check_access(kit_core, &toy_digest, &e));
    ps_core_grant(kit_core, "K", 1, SECRET, 8, here, 4, 310, "T", 1, "", 0, "", 0);
    ps_core_grant(kit_core, "K", 1, SECRET, 8, here, 4, 11, "T", 1, "G", 1, "", 0);
    conn = kit_conn(1);
}

static void end(void) {
    ps_conn_free(conn);
    kit_close();
}

/* Adds the key and a signature by this secret over all of the frame. */
static void sign(kit_frame *f, const char *key, const char *secret, const char *body,
                 char text[PS_SIGNATURE_LEN + 1]) {
    ps_signer *signer = ps_signer_make(&toy_digest, secret, (int32_t)strlen(secret));
    kit_text(f, "AccessKey", key);
    CHECK(ps_signer_sign(signer, f->command.fields, f->command.field_count, ps_slice_of(body),
                         text));
    text[PS_SIGNATURE_LEN] = 0;
    kit_text(f, "Signature", text);
    ps_signer_free(signer);
}

/* 1: the core served it; 0: it was handed to the broker. */
static int served(kit_frame *f, const char *body) {
    int64_t before = ps_core_let_in(kit_core);
    kit_clear();
    CHECK_EQ(0, kit_ask(conn, f, body, (int64_t)strlen(body)));
    int64_t let_in = ps_core_let_in(kit_core) - before;
    CHECK_EQ(1, let_in + kit_handed_count);
    CHECK_EQ(let_in, kit_answer_count);
    return (int)let_in;
}

static int send_as(const char *key, const char *secret, const char *topic) {
    kit_frame f;
    char text[PS_SIGNATURE_LEN + 1];
    kit_send(&f, 0, 1, topic, 0, UNIQ);
    sign(&f, key, secret, "body", text);
    return served(&f, "body");
}

static int pull_as(const char *group) {
    kit_frame f;
    char text[PS_SIGNATURE_LEN + 1];
    kit_pull(&f, 1, group, "T", 0, 0, 0, 0);
    sign(&f, "K", SECRET, "", text);
    return served(&f, "");
}

static void test_what_is_granted_is_served(void) {
    begin();
    CHECK_EQ(1, send_as("K", SECRET, "T"));
    CHECK_EQ(0, kit_last()->code);
    CHECK_EQ(1, ps_core_let_in(kit_core));
    end();
}

static void test_another_key_secret_or_topic_is_handed_on(void) {
    begin();
    CHECK_EQ(0, send_as("L", SECRET, "T"));
    CHECK_EQ(0, send_as("K", "b-secret", "T"));
    CHECK_EQ(0, send_as("K", SECRET, "U"));
    CHECK_EQ(0, ps_core_let_in(kit_core));
    end();
}

static void test_a_pull_is_granted_to_its_group(void) {
    begin();
    kit_subscribe("G", "T", "", 0, 0);
    kit_subscribe("H", "T", "", 0, 0);
    CHECK_EQ(1, pull_as("G"));
    CHECK_EQ(0, pull_as("H"));
    end();
}

static void test_without_a_signature_it_is_handed_on(void) {
    kit_frame f;
    begin();
    kit_send(&f, 0, 1, "T", 0, UNIQ);
    CHECK_EQ(0, served(&f, "body"));
    kit_text(&f, "AccessKey", "K");
    CHECK_EQ(0, served(&f, "body"));
    kit_text(&f, "Signature", "short");
    CHECK_EQ(0, served(&f, "body"));
    end();
}

static void test_what_changes_after_signing_is_handed_on(void) {
    kit_frame f;
    char text[PS_SIGNATURE_LEN + 1];
    begin();
    kit_send(&f, 0, 1, "T", 0, UNIQ);
    sign(&f, "K", SECRET, "body", text);
    CHECK_EQ(0, served(&f, "bodY"));
    kit_replace(&f, "h", "8");
    CHECK_EQ(0, served(&f, "body"));
    kit_replace(&f, "h", "7");
    CHECK_EQ(1, served(&f, "body"));
    end();
}

/* 1: served. The binding stands in a field of this name. */
static int send_bound(const char *name, const char *binding) {
    kit_frame f;
    char text[PS_SIGNATURE_LEN + 1];
    kit_send(&f, 0, 1, "T", 0, UNIQ);
    kit_text(&f, name, binding);
    sign(&f, "K", SECRET, "body", text);
    return served(&f, "body");
}

static void test_what_is_bound_is_granted_as_it_is_bound(void) {
    begin();
    CHECK_EQ(0, send_bound("!for", "pystore-for a:1 310 n1\n"));
    ps_core_grant(kit_core, "K", 1, SECRET, 8, here, 4, 310, "T", 1, "", 0,
                  "pystore-for a:1 310", 19);
    CHECK_EQ(1, send_bound("!for", "pystore-for a:1 310 n2\n"));
    CHECK_EQ(0, send_bound("!for", "pystore-for b:1 310 n3\n"));
    CHECK_EQ(1, send_as("K", SECRET, "T"));
    end();
}

/* The field may be called otherwise, and be several: what is signed begins with the word. */
static void test_a_binding_counts_whatever_its_field_is_called(void) {
    kit_frame f;
    char text[PS_SIGNATURE_LEN + 1];
    begin();
    CHECK_EQ(0, send_bound("!a", "pystore-for b:1 310 n\n"));
    CHECK_EQ(0, send_bound("A", "pystore-for b:1 310 n\n"));
    CHECK_EQ(1, send_bound("z", "pystore-for b:1 310 n\n")); /* not what is signed first */
    kit_send(&f, 0, 1, "T", 0, UNIQ);
    kit_text(&f, "!a", "pystore-");
    kit_text(&f, "!b", "for b:1 310 n\n");
    sign(&f, "K", SECRET, "body", text);
    CHECK_EQ(0, served(&f, "body"));
    kit_send(&f, 0, 1, "T", 0, UNIQ); /* a grant's own words behind another's */
    ps_core_grant(kit_core, "K", 1, SECRET, 8, here, 4, 310, "T", 1, "", 0,
                  "pystore-for a:1 310", 19);
    kit_text(&f, "!a", "pystore-for b:1 310 n\n");
    kit_text(&f, "!for", "pystore-for a:1 310 n\n");
    sign(&f, "K", SECRET, "body", text);
    CHECK_EQ(0, served(&f, "body"));
    end();
}

static void test_a_grant_is_for_one_address(void) {
    begin();
    ps_core_revoke(kit_core);
    ps_core_grant(kit_core, "K", 1, SECRET, 8, there, 4, 310, "T", 1, "", 0, "", 0);
    CHECK_EQ(0, send_as("K", SECRET, "T"));
    ps_core_grant(kit_core, "K", 1, SECRET, 8, here, 4, 310, "T", 1, "", 0, "", 0);
    CHECK_EQ(1, send_as("K", SECRET, "T"));
    end();
}

static void test_revoked_grants_are_gone(void) {
    begin();
    ps_core_revoke(kit_core);
    CHECK_EQ(0, send_as("K", SECRET, "T"));
    ps_core_grant(kit_core, "K", 1, "b-secret", 8, here, 4, 310, "T", 1, "", 0, "", 0);
    CHECK_EQ(0, send_as("K", SECRET, "T"));
    CHECK_EQ(1, send_as("K", "b-secret", "T"));
    end();
}

/* Whether a gRPC call with this header over `conn` may send to a topic. */
static bool lets_call(const char *header, const char *date, const char *topic) {
    ps_h2_text key, signature;
    if (!ps_h2_proof_read(header, &key, &signature)) return false;
    const ps_proof p = {key.data, date, signature.data, key.len, (int32_t)strlen(date),
                        signature.len};
    int64_t before = ps_core_let_in(kit_core);
    bool good = ps_access_lets_call(conn, &p, 310, 310, ps_slice_of(topic), ps_slice_of(""));
    CHECK_EQ(good, ps_core_let_in(kit_core) - before);
    return good;
}

static void test_a_call_proves_its_key_by_the_date(void) {
    char hex[PS_SIGNATURE_HEX + 1] = "", header[200];
    ps_signer *signer = ps_signer_make(&toy_digest, SECRET, 8);
    CHECK(ps_signer_sign_text(signer, ps_slice_of("today"), hex));
    ps_signer_free(signer);
    begin();
    snprintf(header, sizeof header,
             "MQv2-HMAC-SHA1 Credential=K/region, SignedHeaders=x-mq-date-time, Signature=%s", hex);
    CHECK(lets_call(header, "today", "T"));
    CHECK(!lets_call(header, "todaY", "T"));
    CHECK(!lets_call(header, "today", "U"));
    for (char *c = strrchr(header, '='); *c; c++) *c = (char)toupper(*c);
    CHECK(lets_call(header, "today", "T"));
    header[strlen(header) - 1] ^= 1;
    CHECK(!lets_call(header, "today", "T"));
    snprintf(header, sizeof header, "MQv2-HMAC-SHA1 Signature=%s,Credential= L", hex);
    CHECK(!lets_call(header, "today", "T"));
    snprintf(header, sizeof header, "MQv2-HMAC-SHA1 Signature=%s,Credential= K ", hex);
    CHECK(lets_call(header, "today", "T"));
    ps_core_revoke(kit_core);
    CHECK(!lets_call(header, "today", "T"));
    end();
}

static void test_a_header_that_is_not_plain_proves_nothing(void) {
    static const char *const headers[] = {
        "", "MQv2-HMAC-SHA1", "MQv2-HMAC-SHA1 ", "MQv2-HMAC-SHA256 Credential=K,Signature=a",
        "MQv2-HMAC-SHA1 Credential=K", "MQv2-HMAC-SHA1 Signature=a", "MQv2-HMAC-SHA1 K,Signature=a",
        "MQv2-HMAC-SHA1 Credential=/K,Signature=a", "MQv2-HMAC-SHA1 Credential=K,Signature=a,",
        "MQv2-HMAC-SHA1 Credential=K,Signature= "};
    ps_h2_text key, signature;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        CHECK(!ps_h2_proof_read(headers[i], &key, &signature));
}

int main(void) {
    check_begin();
    folder = check_folder();
    test_what_is_granted_is_served();
    test_another_key_secret_or_topic_is_handed_on();
    test_a_pull_is_granted_to_its_group();
    test_without_a_signature_it_is_handed_on();
    test_what_changes_after_signing_is_handed_on();
    test_what_is_bound_is_granted_as_it_is_bound();
    test_a_binding_counts_whatever_its_field_is_called();
    test_a_grant_is_for_one_address();
    test_revoked_grants_are_gone();
    test_a_call_proves_its_key_by_the_date();
    test_a_header_that_is_not_plain_proves_nothing();
    check_remove(folder);
    free(folder);
    free(kit_handed);
    return check_end("access");
}
