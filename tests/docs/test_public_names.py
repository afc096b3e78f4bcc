"""Every public name of the client and the embedded broker has an example in its docstring that runs
as it stands there, where NAMESRV_ADDR names a broker.
"""

from __future__ import annotations

import doctest

import pytest

import broker
import broker.client
from broker import Broker

NAMES = sorted({*broker.__all__, *broker.client.__all__})


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory):
    settings = {"messageDelayLevel": "1s 2s 3s", "enablePropertyFilter": True}
    folder = tmp_path_factory.mktemp("store")
    with Broker(folder, listenPort=0, with_namesrv=True, drain_s=0.1, **settings) as made:
        yield made.namesrv_address


@pytest.mark.parametrize("name", NAMES)
def test_its_example_runs(name, namesrv, tmp_path, monkeypatch):
    value = getattr(broker, name, None) or getattr(broker.client, name)
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    monkeypatch.chdir(tmp_path)
    found = doctest.DocTestParser().get_doctest(value.__doc__ or "", {}, name, None, None)
    assert found.examples, f"{name} has no example in its docstring"
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found, out=said.append)
    assert result.failed == 0, "".join(said)
