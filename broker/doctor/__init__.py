"""What is wrong with a broker, a name server, a proxy, a folder or a client's environment."""

from __future__ import annotations

from broker.doctor.examine import examine_folder, examine_network
from broker.doctor.findings import CHECKS, Diagnosis, HealthCheck

__all__ = ["CHECKS", "Diagnosis", "HealthCheck", "examine_folder", "examine_network"]
