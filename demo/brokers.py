"""The command line on stores that the Java broker wrote: one was stopped, one killed under load."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.table import Table
from rich.text import Text

import pystore
from demo.terminal import console

PATIENCE_S = 20
#: What the script `pystore` runs, so that the demo works where it is not on the path.
PROGRAM = "import sys; from pystore.cli import main; sys.argv[0] = 'pystore'; sys.exit(main())"


def unpack(archive: Path, into: Path) -> Path:
    """The store folder out of a golden archive, without the timer files, which are mere zeros."""
    into.mkdir()
    leave = ["--exclude=store/timerlog", "--exclude=store/timerwheel"]
    subprocess.run(["tar", "-C", into, "-xJf", archive, *leave], check=True)
    return into / "store"


def command(folder: Path, *words: str, show: int = 6) -> None:
    """Runs `pystore WORDS` in `folder` as a user would, and shows the first lines it prints."""
    console.print(Text.assemble("  $ ", ("pystore " + shlex.join(words), "bold cyan")))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "COLUMNS": "96"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    lines = (done.stdout + done.stderr).rstrip().splitlines()
    for line in lines[:show]:
        console.print(Text("    " + line, style="dim"), overflow="ellipsis", no_wrap=True)
    if len(lines) > show:
        console.print(f"    [dim italic]and {len(lines) - show:,} lines more[/]")
    if done.returncode != 0:
        raise SystemExit(f"pystore {shlex.join(words)} ended with exit code {done.returncode}")


def stopped(folder: Path) -> None:
    """Every verb once on the store that was closed cleanly."""
    with pystore.Reader(folder / "store") as store:
        topic = "golden1_keys"
        message = store.read(topic, 1, 0)[0]
        key, place = message.keys[0], str(message.physical_offset)
    command(folder, "info", "store", show=12)
    command(folder, "dump", "store", "--topic", topic, "--kind", "msg")
    command(folder, "get", "store", "--at", place, show=20)
    command(folder, "query", "store", topic, key)
    command(folder, "tail", "store", topic, "-n", "3")


def ends(store: pystore.Reader | pystore.Store, topic: str) -> list[int]:
    return [queue.max_offset for queue in store.queues(topic)]


def units_on_disk(queue: Path) -> int:
    """Units of a consume queue folder that point somewhere: 20 bytes each, zeros after them."""
    data = b"".join(path.read_bytes() for path in sorted(queue.iterdir()))
    return sum(any(data[at : at + 20]) for at in range(0, len(data), 20))


def killed(folder: Path) -> None:
    """Looks at the killed store without touching it, then lets recovery put a copy right."""
    topic = "golden2_burst"
    root = folder / "killed"
    with pystore.Reader(root) as reader:
        info, seen = reader.info(), ends(reader, topic)
        found = [units_on_disk(root / "consumequeue" / topic / str(q)) for q in range(len(seen))]
        console.print(
            f"  abort file: {'there' if info.abort_present else 'none'};"
            f" the log ends at byte {info.log_max:,}. Read-only, nothing is written:"
        )
    command(folder, "info", "killed", show=8)
    with pystore.open(root) as store:
        report, after = store.report, ends(store, topic)
    table = Table(f"{topic}, queue", "units that the kill left", "a Reader shows", "after recovery")
    for queue, row in enumerate(zip(found, seen, after, strict=True)):
        table.add_row(str(queue), *(f"{n:,}" for n in row))
    console.print(table)
    if seen != after:
        raise SystemExit("the Reader did not foretell what recovery would keep")
    console.print(f"  pystore.open(copy).report, a recovery in {report.seconds * 1000:.1f} ms:")
    for name, value in report.as_dict().items():
        if isinstance(value, int | str) and name != "items_dropped":
            shown = f"{value:,}" if isinstance(value, int) else value
            console.print(f"    [dim]{name:<16}[/] {shown}")
    for item in report.items:
        where = f"{item.what} [{item.start:,}, {item.end:,})"
        console.print(
            Text.assemble(
                (f"    {item.action.name.lower():<16} ", "dim"),
                f"{where}: {item.records:,} {item.why}",
            )
        )


def show(golden: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="pystore-demo-") as made:
        folder = Path(made)
        console.rule("[bold]5[/]  a Java broker's folder, by the command line", align="left")
        unpack(golden / "normal-exit.tar.xz", folder / "a").rename(folder / "store")
        stopped(folder)
        console.rule("[bold]6[/]  a Java broker killed under load", align="left")
        unpack(golden / "killed.tar.xz", folder / "b").rename(folder / "killed")
        killed(folder)


def next_commands(folder: Path) -> None:
    """What to type next, on the store that the demo leaves."""
    here = Path.cwd()
    path = str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
    program = Path(sys.executable).with_name("pystore")
    name = str(program.relative_to(here) if program.is_relative_to(here) else "pystore")
    console.print("\nThe flights are yours now. Try:")
    for words in (
        f"{name} info {path}",
        f"{name} query {path} flights N725MQ",
        f"{name} get {path} --topic flights --queue 2 --offset 1000",
        f"{name} dump {path} --kind msg --json | head -3",
        f"{name} tail {path} flights -n 5",
        f"{name} --help",
    ):
        console.print(Text("  " + words, style="cyan"))
