"""Every check of `pystore doctor`: why it matters and what mends it. docs/doctor.md shows the
same."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.services.setting_rules import RULES
from pystore.audit import Severity

__all__ = ["CHECKS", "Diagnosis", "DoctorCheck", "Severity", "diagnosed"]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One thing that may be wrong. severity: INFO is a note, which is worth knowing and does not
    change the exit code. of: what is looked at: any server, broker, name server, folder,
    settings, client. why: why it matters. mend: the command or the change that mends it; names in
    braces are filled in."""

    name: str
    of: str
    severity: Severity
    why: str
    mend: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a check found. where: what was looked at. text: what is wrong there."""

    check: str
    where: str
    text: str
    mend: str = field(default="")

    @property
    def severity(self) -> Severity:
        return CHECKS[self.check].severity

    @property
    def why(self) -> str:
        return CHECKS[self.check].why

    def as_dict(self) -> dict[str, str]:
        """Returns it ready for JSON."""
        return {
                  "check": self.check, "severity": self.severity.name.lower(), "where": self.where,
                  "text": self.text, "why": self.why, "mend": self.mend,
        }  # fmt: skip


_N, _W, _E = Severity.INFO, Severity.WARNING, Severity.ERROR

_ROWS = (
    # any server
    DoctorCheck(
        "no-answer",
        "server",
        _E,
        "clients cannot connect either",
        "start it, or correct the address; see what listens: ss -ltn",
    ),
    DoctorCheck(
        "late-answer",
        "server",
        _W,
        "it is there, but clients wait for it, too, or give up",
        "look at its load and its log; ask again: pystore doctor {where}",
    ),
    DoctorCheck(
        "not-rocketmq",
        "server",
        _E,
        "clients get errors that do not name the cause",
        "name the port of a broker (10911), a name server (9876) or a proxy (8081)",
    ),
    DoctorCheck(
        "tls-only",
        "server",
        _E,
        "clients without TLS are cut off without a reason",
        "pystore doctor {where} --trust broker.crt; clients: tls=True",
    ),
    DoctorCheck(
        "host-unknown",
        "server",
        _E,
        "the name has no address here, so nothing can connect",
        "correct the name, or add it to DNS or /etc/hosts",
    ),
    DoctorCheck(
        "access-refused",
        "server",
        _E,
        "these credentials, or none, may not ask this",
        "pystore doctor {where} --credentials admin.yml",
    ),
    DoctorCheck(
        "certificate-expired",
        "server",
        _E,
        "clients refuse it",
        "a new certificate and key at tls.server.certPath and tls.server.keyPath: no restart",
    ),
    DoctorCheck(
        "certificate-expires",
        "server",
        _W,
        "clients refuse it from then on",
        "a new certificate and key at tls.server.certPath and tls.server.keyPath: no restart",
    ),
    DoctorCheck(
        "certificate-name",
        "server",
        _E,
        "clients that look at the name refuse it",
        "a certificate that names {host}, or tls.client.verifyHost=false at the clients",
    ),
    # brokers
    DoctorCheck(
        "advertised-address",
        "broker",
        _E,
        "clients are sent to this address by the name server, and fail there",
        "pystore broker -c broker.conf --set brokerIP1={host}",
    ),
    DoctorCheck(
        "advertised-loopback",
        "broker",
        _E,
        "clients on other hosts, and in other containers, are sent to themselves",
        "pystore broker -c broker.conf --set brokerIP1={host}",
    ),
    DoctorCheck(
        "no-name-server",
        "broker",
        _W,
        "clients ask a name server, which does not know it",
        "pystore broker -c broker.conf -n HOST:9876, or --with-namesrv",
    ),
    DoctorCheck(
        "name-server-silent",
        "broker",
        _E,
        "new clients find no route through it",
        "start it: pystore namesrv, or take it from namesrvAddr",
    ),
    DoctorCheck(
        "name-server-address",
        "broker",
        _E,
        "the broker registers nowhere by such an address",
        "pystore admin config set namesrvAddr=HOST:9876 -b {where}, with ; between several",
    ),
    DoctorCheck(
        "other-cluster",
        "broker, name server",
        _W,
        "tools and proxies of the one cluster do not see it, nor do its topics reach there",
        "pystore broker -c broker.conf --set brokerClusterName={cluster}",
    ),
    DoctorCheck(
        "name-server-ignorant",
        "broker",
        _E,
        "clients of that name server never find it",
        "pystore admin config set namesrvAddr={namesrv} -b {where}",
    ),
    DoctorCheck(
        "name-taken",
        "broker, name server",
        _E,
        "two brokers have one name and id: clients reach now this one, now the other",
        "pystore broker -c broker.conf --set brokerName=OTHER",
    ),
    DoctorCheck(
        "clock-skew",
        "broker, name server",
        _W,
        "delays, timers and resets by time count by two clocks that disagree",
        "timedatectl set-ntp true, on both hosts",
    ),
    DoctorCheck(
        "open-door",
        "broker",
        _W,
        "whoever reaches it reads, writes and deletes everything",
        "pystore broker -c broker.conf --secure, or --set bindAddress=127.0.0.1",
    ),
    DoctorCheck(
        "access-file-broken",
        "broker",
        _E,
        "the rules of before hold; the change does not",
        "correct the file and line; pystore acl list --rules FILE checks it",
    ),
    DoctorCheck(
        "disk-full",
        "broker, folder",
        _E,
        "messages are refused, or will be in a moment",
        "free room, or: pystore admin config set fileReservedTime=HOURS -b HOST:PORT",
    ),
    DoctorCheck(
        "disk-full-soon",
        "broker, folder",
        _W,
        "messages will be refused then",
        "pystore admin config set fileReservedTime=HOURS -b HOST:PORT, or a larger disk",
    ),
    DoctorCheck(
        "disk-under-retention",
        "broker, folder",
        _W,
        "messages go before fileReservedTime is over, or are refused",
        "a larger disk, or a fileReservedTime that it can keep",
    ),
    DoctorCheck(
        "tier-unreachable",
        "broker",
        _E,
        "nothing is written out: the log stays, and fills the disk",
        "look at the address, its credentials and the log of the broker",
    ),
    DoctorCheck(
        "tier-behind",
        "broker",
        _W,
        "the log is kept for longer than fileReservedTime",
        "raise tieredPutsPerHour or tieredUploadRateMax: pystore admin config set",
    ),
    DoctorCheck(
        "tier-holds-disk",
        "broker",
        _W,
        "what is not in the cold tier stays until sends are refused",
        "pystore admin config set tieredWhenFull=LET_GO, or more room",
    ),
    DoctorCheck(
        "slow-disk",
        "broker, folder",
        _W,
        "with SYNC_FLUSH each send waits for it; else a crash loses more",
        "another disk for storePathCommitLog; see iostat -x 1",
    ),
    DoctorCheck(
        "no-slave",
        "broker",
        _E,
        "sends wait for copies that nobody makes, and time out",
        "start a slave, or: pystore admin config set inSyncReplicas=1 -b {where}",
    ),
    DoctorCheck(
        "slave-alone",
        "broker",
        _E,
        "it has no copy of what comes now",
        "pystore ha status {where} says why",
    ),
    # groups
    DoctorCheck(
        "subscriptions-disagree",
        "broker",
        _E,
        "each overwrites the others' subscription: messages are lost for some",
        "let all members of {group} subscribe to the same topics and tags",
    ),
    DoctorCheck(
        "client-id-twice",
        "broker",
        _E,
        "the queues are divided as if they were one: some are consumed twice, some by nobody",
        "give each member an instance name of its own, or none",
    ),
    DoctorCheck(
        "lag-deleted",
        "broker",
        _E,
        "the group never sees them",
        "raise fileReservedTime, or consume faster: pystore admin group show {group} -b {where}",
    ),
    DoctorCheck(
        "lag-over-retention",
        "broker",
        _E,
        "retention deletes what the group has not consumed",
        "pystore admin config set fileReservedTime=HOURS -b {where}, then look at {group}",
    ),
    DoctorCheck(
        "consumer-stands-still",
        "broker",
        _W,
        "messages wait, although somebody is connected",
        "pystore admin group show {group} -b {where}, then look at that consumer",
    ),
    DoctorCheck(
        "nobody-consumes",
        "broker",
        _W,
        "messages wait until retention deletes them",
        "start a consumer, or: pystore admin group delete {group} -b {where}",
    ),
    DoctorCheck(
        "lite-group-unbound",
        "broker",
        _W,
        "clients of the group are refused",
        "pystore admin topic create {topic} --type LITE -b {where}, or bind {group} to another",
    ),
    DoctorCheck(
        "lite-quota-near",
        "broker",
        _W,
        "one more lite topic or subscription is refused at the limit",
        "raise {setting}, or: pystore admin topic create TOPIC --lite-minutes 60 -b {where}",
    ),
    DoctorCheck(
        "lite-topic-missing",
        "broker",
        _W,
        "groups of lite topics do not get them",
        "name a lite topic in each send, or read {topic} by a group that is bound to no topic",
    ),
    DoctorCheck(
        "lite-topics-unread",
        "broker",
        _N,
        "their messages wait until they expire",
        "who subscribes: pystore admin lite topic {topic} LITE_TOPIC -b {where}",
    ),
    DoctorCheck(
        "transactions-unanswered",
        "broker",
        _W,
        "they stay open, and the log grows by a check each time",
        "start a producer of {group} with a check, or decide: pystore tx ls STORE",
    ),
    DoctorCheck(
        "dead-letters",
        "broker",
        _N,
        "nobody works on them until somebody redrives them",
        "pystore admin dlq list {group} -b {where}",
    ),
    # name servers
    DoctorCheck(
        "no-brokers",
        "name server",
        _E,
        "no client finds a route here",
        "pystore broker -n {where}, and look at namesrvAddr of the brokers",
    ),
    DoctorCheck(
        "broker-unreachable",
        "name server",
        _E,
        "clients are sent to this address, and fail there",
        "start that broker, or let it advertise another: --set brokerIP1=HOST",
    ),
    DoctorCheck(
        "no-master",
        "name server",
        _E,
        "nothing can be sent to this broker",
        "start its master, or: pystore ha promote FOLDER",
    ),
    # proxies
    DoctorCheck(
        "proxy-without-broker",
        "proxy",
        _E,
        "every call of a client fails",
        "start a broker, or correct namesrvAddr in rmq-proxy.json",
    ),
    DoctorCheck(
        "proxy-other-cluster",
        "proxy",
        _E,
        "it does not start, or serves another cluster than it is meant for",
        "correct rocketMQClusterName or namesrvAddr in rmq-proxy.json",
    ),
    DoctorCheck(
        "proxy-elsewhere",
        "proxy",
        _E,
        "its clients find other topics than those of the brokers",
        "pystore proxy -n {namesrv}",
    ),
    DoctorCheck(
        "proxy-address",
        "proxy",
        _E,
        "clients come back to this address, and fail there",
        "useEndpointPortFromRequest or localServeAddr in rmq-proxy.json",
    ),
    DoctorCheck(
        "proxy-message-size",
        "proxy",
        _W,
        "clients of gRPC cannot send what other clients can",
        "set maxMessageSize to {size} in rmq-proxy.json",
    ),
    DoctorCheck(
        "proxy-ports-clash",
        "proxy",
        _E,
        "the second of two ports cannot be opened",
        "give each its own port in rmq-proxy.json",
    ),
    DoctorCheck(
        "proxy-times-crossed",
        "proxy",
        _E,
        "the least is above the most: what clients ask for is refused or changed",
        "raise the second, or lower the first, in rmq-proxy.json",
    ),
    DoctorCheck(
        "proxy-inbound-small",
        "proxy",
        _E,
        "a message of the largest size does not fit into a call",
        "set grpcMaxInboundMessageSize above maxMessageSize in rmq-proxy.json",
    ),
    DoctorCheck(
        "proxy-renews-late",
        "proxy",
        _E,
        "messages come back to others while their consumer works on them",
        "set renewSchedulePeriodMillis below renewAheadTimeMillis in rmq-proxy.json",
    ),
    DoctorCheck(
        "proxy-unsigned",
        "proxy",
        _E,
        "it cannot ask brokers for users and rights",
        "innerClientAuthenticationCredentials, or --credentials admin.yml",
    ),
    # folders
    DoctorCheck(
        "not-a-store",
        "folder",
        _E,
        "a broker would begin an empty store here",
        "name the folder that has commitlog in it",
    ),
    DoctorCheck(
        "no-rights", "folder", _E, "a broker of this user cannot start", "chown -R {user} {where}"
    ),
    DoctorCheck(
        "other-owner",
        "folder",
        _W,
        "a broker of one of the users cannot start",
        "chown -R {user} {where}",
    ),
    DoctorCheck(
        "volatile-disk",
        "folder",
        _E,
        "the store is gone after a restart of the machine",
        "move the folder to a disk",
    ),
    DoctorCheck(
        "network-disk",
        "folder",
        _W,
        "locks and mappings of a network file system may lie",
        "move the folder to a local disk",
    ),
    DoctorCheck(
        "inodes-short",
        "folder",
        _E,
        "no file can be made, although there is room",
        "delete small files; df -i {where}",
    ),
    DoctorCheck(
        "crashed",
        "folder",
        _N,
        "the next start recovers it first, which takes longer",
        "pystore info {where}",
    ),
    DoctorCheck(
        "config-broken",
        "folder",
        _E,
        "Apache's broker does not start, or forgets offsets",
        "pystore verify {where}",
    ),
    DoctorCheck(
        "clock-behind",
        "folder",
        _W,
        "times of new messages lie before those in the log: searches by time go wrong",
        "timedatectl set-ntp true",
    ),
    DoctorCheck(
        "port-taken",
        "folder",
        _E,
        "the broker cannot start",
        "stop the other process, or: pystore broker -c broker.conf --port OTHER",
    ),
    DoctorCheck(
        "few-files",
        "broker, folder",
        _W,
        "connections are refused when the limit is reached",
        "LimitNOFILE=655350 in the unit, or ulimit -n 655350",
    ),
    DoctorCheck(
        "few-mappings",
        "broker, folder",
        _E,
        "the store cannot map its files, and does not open",
        "sysctl -w vm.max_map_count=655360",
    ),
    DoctorCheck(
        "segment-size",
        "folder",
        _E,
        "Apache's broker refuses to load files of another size than its setting",
        "set {name}={size} in broker.conf",
    ),
    # settings
    DoctorCheck(
        "refused-setting",
        "settings",
        _E,
        "the server does not start with it",
        "correct or delete the line",
    ),
    DoctorCheck(
        "no-effect", "settings", _W, "what it asks for does not happen here", "delete the line"
    ),
    DoctorCheck(
        "unknown-setting",
        "settings",
        _W,
        "neither this broker nor Apache's reads it",
        "delete the line",
    ),
    DoctorCheck(
        "given-twice",
        "settings",
        _W,
        "the earlier lines do not hold, although they are read first",
        "delete the other lines",
    ),
    DoctorCheck(
        "byte-order-mark",
        "settings",
        _W,
        "the same file means something else to Apache's broker",
        "save the file as UTF-8 without a mark",
    ),
    DoctorCheck(
        "server-unknown",
        "settings",
        _W,
        "the broker starts, and asks it in vain until the name has an address",
        "correct the name, or add it to DNS or /etc/hosts",
    ),
    DoctorCheck(
        "log-missing",
        "settings",
        _W,
        "the log fills another disk than is meant, until somebody looks",
        "mount its disk first, or make it",
    ),
    *(
        DoctorCheck(rule.check, "settings", _E if rule.is_grave else _W, rule.why, rule.mend)
        for rule in RULES
    ),
    # clients
    DoctorCheck(
        "no-address",
        "client",
        _E,
        "clients do not know whom to ask",
        "export NAMESRV_ADDR=HOST:9876",
    ),
    DoctorCheck("bad-address", "client", _E, "clients refuse it", "export NAMESRV_ADDR=HOST:9876"),
    DoctorCheck(
        "broker-as-name-server",
        "client",
        _E,
        "a broker knows no routes",
        "export NAMESRV_ADDR=HOST:9876",
    ),
    DoctorCheck(
        "half-credentials",
        "client",
        _E,
        "requests are not signed",
        "export ROCKETMQ_ACCESS_KEY=.. ROCKETMQ_SECRET_KEY=..",
    ),
)

CHECKS: dict[str, DoctorCheck] = {each.name: each for each in _ROWS}


def diagnosed(check: str, where: str, text: str, *, own: str = "", **filled: object) -> Diagnosis:
    """Makes the finding of a check. own: what mends this one, instead of the table's. filled: names
    in the mend."""
    made = own or CHECKS[check].mend
    for name, value in {"where": where, **filled}.items():
        made = made.replace(f"{{{name}}}", str(value))
    return Diagnosis(check, where, text, made)
