"""The C interface used wrongly: a status and a text, never a crash. Memory and threads checked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sanderling.build.runtime_ir import FOLDER
from tests.support.every_worker import share_everything

from ..support.c_programs import CC, VALGRIND, built, compiled, gather, needs_cc, run

pytestmark = needs_cc

WRONG = """
#include <stdio.h>
#include <stdlib.h>
#include "m.h"
static m_instance *made;
static void tell(const char *what, sanderling_status status) {
  printf("%s: %d %s\\n", what, (int)status, m_message(made));
}
int main(void) {
  char text[200], small[8], room[8192];
  int32_t index[4] = {0, 2, 0, 0};
  float y[9];
  sanderling_buffer in = {index, 8}, out = {y, 32};
  sanderling_options o = {0};
  printf("no place: %d\\n", (int)m_create(NULL, NULL));
  o.message = text, o.message_bytes = sizeof text;
  o.threads = -1;
  printf("threads: %d %s\\n", (int)m_create(&o, &made), text);
  o.threads = 0, o.version = "z80";
  printf("version: %d %.30s\\n", (int)m_create(&o, &made), text);
  o.version = NULL, o.memory = small, o.memory_bytes = sizeof small;
  printf("small: %d %.17s\\n", (int)m_create(&o, &made), text);
  o.message = small, o.message_bytes = sizeof small, o.memory = text, o.memory_bytes = 9;
  printf("short text: %d %s\\n", (int)m_create(&o, &made), small);
  printf("none: %d %d %s\\n", made == NULL, (int)m_run(NULL, &in, 1, &out, 1), m_message(NULL));
  o.memory = room, o.memory_bytes = sizeof room;
  if (m_memory_bytes(1, NULL) > sizeof room || m_create(&o, &made)) return 1;
  tell("well", m_run(made, &in, 1, &out, 1));
  printf("%g %g\\n", y[0], y[4]);
  tell("count", m_run(made, &in, 2, &out, 1));
  tell("NULL list", m_run(made, NULL, 1, &out, 1));
  in.bytes = 7;
  tell("size", m_run(made, &in, 1, &out, 1));
  in.bytes = 8, in.data = NULL;
  tell("NULL", m_run(made, &in, 1, &out, 1));
  in.data = (char *)index + 1;
  tell("odd", m_run(made, &in, 1, &out, 1));
  in.data = y;
  tell("same", m_run(made, &in, 1, &out, 1));
  in.data = index, index[1] = 3;
  tell("index", m_run(made, &in, 1, &out, 1));
  index[1] = -1;
  tell("below", m_run(made, &in, 1, &out, 1));
  index[1] = 1;
  tell("well", m_run(made, &in, 1, &out, 1));
  printf("%d %d %d\\n", m_input(1) == NULL, m_output(9) == NULL, (int)m_reset(NULL));
  printf("%s; %s\\n", m_status_text(SANDERLING_BUSY), m_status_text((sanderling_status)99));
  m_destroy(made);
  return 0;
}
"""


def test_bad_use_gets_a_status_and_a_text(tmp_path: Path) -> None:
    built(gather(), tmp_path)
    said = run(compiled(tmp_path, WRONG, "m", ["-fsanitize=address,undefined"])).splitlines()
    assert said == [
        "no place: 1",
        "threads: 1 threads is -1, not 1 to 1024",
        "version: 3 m: this CPU cannot run z80; th",
        "small: 2 an instance takes",
        "short text: 2 an inst",
        "none: 1 1 there is no instance (NULL)",
        "well: 0 ",
        "0 8",
        "count: 1 the model has 1 inputs, 2 are given",
        "NULL list: 1 the model has 1 inputs, 0 are given",
        "size: 1 input 0 'index' has 8 bytes, 7 are given",
        "NULL: 1 input 0 'index' is NULL",
        "odd: 1 input 0 'index' does not begin at a multiple of its element's size",
        "same: 1 output 0 'y' overlaps an input",
        "index: 6 GATHER 'y': an index is out of range: 3 is not in 0 to 2",
        "below: 6 GATHER 'y': an index is out of range: -1 is not in 0 to 2",
        "well: 0 ",
        "1 1 1",
        "another thread runs this instance: give each thread its own; there is no such status",
    ]


OWN_MEMORY = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "m.h"
enum { ROOM = 1 << 20, EDGE = 128 };
/* Memory that begins anywhere, holds anything, and is as large as was asked for: same answers, and
   nothing beside it is touched. */
int main(int argc, char **argv) {
  int8_t in[64], wanted[10], got[10];
  sanderling_buffer input = {in, sizeof in}, output = {wanted, sizeof wanted};
  m_instance *made;
  unsigned char *room = malloc(ROOM);
  for (int i = 0; i < 64; i++) in[i] = (int8_t)(5 * i - 128);
  if (m_create(NULL, &made) || m_run(made, &input, 1, &output, 1)) return 1;
  m_destroy(made);
  output.data = got;
  for (int skip = 0; skip < 64; skip += 21) {
    sanderling_options o = {0};
    o.threads = argc > 1 ? atoi(argv[1]) : 1;
    o.memory_bytes = m_memory_bytes(o.threads, NULL);
    o.memory = room + EDGE + skip;
    if (!o.memory_bytes || o.memory_bytes + 2 * EDGE > ROOM) return 2;
    memset(room, 0xab, ROOM);
    if (m_create(&o, &made)) return 3;
    for (int i = 0; i < 3; i++) {
      memset(got, 0, sizeof got);
      if (m_run(made, &input, 1, &output, 1) || memcmp(got, wanted, sizeof got)) return 4;
    }
    m_destroy(made);
    for (int i = 0; i < ROOM; i++)
      if (room[i] != 0xab && (i < EDGE + skip || i >= EDGE + skip + (int)o.memory_bytes)) return 5;
  }
  free(room);
  return 0;
}
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_of_the_caller(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_everything(monkeypatch)
    digits(tmp_path)
    run(compiled(tmp_path, OWN_MEMORY, "m", ["-fsanitize=address,undefined"]), threads)


def test_no_memory_is_a_status(tmp_path: Path) -> None:
    """calloc that gives nothing."""
    built(gather(), tmp_path)
    source = """
