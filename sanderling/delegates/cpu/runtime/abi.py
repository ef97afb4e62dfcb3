"""What generated code and those who call it agree on. Running code needs this, and not LLVM."""

from __future__ import annotations

ALIGN = 64
# Slots of the context. STRIDE is a number: bytes of scratch for each worker.
ARENA, WEIGHTS, SCRATCH, STRIDE, SYNC, TIMES, FAULT, VALUE, LIMIT, FIRST_ARG = range(10)
# FAULT is 0, or one more than the number of the site (program.py) that met what it must not accept;
# VALUE is what it met, LIMIT the end of what it accepts. `invoke` returns FAULT: see faults.py.
# Of code that counts, TIMES leads to ticks by [worker, step], then one word more: those of the
# whole call. Where it is 0, nothing is counted.
# Of code that is traced, TIMES leads to rows of LOG words instead: for each worker one row of its
# own (thread number) and one for each step (begin, end, end of the wait behind it).
LOG = 3
# Words of the record behind `call`, the entry that Python calls (pycall.py): whether it may run by
# itself; what `invoke` is given; how many arrays it takes; addresses of Python's functions and
# objects. save is 0 where the GIL is kept.
RECORD = ("ready", "workers", "context", "args", "array", "save", "restore", "none", "keep", "ask",
          "attend")  # fmt: skip
# Words of a Python object: its type; of an array or a ctypes structure, where its data is.
OBJECT_TYPE, OBJECT_DATA = 1, 2
# Bytes that a kernel may read (never write) past the end of a value in the arena or the weights.
SLACK = 64

# Words (32 bits) of the sync block, each on a cache line of its own. MOST_SPINS and SYSCALL are set
# by the caller: how long to spin at most before sleeping, and the address of libc's syscall().
# PHASE and EPOCH are waited for; the line behind each holds its present limit of spins and a count
# of vain spins.
LINE = 16
ARRIVED, PHASE, _, EPOCH, _, STOP, ASLEEP, MOST_SPINS, SYSCALL = (i * LINE for i in range(9))
SYNC_WORDS = 9 * LINE
