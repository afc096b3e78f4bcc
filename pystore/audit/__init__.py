"""Audits of a store: every check that its files allow, by whoever wrote it.

::

    from pystore import audit

    seen = audit.verify("/data/rocketmq/store")
    for finding in seen.errors:
        print(finding.file, finding.start, finding.meaning, finding.fix)

``pystore verify`` is the same on the command line. The checks are in C (csrc/audit); what each kind
of finding means, and what Apache RocketMQ does with it, is in :data:`KINDS`.
"""

from pystore.audit.findings import Audit, Finding, Kind, Mend, Severity
from pystore.audit.kinds import KINDS
from pystore.audit.sentences import describe, mend_command
from pystore.audit.verify import verify

__all__ = ["KINDS", "Audit", "Finding", "Kind", "Mend", "Severity", "describe", "mend_command",
           "verify"]  # fmt: skip