#include <stdio.h>
#include <stddef.h>
#include "m.h"
void *calloc(size_t count, size_t size) { (void)count, (void)size; return NULL; }
int main(void) {
  char text[200];
  sanderling_options o = {0};
  m_instance *made;
  o.message = text, o.message_bytes = sizeof text;
  int status = m_create(&o, &made);
  fputs(status == SANDERLING_OUT_OF_MEMORY && !made ? text : "?", stderr);
  return 0;
}
"""
    program = compiled(tmp_path, source, "m")
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stderr.startswith("the system has no ") and "bytes of memory" in done.stderr


THREADS = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "m.h"
enum { THREADS = 8, SHARED = 2 };
static m_instance *made[SHARED];
static int rounds;
static pthread_mutex_t turn[SHARED] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
/* Eight threads share two instances, in turns; some do not wait for theirs, and are told. */
static void *work(void *given) {
  size_t me = (size_t)given, which = me % SHARED;
  int8_t in[64], out[10], first[10];
  sanderling_buffer input = {in, sizeof in}, output = {out, sizeof out};
  memset(in, (int)me, sizeof in);
  for (int i = 0; i < rounds; i++) {
    int waits = me < 6;
    if (waits) pthread_mutex_lock(turn + which);
    int status = (int)m_run(made[which], &input, 1, &output, 1);
    if (waits) pthread_mutex_unlock(turn + which);
    if (status && status != SANDERLING_BUSY) exit(4);
    if (status) { i--; continue; }
    if (!i) memcpy(first, out, sizeof out);
    if (memcmp(first, out, sizeof out)) exit(5);
  }
  return NULL;
}
int main(int argc, char **argv) {
  pthread_t all[THREADS];
  sanderling_options o = {0};
  rounds = argc > 1 ? atoi(argv[1]) : 100;
  o.threads = argc > 2 ? atoi(argv[2]) : 1;
  for (int i = 0; i < SHARED; i++) if (m_create(&o, made + i)) return 2;
  for (size_t i = 0; i < THREADS; i++) if (pthread_create(all + i, NULL, work, (void *)i)) return 3;
  for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
  for (int i = 0; i < SHARED; i++) m_destroy(made[i]);
  puts("done");
  return 0;
}
"""


def digits(folder: Path) -> None:
    from tests.support.command_line import INT8

    built(INT8, folder, target="generic" if _is_x86() else "native")


def _is_x86() -> bool:
    import platform

    return platform.machine() == "x86_64"


def test_eight_threads_under_the_thread_sanitizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime is compiled from its C source, so that the sanitizer sees it; what it cannot see
    is the generated code, whose barriers it would not know."""
    share_everything(monkeypatch)
    digits(tmp_path)
    sanitize = ["-fsanitize=thread", "-std=gnu11", "-DSR(name)=m_##name"]
    try:
        program = compiled(tmp_path, THREADS, "m", [*sanitize, FOLDER / "runtime.c"])
    except AssertionError as error:
        pytest.skip(f"no thread sanitizer: {error}")
    for workers in (1, 2):
        done = subprocess.run(
            [program, "200", str(workers)], capture_output=True, text=True, timeout=100
        )
        if "unexpected memory mapping" in done.stderr:
            pytest.skip("the thread sanitizer does not run on this kernel")
        assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-2000:]


@pytest.mark.skipif(VALGRIND is None, reason="apt-get install valgrind")
def test_no_error_and_no_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share_everything(monkeypatch)
    digits(tmp_path)
    strict = [VALGRIND, "-q", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=all",
              "--errors-for-leak-kinds=all"]  # fmt: skip
    example = compiled(tmp_path, tmp_path / "m_example.c", "m")
    assert "probabilities:" in run(*strict, example)
    assert run(*strict, compiled(tmp_path, THREADS, "m"), 3, 2) == "done\n"


def test_compiled_without_warnings_by_the_strictest(tmp_path: Path) -> None:
    """The runtime's own source, too."""
    run(
        CC,
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Wconversion",
        "-Wshadow",
        "-Werror",
        "-pedantic",
        "-c",
        FOLDER / "runtime.c",
        "-o",
        tmp_path / "runtime.o",
    )
