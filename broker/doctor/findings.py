"""Every check of `pystore doctor`: why it matters and what mends it. docs/doctor.md shows the
same."""

from __future__ import annotations

from dataclasses import dataclass, field

from pystore.audit import Severity

__all__ = ["CHECKS", "Diagnosis", "HealthCheck", "Severity", "diagnosed"]


@dataclass(frozen=True, slots=True)
class HealthCheck:
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
    HealthCheck(
        "no-answer",
        "server",
        _E,
        "clients cannot connect either",
        "start it, or correct the address; see what listens: ss -ltn",
    ),
    HealthCheck(
        "not-rocketmq",
        "server",
        _E,
        "clients get errors that do not name the cause",
        "name the port of a broker (10911), a name server (9876) or a proxy (8081)",
    ),
    HealthCheck(
        "tls-only",
        "server",
        _E,
        "clients without TLS are cut off without a reason",
        "pystore doctor {where} --trust broker.crt; clients: tls=True",
    ),
    HealthCheck(
        "host-unknown",
        "server",
        _E,
        "the name has no address here, so nothing can connect",
        "correct the name, or add it to DNS or /etc/hosts",
    ),
    HealthCheck(
        "access-refused",
        "server",
        _E,
        "these credentials, or none, may not ask this",
        "pystore doctor {where} --credentials admin.yml",
    ),
    # brokers
    HealthCheck(
        "advertised-address",
        "broker",
        _E,
        "clients are sent to this address by the name server, and fail there",
        "pystore broker -c broker.conf --set brokerIP1={host}",
    ),
    HealthCheck(
        "advertised-loopback",
        "broker",
        _E,
        "clients on other hosts, and in other containers, are sent to themselves",
        "pystore broker -c broker.conf --set brokerIP1={host}",
    ),
    HealthCheck(
        "no-name-server",
        "broker",
        _W,
        "clients ask a name server, which does not know it",
        "pystore broker -c broker.conf -n HOST:9876, or --with-namesrv",
    ),
    HealthCheck(
        "name-server-silent",
        "broker",
        _E,
        "new clients find no route through it",
        "start it: pystore namesrv, or take it from namesrvAddr",
    ),
    HealthCheck(
        "name-server-ignorant",
        "broker",
        _E,
        "clients of that name server never find it",
        "pystore admin config set namesrvAddr={namesrv} -b {where}",
    ),
    HealthCheck(
        "name-taken",
        "broker",
        _E,
        "two brokers have one name and id: clients reach now this one, now the other",
        "pystore broker -c broker.conf --set brokerName=OTHER",
    ),
    HealthCheck(
        "clock-skew",
        "broker",
        _W,
        "delays, timers and resets by time count by two clocks that disagree",
        "timedatectl set-ntp true, on both hosts",
    ),
    HealthCheck(
        "open-door",
        "broker",
        _W,
        "whoever reaches it reads, writes and deletes everything",
        "pystore broker -c broker.conf --secure, or --set bindAddress=127.0.0.1",
    ),
    HealthCheck(
        "access-file-broken",
        "broker",
        _E,
        "the rules of before hold; the change does not",
        "correct the file and line; pystore acl list --rules FILE checks it",
    ),
    HealthCheck(
        "disk-full",
        "broker, folder",
        _E,
        "messages are refused, or will be in a moment",
        "free room, or: pystore admin config set fileReservedTime=HOURS -b HOST:PORT",
    ),
    HealthCheck(
        "disk-full-soon",
        "broker, folder",
        _W,
        "messages will be refused then",
        "pystore admin config set fileReservedTime=HOURS -b HOST:PORT, or a larger disk",
    ),
    HealthCheck(
        "slow-disk",
        "broker, folder",
        _W,
        "with SYNC_FLUSH each send waits for it; else a crash loses more",
        "another disk for storePathCommitLog; see iostat -x 1",
    ),
    HealthCheck(
        "no-slave",
        "broker",
        _E,
        "sends wait for copies that nobody makes, and time out",
        "start a slave, or: pystore admin config set inSyncReplicas=1 -b {where}",
    ),
    HealthCheck(
        "slave-alone",
        "broker",
        _E,
        "it has no copy of what comes now",
        "pystore ha status {where} says why",
    ),
    # groups
    HealthCheck(
        "subscriptions-disagree",
        "broker",
        _E,
        "each overwrites the others' subscription: messages are lost for some",
        "let all members of {group} subscribe to the same topics and tags",
    ),
    HealthCheck(
        "consumer-stands-still",
        "broker",
        _W,
        "messages wait, although somebody is connected",
        "pystore admin group show {group} -b {where}, then look at that consumer",
    ),
    HealthCheck(
        "nobody-consumes",
        "broker",
        _W,
        "messages wait until retention deletes them",
        "start a consumer, or: pystore admin group delete {group} -b {where}",
    ),
    HealthCheck(
        "transactions-unanswered",
        "broker",
        _W,
        "they stay open, and the log grows by a check each time",
        "start a producer of {group} with a check, or decide: pystore tx ls STORE",
    ),
    HealthCheck(
        "dead-letters",
        "broker",
        _N,
        "nobody works on them until somebody redrives them",
        "pystore admin dlq list {group} -b {where}",
    ),
    # name servers
    HealthCheck(
        "no-brokers",
        "name server",
        _E,
        "no client finds a route here",
        "pystore broker -n {where}, and look at namesrvAddr of the brokers",
    ),
    HealthCheck(
        "broker-unreachable",
        "name server",
        _E,
        "clients are sent to this address, and fail there",
        "start that broker, or let it advertise another: --set brokerIP1=HOST",
    ),
    HealthCheck(
        "no-master",
        "name server",
        _E,
        "nothing can be sent to this broker",
        "start its master, or: pystore ha promote FOLDER",
    ),
    # folders
    HealthCheck(
        "not-a-store",
        "folder",
        _E,
        "a broker would begin an empty store here",
        "name the folder that has commitlog in it",
    ),
    HealthCheck(
        "no-rights", "folder", _E, "a broker of this user cannot start", "chown -R {user} {where}"
    ),
    HealthCheck(
        "other-owner",
        "folder",
        _W,
        "a broker of one of the users cannot start",
        "chown -R {user} {where}",
    ),
    HealthCheck(
        "volatile-disk",
        "folder",
        _E,
        "the store is gone after a restart of the machine",
        "move the folder to a disk",
    ),
    HealthCheck(
        "network-disk",
        "folder",
        _W,
        "locks and mappings of a network file system may lie",
        "move the folder to a local disk",
    ),
    HealthCheck(
        "inodes-short",
        "folder",
        _E,
        "no file can be made, although there is room",
        "delete small files; df -i {where}",
    ),
    HealthCheck(
        "crashed",
        "folder",
        _N,
        "the next start recovers it first, which takes longer",
        "pystore info {where}",
    ),
    HealthCheck(
        "config-broken",
        "folder",
        _E,
        "Apache's broker does not start, or forgets offsets",
        "pystore verify {where}",
    ),
    HealthCheck(
        "clock-behind",
        "folder",
        _W,
        "times of new messages lie before those in the log: searches by time go wrong",
        "timedatectl set-ntp true",
    ),
    HealthCheck(
        "port-taken",
        "folder",
        _E,
        "the broker cannot start",
        "stop the other process, or: pystore broker -c broker.conf --port OTHER",
    ),
    HealthCheck(
        "few-files",
        "folder",
        _W,
        "connections are refused when the limit is reached",
        "LimitNOFILE=655350 in the unit, or ulimit -n 655350",
    ),
    HealthCheck(
        "few-mappings",
        "folder",
        _E,
        "the store cannot map its files, and does not open",
        "sysctl -w vm.max_map_count=655360",
    ),
    HealthCheck(
        "segment-size",
        "folder",
        _E,
        "Apache's broker refuses to load files of another size than its setting",
        "set {name}={size} in broker.conf",
    ),
    # settings
    HealthCheck(
        "refused-setting",
        "settings",
        _E,
        "the broker does not start with it",
        "correct or delete the line",
    ),
    HealthCheck(
        "no-effect", "settings", _W, "what it asks for does not happen here", "delete the line"
    ),
    HealthCheck(
        "ratios-crossed",
        "settings",
        _E,
        "puts are refused before retention frees anything",
        "set diskMaxUsedSpaceRatio below diskSpaceWarningLevelRatio",
    ),
    HealthCheck(
        "message-over-segment",
        "settings",
        _E,
        "such a message fits into no segment",
        "set maxMessageSize below mappedFileSizeCommitLog",
    ),
    HealthCheck(
        "bound-elsewhere",
        "settings",
        _E,
        "clients are sent to an address nobody listens at",
        "set bindAddress=0.0.0.0, or to the address of brokerIP1",
    ),
    HealthCheck(
        "sync-alone",
        "settings",
        _W,
        "SYNC_MASTER waits for no slave with inSyncReplicas=1",
        "set inSyncReplicas=2",
    ),
    HealthCheck(
        "slave-lost",
        "settings",
        _E,
        "a slave finds its master by a name server",
        "set namesrvAddr, or haMasterAddress",
    ),
    HealthCheck(
        "master-with-id", "settings", _E, "clients send to brokerId 0 only", "set brokerId=0"
    ),
    HealthCheck(
        "ports-clash",
        "settings",
        _E,
        "the second of two ports cannot be opened",
        "set haListenPort to another port",
    ),
    HealthCheck(
        "rights-without-users",
        "settings",
        _E,
        "rights are checked, but nobody is asked who he is",
        "set authenticationEnabled=true",
    ),
    HealthCheck(
        "checks-give-up-early",
        "settings",
        _W,
        "transactions are discarded before their producers had a minute to answer",
        "raise transactionCheckMax or transactionCheckInterval",
    ),
    # clients
    HealthCheck(
        "no-address",
        "client",
        _E,
        "clients do not know whom to ask",
        "export NAMESRV_ADDR=HOST:9876",
    ),
    HealthCheck("bad-address", "client", _E, "clients refuse it", "export NAMESRV_ADDR=HOST:9876"),
    HealthCheck(
        "broker-as-name-server",
        "client",
        _E,
        "a broker knows no routes",
        "export NAMESRV_ADDR=HOST:9876",
    ),
    HealthCheck(
        "half-credentials",
        "client",
        _E,
        "requests are not signed",
        "export ROCKETMQ_ACCESS_KEY=.. ROCKETMQ_SECRET_KEY=..",
    ),
)

CHECKS: dict[str, HealthCheck] = {each.name: each for each in _ROWS}


def diagnosed(check: str, where: str, text: str, **filled: object) -> Diagnosis:
    """Makes the finding of a check. filled: names in its mend."""
    made = CHECKS[check].mend
    for name, value in {"where": where, **filled}.items():
        made = made.replace(f"{{{name}}}", str(value))
    return Diagnosis(check, where, text, made)
