"""What is wrong with a broker, a name server, a proxy, a folder or a client's environment."""

from __future__ import annotations

from broker.doctor.examine import examine_folder, examine_network
from broker.doctor.findings import CHECKS, Diagnosis, DoctorCheck

__all__ = ["CHECKS", "Diagnosis", "DoctorCheck", "examine_folder", "examine_network"]
