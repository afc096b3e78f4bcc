"""Runs, and what Porcupine says of their histories:

    python tests/histories/run.py [--controller etcd,apache] [--seconds 600] [--seed N]
        [--clients 8] [--members java,ours,ours] [--sizes 1024-1048576] [--tier folder]

Prints the seed, the counts of operations and faults; keeps the folder of a run that fails."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: How late the end of a queue may be that a master tells: it was paused between an answer and what
#: makes the message visible.
SLACK = "20s"

__all__ = ["check", "may_run", "one", "program"]


def program() -> Path | None:
    """The compiled checker; None: Go or Porcupine cannot be had."""
    made = HERE.parents[1] / "build" / "histories"
    if shutil.which("go") is None:
        return None
    words = ["go", "build", "-o", str(made), "."]
    built = subprocess.run(words, cwd=HERE / "checker", capture_output=True, check=False)
    return made if built.returncode == 0 else None


def may_run(controller: str) -> str:
    """Why there can be no run here; empty: there can."""
    made = "ip link add br0 type bridge && nsenter -t $$ -n true"
    tried = subprocess.run(["unshare", "-n", "sh", "-c", made], capture_output=True, check=False)
    if tried.returncode:
        return "no network namespaces here"
    if controller == "etcd" and shutil.which("etcd") is None:
        return "etcd is not installed (etcd-server)"
    return ""


def check(checker: Path, history: Path, slack: str = SLACK) -> dict[str, Any]:
    words = [str(checker), "-slack", slack, str(history)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


def one(
    folder: Path,
    checker: Path,
    controller: str,
    seconds: float,
    seed: int,
    clients: int,
    plan: str,
    make: str = "ours",
    sizes: str = "0-0",
    tier: str = "none",
) -> tuple[dict[str, Any], list[str]]:
    """What happened, and what is wrong with it."""
    words = ["unshare", "-n", sys.executable, str(HERE / "driver.py"), str(folder), controller,
             str(seconds), str(seed), str(clients), plan, make, sizes, tier]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return {}, [f"the run ended with {done.returncode}: {done.stderr[-6000:]}"]
    out = dict(json.loads(done.stdout.splitlines()[-1]))
    found = check(checker, folder / "history.jsonl")
    wrong = [] if found["ok"] else [json.dumps(found, indent=1)]
    wrong += [each for each in out["verify"] if each]
    makes = make.split(",")
    ends = [0 if each == "ours" else 143 for each in (makes if len(makes) == 3 else makes * 3)]
    if out["exit"] != ends:
        wrong.append(f"the brokers ended with {out['exit']}")
    return out | {"checked": found}, wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--controller", default="etcd,apache")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--members", default="ours", help="ours or java: of all, or of each broker")
    parser.add_argument("--sizes", default="0-0", help="of bodies in bytes, at least and at most")
    parser.add_argument(
        "--tier",
        default="none",
        choices=("none", "folder", "s3"),
        help="a cold tier, out of which old messages are read; s3: one that fails",
    )
    given = parser.parse_args()
    checker, controllers = program(), given.controller.split(",")
    if checker is None:
        sys.exit("Porcupine cannot be had: Go is needed, and its module")
    print(f"SEED={given.seed}", flush=True)
    failed = False
    for controller in controllers:
        if why := may_run(controller):
            sys.exit(why)
        folder = Path(tempfile.mkdtemp(prefix="histories-"))
        seconds = given.seconds / len(controllers)
        out, wrong = one(folder, checker, controller, seconds, given.seed, given.clients, "random",
                         given.members, given.sizes, given.tier)  # fmt: skip
        counts = {name: out.get(name) for name in ("history", "faults", "epochs")}
        print(json.dumps({"controller": controller, "seconds": seconds} | counts), flush=True)
        for each in wrong:
            print(each)
        if wrong:
            failed = True
            (folder / "told").write_text("\n".join(out.get("told", [])))
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
