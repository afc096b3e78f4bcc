"""The definitions of deploy/: what they start starts, and what they promise holds."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import BOUND_S, until

from broker import Broker
from pystore.cli._app import command_of
from pystore.settings import load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PROGRAM = Path(sys.executable).parent / "pystore"
UNITS = ["pystore-broker.service", "pystore-namesrv.service"]
GRACE_S = 30


def options_of(words: list[str]) -> set[str]:
    found = command_of()
    for word in words:
        found = found.commands[word]
    return {option for parameter in found.params for option in parameter.opts}


def check_command(words: list[str]) -> None:
    """That the program has the verb, and the verb the options."""
    verb = [word for word in words if not word.startswith("-")]
    depth = 2 if verb[0] == "admin" else 1
    known = options_of(verb[:depth])
    given = {word.partition("=")[0] for word in words if word.startswith("-")}
    assert given <= known, given - known


# ---- systemd ----


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_unit(name: str, tmp_path: Path) -> None:
    """With the program of this environment in the place of the installed one."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    text = (DEPLOY / name).read_text()
    for unit in UNITS:  # one names the other
        text_of = (DEPLOY / unit).read_text().replace("/usr/local/bin/pystore", str(PROGRAM))
        (tmp_path / unit).write_text(re.sub(r"^(User|Group)=.*\n", "", text_of, flags=re.M))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", tmp_path / name],
        capture_output=True, text=True, timeout=BOUND_S, check=False,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line or name in line]
    assert not ours, "\n".join(ours)
    assert done.returncode == 0, done.stderr
    assert "Type=notify" in text


@pytest.mark.parametrize("name", UNITS)
def test_the_unit_starts_a_verb_that_there_is(name: str) -> None:
    line = re.search(r"^ExecStart=\S+/pystore (.*)$", (DEPLOY / name).read_text(), re.M)
    assert line is not None
    check_command([word for word in shlex.split(line[1]) if "=" not in word or "--" in word])


def test_what_a_restart_cannot_mend_is_not_restarted() -> None:
    from pystore.cli._app import EXIT_CODES

    line = re.search(r"^RestartPreventExitStatus=(.*)$", (DEPLOY / UNITS[0]).read_text(), re.M)
    assert line is not None
    codes = set(map(int, line[1].split()))
    assert {EXIT_CODES[code].split()[0] for code in codes} == {"bad", "the", "another"}


# ---- containers ----


def test_the_image_starts_a_broker_that_stops_cleanly(tmp_path: Path) -> None:
    """What its ENTRYPOINT and CMD say, with this environment's program and another folder."""
    text = (DEPLOY / "Containerfile").read_text()
    entry, words = (
        json.loads(found[1])
        for found in (
            re.search(rf"^{name} (\[.*\])$", text, re.M) for name in ("ENTRYPOINT", "CMD")
        )
        if found is not None
    )
    assert entry == ["pystore"]
    check_command(words)
    words = [str(tmp_path / "s") if word == "/data/store" else word for word in words]
    words += ["--port", "0", "--namesrv-port", "0", "--json"]
    words += ["--set", "mappedFileSizeCommitLog=4194304", "--set", "maxMessageSize=65536"]
    with subprocess.Popen([PROGRAM, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ready"] == "broker"
        process.terminate()  # STOPSIGNAL
        assert process.wait(BOUND_S) == 0
    assert "STOPSIGNAL SIGTERM" in text and "USER rocketmq" in text


def test_the_image_exposes_the_ports_of_the_defaults() -> None:
    port = load(None, {})["listenPort"]
    exposed = re.search(r"^EXPOSE (.*)$", (DEPLOY / "Containerfile").read_text(), re.M)
    assert exposed is not None
    assert {str(port), str(port - 2), str(port + 1), "9876", "8081"} == set(exposed[1].split())


def test_the_image_takes_nothing_that_was_built_on_this_machine() -> None:
    ignored = set((DEPLOY.parent / ".dockerignore").read_text().splitlines())
    assert {".git", ".venv", "build", "**/*.so"} <= ignored


def test_the_user_of_the_image_is_that_of_the_pods(
    manifests: dict[tuple[str, str], Any],
) -> None:
    text = (DEPLOY / "Containerfile").read_text()
    for kind in ("StatefulSet", "Deployment"):
        for (found, _), manifest in manifests.items():
            if found == kind:
                context = manifest["spec"]["template"]["spec"]["securityContext"]
                assert f"--uid {context['runAsUser']} " in text
                assert f"--gid {context.get('fsGroup', context['runAsUser'])} " in text


# ---- Kubernetes ----


@pytest.fixture(scope="module")
def manifests() -> dict[tuple[str, str], Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def test_manifests_start_verbs_with_options_that_there_are(
    manifests: dict[tuple[str, str], Any],
) -> None:
    for key in (("Deployment", "namesrv"), ("StatefulSet", "broker")):
        (container,) = manifests[key]["spec"]["template"]["spec"]["containers"]
        check_command(container["args"])


def test_the_broker_has_a_disk_probes_and_time_to_stop(
    manifests: dict[tuple[str, str], Any],
) -> None:
    spec = manifests["StatefulSet", "broker"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    (claim,) = spec["volumeClaimTemplates"]
    (mount,) = container["volumeMounts"]
    assert claim["metadata"]["name"] == mount["name"]
    assert any(f"--store={mount['mountPath']}/" in word for word in container["args"])
    assert pod["terminationGracePeriodSeconds"] >= GRACE_S
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
    assert "--set=brokerIP1=$(POD_IP)" in container["args"]
    assert pod["securityContext"]["runAsNonRoot"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert manifests["Service", "broker"]["spec"]["selector"] == labels


def test_what_the_probes_ask_for_is_answered(
    manifests: dict[tuple[str, str], Any], tmp_path: Path
) -> None:
    """By a broker that was started with the settings of the manifest."""
    (container,) = manifests["StatefulSet", "broker"]["spec"]["template"]["spec"]["containers"]
    given = dict(
        word.removeprefix("--set=").split("=") for word in container["args"] if "--set=" in word
    )
    given |= {"brokerIP1": "127.0.0.1", "brokerName": "a", "metricsPromExporterPort": "0"}
    settings: dict[str, Any] = {**given, "mappedFileSizeCommitLog": 4 << 20}
    with Broker(
        tmp_path / "s", listenPort=0, with_namesrv=True, maxMessageSize=65536, **settings
    ) as broker:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["port"] == load(None, {})["metricsPromExporterPort"]
            url = f"http://127.0.0.1:{broker.metrics_port}{asked['path']}"
            until(lambda url=url: _answers_200(url), probe)


def _answers_200(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=BOUND_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False
