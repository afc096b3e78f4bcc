"""The entry of the pytest plugin broker/testing.py, under a name that nobody gives to his own file.

pytest imports it at each start, in the folder of the user's tests. A ``broker.py`` there comes
before the package `broker`; that must stop the tests that ask for a broker, and no other.
"""

from __future__ import annotations

import pytest

__all__ = [
    "pytest_configure", "rocketmq_broker", "rocketmq_grpc", "rocketmq_namesrv", "rocketmq_topic",
]  # fmt: skip

try:
    from broker.testing import (
        pytest_configure,
        rocketmq_broker,
        rocketmq_grpc,
        rocketmq_namesrv,
        rocketmq_topic,
    )
except ImportError as failed:
    _why = failed

    def pytest_configure(config: pytest.Config) -> None:
        config.addinivalue_line("markers", "rocketmq(**settings): settings of rocketmq_broker")

    @pytest.fixture
    def rocketmq_broker() -> None:
        """Fails, and names the file that stands in the way."""
        from pystore.files.packages import check_package

        check_package("broker")
        raise _why

    @pytest.fixture
    def rocketmq_grpc(rocketmq_broker: None) -> None:
        """Fails as rocketmq_broker does."""

    @pytest.fixture
    def rocketmq_namesrv(rocketmq_broker: None) -> None:
        """Fails as rocketmq_broker does."""

    @pytest.fixture
    def rocketmq_topic(rocketmq_broker: None) -> None:
        """Fails as rocketmq_broker does."""
