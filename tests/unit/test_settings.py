"""Settings: upstream's names and defaults, its file syntax, refusals with a place, and ps_conf."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pystore.native._core import ffi, lib

from pystore.configuration.upstream import UPSTREAM
from pystore.errors import BadArgument
from pystore.files.javaproperties import edit_java_properties, parse_java_properties
from pystore.settings import TABLE, fill, host_bytes, load

#: Fields of ps_conf that no setting of upstream's reaches, or that go with another field.
OWN_FIELDS = {
    "adopt_sizes", "keep_log", "queues_before", "store_host_len", "level_count", "reserve_window",
    "background", "compare_queues", "topics", "topic_count",
}  # fmt: skip


def conf_of(settings, root="/srv/store"):
    raw, keep = fill(ffi, settings, root)
    fields = {}
    for name, field in ffi.typeof("ps_conf").fields:
        value = getattr(raw, name)
        if field.type.kind == "array":
            value = bytes(value) if name == "store_host" else list(value)
        elif field.type.kind == "pointer":
            value = None if value == ffi.NULL else ffi.string(value).decode()
        fields[name] = value
    del keep
    return fields


def refusal(conf=None, **overrides):
    with pytest.raises(BadArgument) as caught:
        load(conf, overrides)
    return caught.value.text


# ---- the table ----


def test_defaults_are_upstreams():
    """Every default is upstream's but those it takes from the machine, and listenPort's 10911."""
    ours = {"brokerIP1": "127.0.0.1", "brokerName": "DEFAULT_BROKER"}
    for settings in UPSTREAM.values():
        for name, (kind, default) in settings.items():
            assert TABLE[name].default == ours.get(name, default), name
            assert TABLE[name].type == kind


def test_defaults_are_in_range_and_of_their_type():
    """A default given explicitly is taken, and means the same."""
    given_all = {row.name: row.default for row in TABLE.values() if row.default is not None}
    assert load(given_all).as_dict() == load().as_dict()


def test_without_settings_the_core_gets_its_own_defaults():
    """The table and ps_conf_init agree on every field of ps_conf."""
    plain = ffi.new("ps_conf *")
    lib.ps_conf_init(plain)
    filled = conf_of(load())
    assert filled.pop("root") == "/srv/store"
    for name, value in filled.items():
        expected = getattr(plain, name)
        if isinstance(value, list | bytes):
            expected = type(value)(expected)
        assert value == (None if value is None else expected), name


def test_each_field_of_the_core_has_a_setting():
    """No field of ps_conf is out of reach, and no row names a field that is not there."""
    fields = {name for name, _ in ffi.typeof("ps_conf").fields}
    assert {row.field for row in TABLE.values() if row.field} == fields - OWN_FIELDS


def test_used_settings_say_what_they_mean():
    """What the documents list has a meaning; the rest says who uses it."""
    for row in TABLE.values():
        assert row.used_by in ("store", "metadata", "broker", "none")
        assert row.meaning or row.used_by in ("broker", "none"), row.name


def test_names_of_other_versions_are_accepted():
    """A 4.9 or 5.5 broker.conf is not refused, be a name nearly one of 5.3.3's; what only those
    know has no effect."""
    assert load({"haSlaveFallbehindMax": "1", "enableSplitMetadata": "true"}).explicit
    assert load({"rocksdbCQSelectiveDoubleWriteEnable": "true"}).explicit, "since 5.5.1"
    assert load({"readAheadCacheCreateExpireDuration": "15000"}).explicit, "since 5.5.1"
    assert load({"popReviveConcurrency": "2"})["popReviveConcurrency"] == 2
    assert load({"priorityOrderAsc": "false"})["priorityOrderAsc"] is False


# ---- the file ----


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=1", {"a": (1, "1")}),
        ("a = 1 \r\n b:2\r c 3", {"a": (1, "1"), "b": (2, "2"), "c": (3, "3")}),
        ("\n# a=1 \\\n ! b=2\n c=3", {"c": (4, "3")}),
        ("a=x\\\n   y\\\n\tz\nb=1", {"a": (1, "xyz"), "b": (4, "1")}),
        ("a=x\\\\\nb=1", {"a": (1, "x\\"), "b": (2, "1")}),
        ("k\\=1\\:\\ x : v", {"k=1: x": (1, "v")}),
        ("a=\\u4e2d\\t\\n\\q", {"a": (1, "中\t\nq")}),
        ("a=\\ud83d\\ude00", {"a": (1, "😀")}),
        ("a", {"a": (1, "")}),
        ("a=1\na=2", {"a": (2, "2")}),
        ("a==b=c", {"a": (1, "=b=c")}),
        ("a=1\\", {"a": (1, "1")}),
        ("# only \\\n", {}),
    ],
)
def test_a_file_reads_as_in_java(text, found):
    """java.util.Properties syntax: separators, comments, continuation lines, escapes, last wins."""
    assert parse_java_properties(text) == found


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1),
        st.text(st.characters(codec="utf-8")).map(str.strip),
    )
)
def test_what_java_would_store_is_read_back(properties):
    """Any names and values survive when written as java.util.Properties.store does."""

    def escaped(text):
        units = text.encode("utf-16-be")
        pairs = zip(units[::2], units[1::2], strict=True)
        return "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs)

    text = "".join(f"{escaped(key)}={escaped(value)}\n" for key, value in properties.items())
    found = parse_java_properties(text)
    assert {key: value for key, (_, value) in found.items()} == properties


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
VALUES = st.text(st.characters(codec="utf-8"), max_size=8).map(str.strip)


@given(st.text("ab=: \\#!\n\r\t1", max_size=40), st.dictionaries(NAMES, VALUES, max_size=4))
@example(text="\n\\\r", changes={"0": ""})
def test_edited_entries_change_and_all_others_stay(text, changes):
    """Whatever the file looks like."""
    before = {name: value for name, (_, value) in parse_java_properties(text).items()}
    after = parse_java_properties(edit_java_properties(text, changes))
    assert {name: value for name, (_, value) in after.items()} == before | changes


def test_an_edited_file_keeps_comments_and_order():
    """A changed entry stays in its place, what is new comes last."""
    text = "# ours\n\nlistenPort : 1\nbrokerName=a\\\n  b\n! end"
    made = edit_java_properties(text, {"brokerName": "c", "x": "\u00e4", "listenPort": "2"})
    assert made == "# ours\n\nlistenPort=2\nbrokerName=c\n! end\nx=\\u00E4\n"


def test_a_file_with_a_broken_escape_is_refused_by_line(tmp_path):
    """The line number is that of the broken escape."""
    path = tmp_path / "broker.conf"
    path.write_text("listenPort=1\nbrokerName=\\u12\n")
    with pytest.raises(BadArgument, match=r"line 2: .*hexadecimal.*broker\.conf"):
        load(path)


@pytest.mark.parametrize(
    "data", [b"brokerName=caf\xc3\xa9\n", b"\xef\xbb\xbfbrokerName=caf\xc3\xa9"]
)
def test_a_file_is_utf_8(tmp_path, data):
    """UTF-8, with or without a mark at its start."""
    path = tmp_path / "broker.conf"
    path.write_bytes(data)
    assert load(path).brokerName == "café"


def test_a_file_that_is_no_utf_8_is_latin_1(tmp_path):
    """As Java reads every one."""
    path = tmp_path / "broker.conf"
    path.write_bytes(b"# \xd6\xd0\xce\xc4\nbrokerName=caf\xe9\n")
    assert load(str(path)).brokerName == "café"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """Missing, a folder, or far too large to be one."""
    large = tmp_path / "large.conf"
    with large.open("wb") as file:
        file.truncate(5 << 20)
    for path in (tmp_path / "missing.conf", tmp_path, large):
        with pytest.raises(BadArgument) as caught:
            load(path)
        assert caught.value.where == str(path)


def test_keywords_win_over_the_file(tmp_path):
    """Each value knows where it came from."""
    path = tmp_path / "broker.conf"
    path.write_text("# a broker\nlistenPort=1\nmaxMessageSize=2\n")
    settings = load(path, {"maxMessageSize": 3, "brokerName": None})
    assert (settings.listenPort, settings["maxMessageSize"]) == (1, 3)
    assert settings.explicit == {"listenPort", "maxMessageSize"}
    assert settings.source("listenPort") == f"{path}:2"
    assert settings.source("maxMessageSize") == "keyword"
    assert settings.source("brokerName") == "default"


# ---- refusals ----


def test_a_mistyped_name_is_refused_with_the_nearest(tmp_path):
    """Upstream ignores it silently; here the error names the place and the nearest name."""
    path = tmp_path / "broker.conf"
    path.write_text("\nflushDiscType=SYNC_FLUSH\n")
    with pytest.raises(BadArgument) as caught:
        load(path)
    assert caught.value.where == f"{path}:2"
    said = "'flushDiscType' is not a setting; the nearest name is 'flushDiskType'"
    assert caught.value.text == said
    assert "write flushDiskType" in caught.value.next_step
    assert refusal(FLUSHDISKTYPE="x").endswith("the nearest name is 'flushDiskType'")


def test_a_keyword_is_written_for_this_store_and_an_unknown_one_is_refused():
    assert refusal(qqqqqqqq=1) == "'qqqqqqqq' is not a setting"
    assert refusal(storeCheckpoint="/data").startswith("'storeCheckpoint' is not a setting")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxMessageSize", 0),
        ("maxMessageSize", 2**31 - 1),
        ("maxMessageSize", True),
        ("maxMessageSize", 1.5),
        ("maxMessageSize", "4M"),
        ("maxMessageSize", ""),
        ("maxMessageSize", "١"),
        ("mappedFileSizeCommitLog", 4095),
        ("mappedFileSizeCommitLog", 2**31),
        ("mappedFileSizeConsumeQueue", 19),
        ("maxIndexNum", 1),
        ("listenPort", 65536),
        ("listenPort", -1),
        ("fileReservedTime", 2**31),
        ("flushDiskType", "sync_flush"),
        ("flushDiskType", 1),
        ("checkCRCOnRecover", "yes"),
        ("checkCRCOnRecover", 1),
        ("brokerIP1", ""),
        ("brokerName", "a\0b"),
        ("deleteWhen", "24"),
        ("deleteWhen", "4;x"),
        ("storeFileMode", 0o640),
        ("storeFileMode", "rw-r-----"),
        ("storeFileMode", "06400"),
        ("messageDelayLevel", "1s 5"),
        ("messageDelayLevel", "1w"),
        ("messageDelayLevel", "1s " * 65),
        ("logicalDiskSpaceCleanForciblyThreshold", "nan"),
        ("logicalDiskSpaceCleanForciblyThreshold", "much"),
        ("enableDLegerCommitLog", True),
        ("storeType", "defaultRocksDB"),
        ("readOnlyCommitLogStorePaths", "/other"),
        ("defaultTopicQueueNums", 0),
        ("reviveMaxSlow", 2**63),
    ],
)
def test_a_bad_value_is_refused_with_name_value_and_place(name, value):
    """Upstream silently keeps its default then."""
    text = refusal(**{name: value})
    assert text.startswith(f"{name} = {value!r}: ")


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("0440", "the owner must be able to read and write"),
        ("0200", "the owner must be able to read and write"),
        ("0740", "it lets somebody execute the files"),
        ("0641", "it lets somebody execute the files"),
        ("4640", "it has special bits"),
        ("1640", "it has special bits"),
    ],
)
def test_a_file_mode_that_cannot_work_is_refused_by_name(mode, why):
    assert why in refusal(storeFileMode=mode)


@pytest.mark.parametrize(
    ("text", "mode"), [("0640", 0o640), ("600", 0o600), ("0660", 0o660), ("0666", 0o666)]
)
def test_a_file_mode_is_octal(text, mode):
    settings = load(None, {"storeFileMode": text})
    assert settings.file_mode == conf_of(settings)["file_mode"] == mode


@pytest.mark.parametrize(
    ("name", "value", "got"),
    [
        ("maxMessageSize", " 4194304 ", 4194304),
        ("maxMessageSize", "+5", 5),
        ("checkCRCOnRecover", "FALSE", False),
        ("checkCRCOnRecover", True, True),
        ("flushDiskType", "SYNC_FLUSH", "SYNC_FLUSH"),
        ("logicalDiskSpaceCleanForciblyThreshold", "0.5", 0.5),
        ("consumerFallbehindThreshold", 2**40, 2**40),
        ("enableDLegerCommitLog", "false", False),
        ("diskMaxUsedSpaceRatio", 200, 200),
    ],
)
def test_a_value_may_be_text_as_in_a_file(name, value, got):
    """Numbers, booleans and their texts mean the same."""
    result = load(None, {name: value})[name]
    assert result == got and type(result) is type(got)


# ---- the object ----


def test_settings_are_values():
    """They can be compared, copied, pickled; they cannot be changed."""
    settings = load(None, {"listenPort": 1})
    assert pickle.loads(pickle.dumps(settings)) == settings == copy.deepcopy(settings)
    assert settings != load()
    with pytest.raises(AttributeError):
        settings.listenPort = 2
    assert settings.replaced(listenPort=2).listenPort == 2
    assert settings.listenPort == 1


def test_a_wrong_attribute_names_the_nearest():
    """As load does for a wrong keyword."""
    with pytest.raises(AttributeError, match="nearest name is 'maxMessageSize'"):
        _ = load().maxMesageSize
    with pytest.raises(KeyError):
        _ = load()["maxMesageSize"]


def test_delay_levels_are_milliseconds():
    """Seconds, minutes, hours and days; any white space between levels."""
    settings = load(None, {"messageDelayLevel": " 1s  2m 3h\t4d 0s "})
    assert settings.delay_levels_ms == [1000, 120_000, 10_800_000, 345_600_000, 0]
    assert len(load().delay_levels_ms) == 18


@pytest.mark.parametrize(
    ("text", "mask"),
    [("04", 1 << 4), ("0; 23;", 1 | 1 << 23), ("", 0), ("4;16;4", 1 << 4 | 1 << 16)],
)
def test_delete_hours_are_a_mask(text, mask):
    """Bit h stands for the local hour h."""
    assert load(None, {"deleteWhen": text}).delete_hours == mask
    assert conf_of(load(None, {"deleteWhen": text}))["delete_when_hours"] == mask


@pytest.mark.parametrize(
    ("host", "port", "raw"),
    [
        ("10.0.0.2", 10911, "0a00000200002a9f"),
        ("::1", 1, "0000000000000000000000000000000100000001"),
        ("[fe80::1]", 2, "fe80000000000000000000000000000100000002"),
        ("::ffff:10.0.0.2", 3, "0a00000200000003"),
        ("localhost", 4, "7f00000100000004"),
    ],
)
def test_the_store_host_is_as_in_a_record(host, port, raw):
    """Address bytes and an i32 port; the length tells IPv4 from IPv6."""
    fields = conf_of(load(None, {"brokerIP1": host, "listenPort": port}))
    assert fields["store_host"][: fields["store_host_len"]].hex() == raw


def test_a_host_that_nobody_knows_is_refused():
    """Once it is needed, not when it is read: a reader may do without it."""
    with pytest.raises(BadArgument, match=r"brokerIP1 = 'no-such-host\.invalid'"):
        _ = load(None, {"brokerIP1": "no-such-host.invalid"}).store_host


def test_a_born_host_is_an_address_with_a_port():
    """No name is looked up for it."""
    assert host_bytes("10.0.0.1:40000").hex() == "0a00000100009c40"
    assert host_bytes("[::1]:7").hex() == host_bytes("::1").hex()[:-2] + "07"
    for bad in ("localhost:1", "10.0.0.1:65536", "10.0.0.1:", "", "::1:x", "[]"):
        with pytest.raises(BadArgument):
            host_bytes(bad)


def test_ratios_are_moved_into_upstreams_range():
    """docs/internals/format.md#retention: kept as given, clamped when used."""
    high = load(
        None,
        dict.fromkeys(
            ["diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio"],
            99,
        ),
    )
    fields = conf_of(high)
    used = fields["disk_max_used_ratio"], fields["disk_clean_ratio"], fields["disk_warning_ratio"]
    assert used == (95, 85, 90)
    assert high.diskMaxUsedSpaceRatio == 99
    assert load(None, {"diskMaxUsedSpaceRatio": -1}).clamped("diskMaxUsedSpaceRatio") == 10


