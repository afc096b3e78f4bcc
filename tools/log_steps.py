"""What an operator does about each line of WARNING and above: a column of docs/logs.md.

`gen_logs.py` fails for a line that is not here, and for one here that nobody logs any more.
"""

from __future__ import annotations

__all__ = ["SPEAKING", "STEPS"]

_NOTHING = "nothing; it is retried, and the end is logged"
_DEFECT = "report it, with the traceback: it is a defect"
_YOURS = "mend the function that the traceback names: it is the application's"
_FILE = "look at the file and at the disk; `pystore verify` says what else is wrong"
_WRITE = "make room, or mend the permissions of the folder"
_NETWORK = "look whether the other side runs and is reached; it is retried"
_CLIENT = "look at the client at that address"

#: By the text of the line.
STEPS: dict[str, str] = {
    # ---- lite topics ----
    "%d messages came without a lite topic to topics of type LITE, %d in all to %.200s: groups of"
    " lite topics do not get them": "name a lite topic in each send",
    "Cannot expire lite topics now: %s": _NOTHING,
    "Cannot save subscriptions to lite topics now: %s": _WRITE,
    "Subscriptions to lite topics cannot be read: %s": "nothing; clients send them again",
    "Subscriptions of %.80r are not taken over: %s": "nothing; the client sends them again",
    # ---- the cold tier ----
    "Cannot look at the cold tier %s: %s": _NETWORK,
    "%s keeps no blocks of the cold tier: %s": _WRITE,
    "Offset %d of %s/%d cannot be had from the cold tier: %s": _NETWORK,
    "The cold tier rests after an error: %s": _NETWORK,
    "The cold tier rests after a defect": _DEFECT,
    "The disk was full: %d bytes of the log are gone that the cold tier does not have":
        "give the disk room, or set tieredWhenFull=REFUSE ([cold.md](cold.md))",
    "The store is empty: the queues of %d topics go on after the tier":
        "nothing, if the disk is new; make the topics' settings again ([cold.md](cold.md))",
    "Nothing is written out of a queue: %s":
        "see whose messages the tier has: `pystore cold ls`; then `pystore cold rm`, or another"
        " address",
    "A queue of the cold tier is left alone: %s":
        "see what is damaged: `pystore cold verify`; what is whole: `pystore salvage`; then"
        " `pystore cold rm --topic`",
    "Filters may miss messages of the cold tier: %s: %s":
        "see what is damaged: `pystore cold verify`; reads without a filter have everything",
    "Read in the cold tier: %s failed checks twice: %s":
        "see what is damaged: `pystore cold verify`; or set tieredWhenDamaged=WAIT",
    "Skipped in the cold tier: %s were damaged twice: %s":
        "see what is damaged: `pystore cold verify`; or set tieredWhenDamaged=WAIT",
    "The keys of %s have another CRC: all its messages are read":
        "nothing, queries are slower; what is damaged: `pystore cold verify`",
    "What is old in the cold tier cannot be told: %s": "see what is damaged: `pystore cold verify`",
    "Nothing more is written out: %s":
        "nothing, if another broker of that name leads; if none does: `pystore cold epoch`",
    "The cold tier was set back, or a full disk cut the log: %s":
        "see whether the object store was restored from an older state",
    "Another broker writes to the cold tier: %s":
        "make sure that one master of that name writes there",
    # ---- access control ----
    "The access list did not change, the old rules hold: %s": "correct the file; it is read again",
    "%s: %s: it is written again": _FILE,
    "%s: the copy of the users cannot be written: %s": _WRITE,
    "%s; it is in %s, and %s counts": "keep one of the two, and delete the other",
    "A rule of User:%s is on %s: a star that is not the last letter stands for nothing, the rule"
    " fits no other name": "write the star last, or name each resource",
    "Refused request %d of '%s' from %s: %s":
        "grant the right (`pystore acl add`), or find out who is at the address",
    "There is no user yet, and %s is refused: set initAuthenticationUser":
        "set it and start again ([access.md](access.md))",
    # ---- acting as master ----
    "The master does not hear that this slave acted: %s": _NETWORK,
    "The master does not take what was popped here: %s": _NETWORK,
    "Who is there of this broker's name is unknown: %s": _NETWORK,
    "%s: cannot send what is due": _DEFECT,
    "Serving without what %s did while the master was away: messages may come twice":
        "start that slave; consumers must bear a message twice",
    "What was delivered of delay level %d is unknown, and may come twice: %s": _FILE,
    "%s: what is due does not go to another broker now: %s": _NETWORK,
    "Of %d messages nobody says whether the slave at %s has sent them: they may come twice":
        "consumers must bear a message twice",
    "Cannot answer the password of a user: %s": "install `rocketmq-pystore[tls]`",
    "Cannot delete the list of what has gone: %s": _WRITE,
    "No name server says whether a slave acts as master: %s": "start a name server of 5.x",
    "Skipped a line of %s: %s": _FILE,
    "A slave may act in this master's place, which pauses until it has asked: %s":
        "mend its network to name servers and slaves",
    "Cannot take over what slaves did in this master's place; will retry: %s": _FILE,
    "The master is gone: this slave does what is due in its place": "start the master again",
    "The slave at %s does not say what it did: %s": _NETWORK,
    "The slave at %s has sent %d messages that are not in the log here: they are passed over":
        "find out whether this log lost its end, or who that slave is",
    "What was popped of what is deleted may come back: %s": _WRITE,
    "The slave at %s is not asked what it did: trustedSlaves does not name it":
        "name its host in trustedSlaves, or find out who has registered there",
    # ---- the broker ----
    "Listening on %s without access control or TLS: whoever reaches it may read, write and delete"
    " everything. Change it with\n  pystore broker --secure\nor listen on this host only:\n"
    "  bindAddress=127.0.0.1": "one of the two ([operate.md](operate.md#security-checklist))",
    "Setting: %s (%s)": "correct or delete the line ([doctor.md](doctor.md#settings))",
    "%d more settings: %s": "see them all: `pystore broker -c FILE --check-conf`",
    "Kept the certificate of before: %s":
        "correct tls.server.certPath and tls.server.keyPath: they are read once they change",
    "Kept the settings of before, since the file cannot be used: %s":
        "correct it (`--check-conf` names the line), then send SIGHUP again",
    "%d times there was no room for another consumer offset: maxOffsetsPerBroker":
        "delete groups that nobody uses, or raise it ([settings.md](settings.md))",
    "The broker opens its store again, since it cannot change its role":
        "nothing, if it serves then; else read the traceback, and start it again",
    "The store is not opened again": "read the traceback; `pystore verify`, then start it again",
    "Cannot listen on port %d for old clients: %s":
        "free the port, or set another listenPort: clients of 4.x use two below it",
    "Only a start takes over: %s": "start the broker again when it suits",
    "The log ends at %d now; what followed is in %s":
        "look at what was cut (`pystore salvage`)",
    # ---- clients ----
    "%s stands still; will ask again: %s": _NETWORK,
    "Cannot pull from %s; will retry: %s": _NETWORK,
    "Cannot start %s; will retry: %s": "the refusal says why; code 16: the user may not read it",
    "A hook of %s failed after an answer": _YOURS,
    "Background task of %s failed": _DEFECT,
    "Check of %s failed": _YOURS,
    "Handler of %s failed for %s": _YOURS + "; the message comes again",
    "Handler of %s has not returned for %g s: sent %s back for another delivery":
        "give the handler a bound of time, or raise handler_timeout_s",
    "Local work of %s failed": _YOURS,
    "Pulling from %s failed": _DEFECT,
    "Rebalance callback of %s failed": _YOURS,
    "The strategy %s failed: %s gets no queues": _YOURS,
    "%d checks are waiting: dropped one more": "answer checks faster; the broker asks again",
    "%s cannot acknowledge, and skips, %s":
        "a dead letter of another client, or INNER_MULTI_DISPATCH sent by hand: see its topic",
    "%s cannot pop %s; will retry: %s": _NETWORK,
    "%s could not commit; messages come again: %s": _NETWORK,
    "%s of %s did not reach the broker, which will ask: %s": "nothing; the check decides it",
    "%s stays open; the broker asks again: %s": "answer the check: keep what was decided",
    "%s: the broker moves this group from offset %d to %d":
        "nothing after a reset; else retention overtook it: more consumers or fileReservedTime",
    "%s; will ask another name server": _NETWORK,
    "Cannot acknowledge %s; it comes again: %s": _NETWORK,
    "Cannot keep %s; will retry: %s": _NETWORK,
    "Cannot read a check: %s": "look whether the broker is of another make or damaged",
    "Cannot send back %s; will redeliver locally: %s": _NETWORK,
    "Cannot send back %s; will retry: %s": _NETWORK,
    "Got a check for the group %s, which is not ours":
        "give producers that share a connection groups of their own",
    "No retries in broadcast mode: dropped %s": "handle failures in the handler itself",
    # ---- under a controller ----
    "The controller that elects masters: %s":
        "look whether the controller or etcd runs and is reached",
    "The in-sync set stays %s: %s":
        "nothing, if it passes; else `pystore ha group`",
    "A round of the controller failed": _DEFECT,
    "Following the master failed": _DEFECT,
    "The end of this broker's log may be missing, since its host or its store has changed:"
    " other members of the in-sync set are preferred":
        "nothing: it catches up",
    "Of the in-sync set, %s did not come back in time: acknowledged messages may be missing if this"
    " broker becomes the master":
        "compare with those brokers' stores",
    "No number for this broker yet: %s": "look whether controllerAddr is right and answers",
    "The controller is not reached: this master acknowledges nothing until it is (epoch %d)":
        "start the controller or etcd; `pystore ha group` shows who is master",
    "The lease at etcd cannot be renewed: %s": "look at etcd, and at the network between",
    # ---- gRPC ----
    "%s failed": _DEFECT,
    "A message of %s is no longer renewed: %s": "nothing; it is delivered again",
    "A message of %s that came %d times is not in the dead letters yet: %s": _NETWORK,
    "Nobody can acknowledge, so nobody gets: %s":
        "a broker of Apache stored a message of several lite topics, or a dead letter; nothing",
    "Cannot accept a gRPC connection: %s": "raise the limit of open files (`ulimit -n`)",
    "Cannot read a check of a transaction: %s": "look whether its broker is of another make",
    "Closed the gRPC connection of %s: %s": _CLIENT,
    # ---- metrics, name server ----
    "%d clients are connected to the pages; one more is refused":
        "find out who leaves connections open",
    "A malformed request was refused: %.200s":
        "find out who is at the port; a browser or a probe sends whole ones",
    "A request of `pystore web` failed": "read the traceback: it is a defect",
    "%d clients are connected to the metrics; one more is refused":
        "find out who leaves connections open; one scraper needs one",
    "A scrape failed": _DEFECT,
    "Metrics are not exported": "look whether the collector at metricsGrpcExporterTarget answers",
    "%d series of metrics are beyond metricsOtelCardinalityLimit=%d and left out":
        "raise the limit, or have fewer topics and groups",
    "Cannot notify %s that broker %d now has the lowest id: %s": _NETWORK,
    "No heartbeat from the broker at %s: broker removed":
        "look whether that broker runs, and reaches this name server",
    "The name server holds %d MB of registrations: it takes no more topics or brokers":
        "delete topics, or find out who registers so many",
    # ---- POP ----
    "Messages of %s cannot be brought back now: %s": _NOTHING,
    "%s cannot be read, so the log is asked: %s": _FILE,
    "%s is not read, so the log is asked: %s": _FILE,
    "%s is not written, so the next start asks the log: %s": _WRITE,
    "%s: line %d is damaged: ordered groups may get messages of the lines after it again": _FILE,
    "A change of ordered batches is passed over: %s": "verify the log; messages may come again",
    "A batch of %s@%s is popped again: %s": "nothing; its messages come again",
    "A crash now would repeat messages of ordered groups: %s: %s": _WRITE,
    "Batches of ordered groups are popped again: %s: %s": _FILE,
    "Changes of ordered batches cannot be read: %s": _FILE,
    "Ordered batches cannot be read: %s": _FILE,
    "Request modes cannot be read: %s: %s": _FILE,
    "Skipped a record of %s: %s": _FILE,
    "Passed over %d records of %s: of messages of other brokers, whose slaves put them here":
        "next time, let Apache's broker bring its messages back first",
    "The request mode of %s and %s is ignored: %s": "set it again (`mqadmin setConsumeMode`)",
    # ---- connections ----
    "A connection within the process failed": _DEFECT,
    "Reading from %s failed": _DEFECT,
    "Request %d from %s failed": _DEFECT,
    "%d connections are open; new ones are refused":
        "look who opens them; raise maxConnections and the limit of files",
    "Cannot accept connections: %s": "raise the limit of open files (`ulimit -n`)",
    "Closed %s: %s%s": _CLIENT,
    "Request %d from %s held the event loop for %d ms":
        "look whether the machine is short of processor time; if not, report it",
    # ---- delays, timers, duties, hooks ----
    "%s cannot deliver: %s": _NOTHING,
    "%s: passed over %d messages that cannot be read, or whose topic was deleted":
        "nothing if a topic was deleted; otherwise `pystore verify`, then [damage.md](damage.md)",
    "Java's timer files cannot be written: %s": _WRITE + "; a move to Java needs them",
    "Java's files of light queues cannot be written: %s":
        _WRITE + "; `pystore rebuild --light-files` makes them",
    "Closed %s: heartbeats of all clients take more than %d MB, its own %d MB": _CLIENT,
    "Cannot do the job: %s": _DEFECT,
    "Cannot finish %s: %s": "delete it again",
    "Cannot do the job: %s; will retry": _NOTHING,
    "Hook %s failed after a request": _YOURS,
    "Hook %s failed before a request": _YOURS,
    "Name server %s did not register this broker: %s": _NETWORK,
    # ---- replication ----
    "More than %d slaves: %s is closed": "find out who connects to the port for slaves",
    "The master at %s is not followed: %s": "as the reason says, which is written as soon as it is"
        " another one; it is retried",
    "The master's last records are not compared: %s": _NETWORK,
    "The slave at %s asks for %d of the log, which retention has deleted: it needs a copy of this"
    " store": "make one (`pystore clone`), and start the slave on it",
    "The slave at %s has a different log from this broker up to %d, and gets no data until its log"
    " has been compared as a whole: keep its store aside and begin with an empty one, or set"
    " haTruncateDiverged": "one of the two",
    "The slave at %s is closed: %s": "look at that slave's log: it says why it left, and retries",
    "The slave at %s is gone: %s": "look whether it runs and is reached; it comes back by itself",
    "The slave at %s may not follow: trustedSlaves does not name it":
        "name its host there, or find out who it is ([replication.md](replication.md))",
    "The slave at %s reports %d of the log, less than before: it is closed":
        "look whether its store was replaced; it comes back by itself",
    "The slave at %s reports a log up to %d, which this broker does not have: its log is a"
    " different one, and it gets no data": "begin with an empty store",
    "The slave at %s gets no data until its log up to %d has been compared: %s":
        "let the master ask it: [how](replication.md#logs-with-different-pasts)",
    "Fewer than %d brokers are in sync (minInSyncReplicas): sends are refused, but those with"
    " WAIT=false": "start the slaves; `pystore ha status` shows who is missing",
    "The log is cut back from %d to %d, where it is the master's: what follows is kept in aside/":
        "look at what was cut (`pystore salvage`)",
    "The log is cut back from %d to %d, where it is the master's: what follows is kept in aside/"
    " (haTruncateDiverged)":
        "look at what was cut (`pystore salvage`)",
    "The slave at %s has not taken changes of topics and groups, and will ask: %s": _NETWORK,
    "This store is in the cold tier, and begins again where the master's log does":
        "nothing; a longer fileReservedTime at the master spares the copy",
    "To the master, %s": _NETWORK,
    "%s are not taken over from the master: %s": _NETWORK,
    # ---- metadata, transactions, pages ----
    "%d consumer offsets count as none, as %.600r":
        "look where these groups begin to read; reset them (`mqadmin resetOffsetByTime`)",
    "The topic %.300r is not served: %s": "alter it (`mqadmin updateTopic`)",
    "The topic %.300r is not served: no topic can have that name": "delete it from the files",
    "The topic %.300r is served as an ordinary one: %s":
        "have clients copy it to a topic that is one before it is consumed from here",
    "Cannot write %s; will retry: %s": _WRITE,
    "Cannot discard the transaction at %d: %s": _NOTHING,
    "Cannot save open transactions; they remain in the log: %s": _WRITE,
    "Cannot track %d more transactions: %s":
        "find out why producers leave so many open (`pystore tx ls`)",
    "Cannot write decisions to the op topic; will retry: %s": _WRITE,
    "The half message at %d is lost; its transaction can no longer be decided: %s":
        "ask the application; `pystore verify` says what else is lost",
    "Discarded %d transactions (copies in %s); the records of %d are gone":
        "look at them (`pystore tx ls --discarded`), and resume those that are wanted",
    "The page %s failed": _DEFECT,
    # ---- the store ----
    "%s: Apache's broker keeps %s, which is not read: %s": "as the line says",
    "%s/%s: cannot be repaired: %s": _FILE,
    "%s: group %s stood past the end of %s: set back %s": "nothing; messages may come again",
    "%s: delay level %d stood past the end of its queue: set back from %d to %d": "nothing",
    "%s: config/%s is missing, and the log has messages: it begins empty":
        "restore it and remove meta/, if it matters",
    "%s: %d topic(s) with queues had no row for them; one was made: %s%s":
        "compare it with what it was",
    "A batch of %s@%s, queue %d, offsets %d to %d, is not taken: the queue ends at %d":
        "nothing; its messages are gone",
    "Offsets of %s are not taken: %s":
        "mend the file by its .bak and start again; else groups go on by consumerOffset.json",
    "Consumer offsets are of a log up to %d, this one ends at %d: all check points are looked for":
        "nothing; the log lost its end, or is another one",
    "%s: skipped %d damaged message(s) of queue %s/%d, the first at offset %d;"
    " info().damaged_reads counts them": "`pystore verify`, then [damage.md](damage.md)",
    "%s: the disk has room again; messages are accepted": "nothing",
    "%s: the disk is full; messages are refused until it has room":
        "make room, or lower fileReservedTime",
}  # fmt: skip

#: Lines that are all values, and say the rest themselves.
SPEAKING = {
    "%s": "what the line says: it names the file and the place",
    "%s/%s: %s: %s": "nothing; the report of recovery ([recovery.md](recovery.md)) has the rest",
}
