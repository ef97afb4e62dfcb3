"""What generated code and those who call it agree on. Running code needs this, and not LLVM."""

from __future__ import annotations

ALIGN = 64
# Slots of the context. STRIDE is a number: bytes of scratch for each worker.
ARENA, WEIGHTS, SCRATCH, STRIDE, SYNC, TIMES, FAULT, VALUE, LIMIT, CHUNKS, FIRST_ARG = range(11)
# FAULT is 0, or one more than the number of the site (program.py) that met what it must not accept;
# VALUE is what it met, LIMIT the end of what it accepts. `invoke` returns FAULT: see faults.py.
# In code that counts, TIMES leads to ticks by [worker, step], then one word more: those of the
# whole call. Where it is 0, nothing is counted.
# In code that is traced, TIMES leads to rows of LOG words instead: for each worker one row of its
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

# CHUNKS leads to a word (32 bits) for each phase and one behind: into how many chunks a run cuts it
# (0 or 1: it is not shared), and WAKES if it is worth waking workers that sleep.
WAKES = 1 << 16

# The sync block, in words of 32 bits; what different workers write lies on different cache lines.
# STATE (64 bits) says which phase of which run: see sync.py. DONE counts the chunks of the present
# phase that are done. The line of STOP is set by the caller: how long to spin at most before
# sleeping, how many workers there are, the address of libc's syscall(), whether runs are shared
# whatever they gain; and for each run the least word of CHUNKS that is announced to workers who are
# awake, and to those who sleep.
LINE = 16
STATE, DONE, STOP = 0, LINE, 2 * LINE
MOST_SPINS, WORKERS, SYSCALL, ALWAYS = STOP + 1, STOP + 2, STOP + 4, STOP + 6
FOR_AWAKE, FOR_ASLEEP = STOP + 7, STOP + 8
# What the caller alone touches (choice.py): a line of the run, then a line of habits for runs after
# a pause and one for runs that follow each other closely.
RUN, HABITS = 3 * LINE, 4 * LINE
# Three lines for each worker: CLAIM (64 bits), which chunks of its own are taken; NAP, 1 while it
# sleeps, and before it does on which CPU (-1: it does not say) and which thread (64 bits) it is,
# and 1 in KEPT_OFF while somebody keeps it off a CPU; what only the worker itself touches: the
# limit of spins and the count of vain ones, within a run and between runs; of traced code the
# thread's number, the run, and where the log goes on.
CREW = HABITS + 2 * LINE
CLAIM, NAP, LIMITS, LOGGED = 0, LINE, 2 * LINE, 2 * LINE + 4
CORE, THREAD, KEPT_OFF = NAP + 1, NAP + 2, NAP + 4
OF_WORKER = 3 * LINE


def sync_words(workers: int) -> int:
    """How long the sync block of so many workers is."""
    return CREW + workers * OF_WORKER