# ---- folders ----


def test_the_commit_log_lies_in_the_root_by_default():
    """NULL says so to the core, so that a comma in the root splits nothing."""
    assert [str(each) for each in load().commitlog_dirs("/a,b")] == ["/a,b/commitlog"]
    assert conf_of(load(), "/a,b")["commitlog_dirs"] is None


def test_the_commit_log_may_lie_in_several_folders():
    """A comma list, as upstream has it; empty parts are passed over."""
    settings = load(None, {"storePathCommitLog": "/disk1/log, /disk2/log,"})
    assert conf_of(settings)["commitlog_dirs"] == "/disk1/log,/disk2/log"
    with pytest.raises(BadArgument, match="names no directory"):
        conf_of(load(None, {"storePathCommitLog": ","}))


def test_a_copy_opened_with_the_originals_file_stays_in_the_copy():
    """What lies in the file's own root is taken in the root that is opened; keywords are obeyed."""
    original = {"storePathRootDir": "/data/store", "storePathCommitLog": "/data/store/commitlog,/x"}
    assert conf_of(load(original), "/copy")["commitlog_dirs"] == "/copy/commitlog,/x"
    assert conf_of(load(None, original), "/copy")["commitlog_dirs"] == "/data/store/commitlog,/x"
    with pytest.raises(BadArgument, match="comma"):
        conf_of(load(original), "/co,py")


def test_the_root_of_the_call_wins():
    """storePathRootDir says where a broker has its store, the call which one is meant."""
    settings = load(None, {"storePathRootDir": "/data/store"})
    assert conf_of(settings, "/srv/../copy/")["root"] == "/copy"
    assert str(settings.root) == "/data/store" and load().root is None


def test_sizes_of_an_existing_store_win():
    """An existing store tells its sizes itself, also when others were asked for."""
    assert conf_of(load(None, {"mappedFileSizeCommitLog": 4096}))["adopt_sizes"] == 1


def test_settings_reach_the_core():
    """Texts become the numbers of ps_conf."""
    fields = conf_of(
        load(
            None, {"flushDiskType": "SYNC_FLUSH", "maxMessageSize": 7, "messageDelayLevel": "1s 2s"}
        )
    )
    assert (fields["sync_flush"], fields["max_message_size"], fields["level_count"]) == (1, 7, 2)
    assert fields["level_delay_ms"][:2] == [1000, 2000]
