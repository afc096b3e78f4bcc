"""Repairs of a store, whoever's broker wrote it.

::

    from pystore.repair import plan, repair, undo

    for action in plan("store").actions:
        print(action.file, action.what)
    done = repair("store")
    assert done.after.sound

``pystore repair`` and ``pystore rebuild`` are the same on the command line.
"""

from pystore.repair.manifest import Action
from pystore.repair.repair import Repair, plan, rebuild, repair, undo
from pystore.repair.salvage import Salvaged, salvage

__all__ = ["Action", "Repair", "Salvaged", "plan", "rebuild", "repair", "salvage", "undo"]
