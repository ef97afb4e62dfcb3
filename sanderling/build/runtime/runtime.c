/* What stands around the compiled code of a model: instances, workers, checks, error texts.

   It knows libc and threads, and has no state of its own: all that a run needs lies in one block of
   memory, which belongs to an instance. Every library has its own copy under its own names: sr_ is
   replaced by the model's name.

   It is shipped as LLVM IR (runtime.ll), which is the same for every 64-bit target, so that a
   library is made without a C compiler. After a change: python -m sanderling.build.runtime_ir */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "types.h"

#ifndef SR
#define SR(name) sr_##name
#endif
#define HIDDEN __attribute__((visibility("hidden")))
#define ALIGN 64
#define MESSAGE 256
#define MOST_THREADS 1024

/* As abi.py has them: the slots of a context, the words of a sync block, a mark of chunks. */
enum { ARENA, WEIGHTS, SCRATCH, STRIDE, SYNC, TIMES, FAULT, VALUE, LIMIT, CHUNKS, FIRST_ARG };
enum { LINE = 16, STOP = 2 * LINE, MOST_SPINS = STOP + 1, WORKERS = STOP + 2, SYSCALL = STOP + 4 };
enum { CREW = 6 * LINE, OF_WORKER = 3 * LINE, WAKES = 1 << 16 };
/* As executable.py and division.py have them. */
enum { SPIN = 4000, CHUNKS_OF_WORKER = 4 };

/* What descriptor.py writes. Every field but those of a tensor is a word of eight bytes. */

/* A feature of the CPU. x86-64: a bit of a register that CPUID fills, and what the system must keep
   for it in XCR0. AArch64: a bit of an entry of the auxiliary vector. */
typedef struct probe {
  int64_t leaf, sub, reg, bit, kept;
} probe;

/* Where a value lies: nowhere; in the n-th input or output of the caller; in the memory of the
   instance; in the constants of the library. */
enum { NOWHERE, INPUT, OUTPUT, MEMORY, CONSTANT };
typedef struct place {
  int64_t kind, at;
  const sanderling_tensor *tensor;
} place;

typedef struct copy {
  place to, from;
  int64_t bytes;
} copy;

/* What the code may complain of: an index that only the run knows. */
typedef struct site {
  const char *what, *where;
} site;

typedef struct step {
  const char *type, *name;
} step;

/* Ops that run together: machine code (invoke, serve, stop), or a function of the user. */
typedef struct part {
  int64_t (*invoke)(int64_t workers, int64_t *context);
  void *(*serve)(void *record);
  void (*stop)(int64_t *context);
  const unsigned char *weights;
  int64_t arena, floor, scratch, most_workers;
  int64_t place_count, input_count;
  const place *places;
  const site *sites;
  int64_t step_count; /* 0 where the code counts nothing */
  const step *steps;
  int64_t limit_count; /* phases: steps that are shared together */
  const int32_t *limits; /* chunks that each is worth, with WAKES if it is worth waking workers */
  sanderling_operator function;
  const char *name;
  const unsigned char *options;
  int64_t option_bytes;
} part;

typedef struct version {
  const char *name;
  int64_t probe_count;
  const probe *probes;
  int64_t memory_bytes; /* variables, then what lies between parts */
  int64_t state_bytes;
  const unsigned char *initial; /* NULL: zeros */
  const unsigned char *constants;
  int64_t part_count;
  const part *parts;
  int64_t before_count, after_count;
  const copy *before, *after;
} version;

typedef struct model {
  const char *name;
  int64_t threads; /* where an instance's options say none */
  int64_t input_count, output_count;
  const sanderling_tensor *inputs, *outputs;
  int64_t version_count;
  const version *versions;                               /* the best first */
  void (*cpuid)(uint32_t leaf, uint32_t sub, uint32_t *registers); /* NULL on other CPUs */
  uint32_t (*kept)(void);                                /* XCR0 */
} model;

extern HIDDEN const model SR(model);

/* -- the CPU ----------------------------------------------------------------------------------- */

/* Answers of CPUID: it takes microseconds in a virtual machine, so each leaf is asked for once. */
enum { MOST_LEAVES = 8 };
typedef struct answers {
  int count;
  struct answer {
    uint32_t leaf, sub, registers[4];
  } known[MOST_LEAVES];
} answers;

static const uint32_t *ask(answers *a, uint32_t leaf, uint32_t sub) {
  for (int i = 0; i < a->count; i++)
    if (a->known[i].leaf == leaf && a->known[i].sub == sub) return a->known[i].registers;
  struct answer *found = a->known + (a->count < MOST_LEAVES ? a->count++ : MOST_LEAVES - 1);
  found->leaf = leaf, found->sub = sub;
  SR(model).cpuid(leaf, sub, found->registers);
  return found->registers;
}

static int x86_has(answers *a, const probe *wanted) {
  uint32_t leaf = (uint32_t)wanted->leaf;
  if (ask(a, leaf & 0x80000000u, 0)[0] < leaf) return 0;
  if (!(ask(a, leaf, (uint32_t)wanted->sub)[wanted->reg] >> wanted->bit & 1)) return 0;
  if (!wanted->kept) return 1;
  if (!(ask(a, 1, 0)[2] >> 27 & 1)) return 0; /* XGETBV itself */
  return (SR(model).kept() & wanted->kept) == wanted->kept;
}

static int runs(answers *a, const version *v) {
  for (int64_t i = 0; i < v->probe_count; i++) {
    const probe *wanted = v->probes + i;
    if (SR(model).cpuid ? !x86_has(a, wanted)
                        : !(getauxval((unsigned long)wanted->leaf) >> wanted->bit & 1))
      return 0;
  }
  return 1;
}

/* The CPUs that this process may use. */
static int cpu_count(void) {
  unsigned char mask[1024];
  int found = 0;
  memset(mask, 0, sizeof mask);
  if (sched_getaffinity(0, sizeof mask, (cpu_set_t *)(void *)mask)) return 1;
  for (size_t i = 0; i < sizeof mask; i++)
    for (int bit = 0; bit < 8; bit++) found += mask[i] >> bit & 1;
  return found ? found : 1;
}

/* -- instances --------------------------------------------------------------------------------- */

/* A part with its own workers: they wait in its code. */
typedef struct crew {
  int64_t *context;
  int32_t *sync;
  int64_t *ticks;
  int32_t *chunks;
  int64_t (*records)[3];
  pthread_t *threads;
  sanderling_operand *operands;
  int64_t workers, started;
} crew;

typedef struct SR(instance) {
  const version *code;
  crew *crews;
  unsigned char *memory;
  void *owned; /* what calloc gave */
  int busy;
  char message[MESSAGE];
} instance;

static int64_t workers_of(const part *p, int64_t threads) {
  int64_t most = threads < p->most_workers ? threads : p->most_workers;
  return most < 1 ? 1 : most;
}

static int64_t ticks_of(const part *p, int64_t workers) {
  return p->step_count ? workers * p->step_count + 1 : 0;
}

/* As division.py has it: the chunks that a step is cut into. */
static int32_t chunks_of(int32_t limit, int64_t workers) {
  int64_t most = limit % WAKES, each = most / workers;
  if (most < 2 || workers < 2) return 0;
  if (each > CHUNKS_OF_WORKER) each = CHUNKS_OF_WORKER;
  return (int32_t)(each ? each * workers : most) | (limit & WAKES);
}

/* A piece of the block. Without a block, its size is counted. */
static void *take(unsigned char *block, size_t *used, size_t size) {
  void *found = block ? block + *used : NULL;
  *used += (size + ALIGN - 1) / ALIGN * ALIGN;
  return found;
}

/* Lays an instance out in a block; returns how many bytes it takes. Block NULL: only that. head: the
   bytes before the arena, which are to be zero; the arena itself may hold anything. */
static size_t lay_out(const version *v, int64_t threads, unsigned char *block, size_t *head) {
  size_t used = 0, most = 0;
  instance *s = take(block, &used, sizeof(instance));
  crew *crews = take(block, &used, (size_t)v->part_count * sizeof(crew));
  unsigned char *memory = take(block, &used, (size_t)v->memory_bytes);
  for (int64_t i = 0; i < v->part_count; i++) {
    const part *p = v->parts + i;
    size_t count = (size_t)workers_of(p, threads);
    size_t arena = (size_t)p->floor + (size_t)p->scratch * count;
    crew c;
    memset(&c, 0, sizeof c);
    c.workers = (int64_t)count;
    c.context = take(block, &used, (size_t)(FIRST_ARG + p->place_count) * sizeof(int64_t));
    c.sync = take(block, &used, (CREW + count * OF_WORKER) * sizeof(int32_t));
    c.chunks = take(block, &used, (size_t)(p->limit_count + 1) * sizeof(int32_t));
    c.ticks = take(block, &used, (size_t)ticks_of(p, c.workers) * sizeof(int64_t));
    c.records = take(block, &used, (count - 1) * sizeof(int64_t[3]));
    c.threads = take(block, &used, (count - 1) * sizeof(pthread_t));
    if (p->function)
      c.operands = take(block, &used, (size_t)p->place_count * sizeof(sanderling_operand));
    if (block) crews[i] = c;
    if (arena < (size_t)p->arena) arena = (size_t)p->arena;
    if (arena > most) most = arena;
  }
  /* Parts run one after the other: they share the arena. Kernels may read a little past its end. */
  *head = used;
  unsigned char *arena = take(block, &used, most + ALIGN);
  if (!block) return used;
  s->code = v, s->crews = crews, s->memory = memory;
  for (int64_t i = 0; i < v->part_count; i++) {
    crew *c = crews + i;
    c->context[ARENA] = (int64_t)(intptr_t)arena;
    c->context[SCRATCH] = (int64_t)(intptr_t)(arena + v->parts[i].floor);
    c->context[WEIGHTS] = (int64_t)(intptr_t)v->parts[i].weights;
    c->context[STRIDE] = v->parts[i].scratch;
    c->context[SYNC] = (int64_t)(intptr_t)c->sync;
    c->context[CHUNKS] = (int64_t)(intptr_t)c->chunks;
  }
  return used;
}

static void say(char *to, size_t size, const char *text) {
  if (to && size) snprintf(to, size, "%s", text);
}

static sanderling_status refuse(const sanderling_options *o, sanderling_status status,
                                const char *text) {
  if (o) say(o->message, o->message_bytes, text);
  return status;
}

static const version *pick(const char *name) {
  const model *m = &SR(model);
  answers a;
  a.count = 0;
  for (int64_t i = 0; i < m->version_count; i++)
    if ((!name || !strcmp(name, m->versions[i].name)) && runs(&a, m->versions + i))
      return m->versions + i;
  return NULL;
}

static sanderling_status no_version(const sanderling_options *o) {
  const model *m = &SR(model);
  char text[MESSAGE];
  int used = snprintf(text, sizeof text, "%s: this CPU cannot run %s; the library has", m->name,
                      o && o->version ? o->version : "any version of the code");
  for (int64_t i = 0; i < m->version_count && used > 0 && used < MESSAGE; i++)
    used += snprintf(text + used, sizeof text - (size_t)used, " %s", m->versions[i].name);
  return refuse(o, SANDERLING_UNSUPPORTED, text);
}

static void dismiss(instance *s) {
  for (int64_t i = 0; i < s->code->part_count; i++) {
    crew *c = s->crews + i;
    if (c->started) s->code->parts[i].stop(c->context);
    for (int64_t w = 0; w < c->started; w++) pthread_join(c->threads[w], NULL);
    c->started = 0;
  }
}

/* Signals are for the program's own threads. */
static int call_workers(instance *s) {
  sigset_t all, before;
  int error = 0;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int64_t i = 0; i < s->code->part_count && !error; i++) {
    crew *c = s->crews + i;
    for (int64_t w = 1; w < c->workers && !error; w++) {
      int64_t *record = c->records[w - 1];
      record[0] = w, record[1] = c->workers, record[2] = (int64_t)(intptr_t)c->context;
      error = pthread_create(c->threads + w - 1, NULL, s->code->parts[i].serve, record);
      if (!error) c->started++;
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

static void set_up(instance *s, int count_steps) {
  int cpus = cpu_count();
  for (int64_t i = 0; i < s->code->part_count; i++) {
    crew *c = s->crews + i;
    if (c->workers > cpus) c->workers = cpus; /* more do not compute faster */
    if (count_steps && s->code->parts[i].step_count)
      c->context[TIMES] = (int64_t)(intptr_t)c->ticks;
    for (int64_t n = 0; n < s->code->parts[i].limit_count; n++)
      c->chunks[n] = chunks_of(s->code->parts[i].limits[n], c->workers);
    c->sync[WORKERS] = (int32_t)c->workers;
    c->sync[MOST_SPINS] = SPIN;
    int64_t address = (int64_t)(intptr_t)syscall;
    memcpy(c->sync + SYSCALL, &address, sizeof address);
  }
}

static void fill_state(instance *s) {
  size_t size = (size_t)s->code->state_bytes;
  if (s->code->initial)
    memcpy(s->memory, s->code->initial, size);
  else
    memset(s->memory, 0, size);
}

size_t SR(memory_bytes)(int32_t threads, const char *name) {
  const version *v = pick(name);
  size_t head;
  if (!v || threads < 0 || threads > MOST_THREADS) return 0;
  return lay_out(v, threads ? threads : SR(model).threads, NULL, &head) + ALIGN - 1;
}

sanderling_status SR(create)(const sanderling_options *o, instance **made) {
  char text[MESSAGE];
  if (!made) return refuse(o, SANDERLING_BAD_ARGUMENT, "there is no place for the instance (NULL)");
  *made = NULL;
  int64_t threads = o && o->threads ? o->threads : SR(model).threads;
  if (threads < 1 || threads > MOST_THREADS) {
    snprintf(text, sizeof text, "threads is %lld, not 1 to %d", (long long)threads, MOST_THREADS);
    return refuse(o, SANDERLING_BAD_ARGUMENT, text);
  }
  const version *v = pick(o ? o->version : NULL);
  if (!v) return no_version(o);
  size_t head, need = lay_out(v, threads, NULL, &head);
  unsigned char *block = o ? o->memory : NULL;
  void *owned = NULL;
  if (block) {
    size_t skip = (size_t)(-(uintptr_t)block % ALIGN);
    if (o->memory_bytes < need + skip) {
      snprintf(text, sizeof text, "an instance takes %zu bytes of memory, %zu are given",
               need + ALIGN - 1, o->memory_bytes);
      return refuse(o, SANDERLING_OUT_OF_MEMORY, text);
    }
    block += skip;
  } else {
    owned = calloc(1, need + ALIGN - 1); /* large blocks are fresh pages: nothing is written */
    if (!owned) {
      snprintf(text, sizeof text, "the system has no %zu bytes of memory", need + ALIGN - 1);
      return refuse(o, SANDERLING_OUT_OF_MEMORY, text);
    }
    block = (unsigned char *)owned + (size_t)(-(uintptr_t)owned % ALIGN);
  }
  memset(block, 0, head);
  lay_out(v, threads, block, &head);
  instance *s = (instance *)(void *)block;
  s->owned = owned;
  set_up(s, o ? o->count_steps : 0);
  fill_state(s);
  if (call_workers(s)) {
    dismiss(s);
    free(owned);
    return refuse(o, SANDERLING_NO_THREAD, "a thread cannot be started; use fewer threads");
  }
  *made = s;
  return SANDERLING_OK;
}

void SR(destroy)(instance *s) {
  if (!s) return;
  dismiss(s);
  free(s->owned);
}

/* -- runs -------------------------------------------------------------------------------------- */

typedef struct run_of {
  instance *s;
  const sanderling_buffer *inputs, *outputs;
} run_of;

static sanderling_status complain(instance *s, const char *kind, int64_t i,
                                  const sanderling_tensor *t, const char *what) {
  snprintf(s->message, MESSAGE, "%s %lld '%s' %s", kind, (long long)i, t->name, what);
  return SANDERLING_BAD_ARGUMENT;
}

static int overlap(const sanderling_buffer *a, const sanderling_buffer *b) {
  uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
  return a->bytes && b->bytes && x < y + b->bytes && y < x + a->bytes;
}

static sanderling_status check(instance *s, const char *kind, const sanderling_tensor *wanted,
                               int64_t count, const sanderling_buffer *given, size_t given_count) {
  char text[MESSAGE / 2];
  if (given_count != (size_t)count || (count && !given)) {
    snprintf(s->message, MESSAGE, "the model has %lld %ss, %zu are given", (long long)count, kind,
             given ? given_count : 0);
    return SANDERLING_BAD_ARGUMENT;
  }
  for (int64_t i = 0; i < count; i++) {
    if (given[i].bytes != wanted[i].bytes) {
      snprintf(text, sizeof text, "has %zu bytes, %zu are given", wanted[i].bytes, given[i].bytes);
      return complain(s, kind, i, wanted + i, text);
    }
    if (!given[i].data && given[i].bytes) return complain(s, kind, i, wanted + i, "is NULL");
    if ((uintptr_t)given[i].data % wanted[i].element_bytes)
      return complain(s, kind, i, wanted + i, "does not begin at a multiple of its element's size");
  }
  return SANDERLING_OK;
}

static sanderling_status check_apart(instance *s, const sanderling_buffer *inputs,
                                     const sanderling_buffer *outputs) {
  const model *m = &SR(model);
  for (int64_t o = 0; o < m->output_count; o++) {
    for (int64_t i = 0; i < m->input_count; i++)
      if (overlap(outputs + o, inputs + i))
        return complain(s, "output", o, m->outputs + o, "overlaps an input");
    for (int64_t i = 0; i < o; i++)
      if (overlap(outputs + o, outputs + i))
        return complain(s, "output", o, m->outputs + o, "overlaps another output");
  }
  return SANDERLING_OK;
}

static void *address(const run_of *r, const place *p) {
  switch (p->kind) {
    case INPUT:
      return r->inputs[p->at].data;
    case OUTPUT:
      return r->outputs[p->at].data;
    case MEMORY:
      return r->s->memory + p->at;
    case CONSTANT:
      return (void *)(uintptr_t)(r->s->code->constants + p->at);
    default:
      return NULL;
  }
}

static void copy_all(const run_of *r, const copy *copies, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    memcpy(address(r, &copies[i].to), address(r, &copies[i].from), (size_t)copies[i].bytes);
}

static sanderling_status run_code(const run_of *r, const part *p, crew *c) {
  for (int64_t i = 0; i < p->place_count; i++)
    c->context[FIRST_ARG + i] = (int64_t)(intptr_t)address(r, p->places + i);
  int64_t fault = p->invoke(c->workers, c->context);
  if (!fault) return SANDERLING_OK;
  const site *found = p->sites + (fault - 1);
  snprintf(r->s->message, MESSAGE, "%s: %s is out of range: %lld is not in 0 to %lld", found->where,
           found->what, (long long)c->context[VALUE], (long long)c->context[LIMIT] - 1);
  c->context[FAULT] = 0;
  return SANDERLING_BAD_INDEX;
}

static sanderling_status run_function(const run_of *r, const part *p, crew *c) {
  for (int64_t i = 0; i < p->place_count; i++) {
    c->operands[i].data = address(r, p->places + i);
    c->operands[i].tensor = p->places[i].tensor;
  }
  int said = p->function(c->operands, (size_t)p->input_count, c->operands + p->input_count,
                         (size_t)(p->place_count - p->input_count), p->options,
                         (size_t)p->option_bytes);
  if (!said) return SANDERLING_OK;
  snprintf(r->s->message, MESSAGE, "the custom operator %s returned %d", p->name, said);
  return SANDERLING_FAILED;
}

static sanderling_status run_all(const run_of *r) {
  const version *v = r->s->code;
  sanderling_status found = SANDERLING_OK;
  copy_all(r, v->before, v->before_count);
  for (int64_t i = 0; i < v->part_count && found == SANDERLING_OK; i++) {
    const part *p = v->parts + i;
    found = (p->function ? run_function : run_code)(r, p, r->s->crews + i);
  }
  if (found == SANDERLING_OK) copy_all(r, v->after, v->after_count);
  return found;
}

sanderling_status SR(run)(instance *s, const sanderling_buffer *inputs, size_t input_count,
                          const sanderling_buffer *outputs, size_t output_count) {
  const model *m = &SR(model);
  if (!s) return SANDERLING_BAD_ARGUMENT;
  if (__atomic_exchange_n(&s->busy, 1, __ATOMIC_ACQUIRE)) return SANDERLING_BUSY;
  sanderling_status found = check(s, "input", m->inputs, m->input_count, inputs, input_count);
  if (!found) found = check(s, "output", m->outputs, m->output_count, outputs, output_count);
  if (!found) found = check_apart(s, inputs, outputs);
  if (!found) {
    run_of r = {s, inputs, outputs};
    s->message[0] = 0;
    found = run_all(&r);
  }
  __atomic_store_n(&s->busy, 0, __ATOMIC_RELEASE);
  return found;
}

sanderling_status SR(reset)(instance *s) {
  if (!s) return SANDERLING_BAD_ARGUMENT;
  if (__atomic_exchange_n(&s->busy, 1, __ATOMIC_ACQUIRE)) return SANDERLING_BUSY;
  fill_state(s);
  __atomic_store_n(&s->busy, 0, __ATOMIC_RELEASE);
  return SANDERLING_OK;
}

/* -- what there is to know --------------------------------------------------------------------- */

size_t SR(input_count)(void) { return (size_t)SR(model).input_count; }

size_t SR(output_count)(void) { return (size_t)SR(model).output_count; }

const sanderling_tensor *SR(input)(size_t i) {
  return i < SR(input_count)() ? SR(model).inputs + i : NULL;
}

const sanderling_tensor *SR(output)(size_t i) {
  return i < SR(output_count)() ? SR(model).outputs + i : NULL;
}

const char *SR(version)(const instance *s) { return s ? s->code->name : ""; }

const char *SR(message)(const instance *s) { return s ? s->message : "there is no instance (NULL)"; }

const char *SR(status_text)(sanderling_status status) {
  switch (status) {
    case SANDERLING_OK:
      return "it went well";
    case SANDERLING_BAD_ARGUMENT:
      return "an argument is wrong: NULL, a count, a size, or buffers that overlap";
    case SANDERLING_OUT_OF_MEMORY:
      return "there is not enough memory";
    case SANDERLING_UNSUPPORTED:
      return "this CPU cannot run the code";
    case SANDERLING_NO_THREAD:
      return "a thread cannot be started";
    case SANDERLING_BUSY:
      return "another thread runs this instance: give each thread its own";
    case SANDERLING_BAD_INDEX:
      return "an index in an input is out of range";
    case SANDERLING_FAILED:
      return "a custom operator failed";
    default:
      return "there is no such status";
  }
}

/* -- for tools: the ticks of steps, of code that counts ------------------------------------------ */

static const part *part_of(const instance *s, size_t *i, crew **c) {
  for (int64_t n = 0; s && n < s->code->part_count; n++) {
    const part *p = s->code->parts + n;
    if (*i < (size_t)p->step_count) {
      *c = s->crews + n;
      return p;
    }
    *i -= (size_t)p->step_count;
  }
  return NULL;
}

size_t SR(step_count)(const instance *s) {
  size_t found = 0;
  for (int64_t n = 0; s && n < s->code->part_count; n++)
    found += (size_t)s->code->parts[n].step_count;
  return found;
}

const char *SR(step_type)(const instance *s, size_t i) {
  crew *c;
  const part *p = part_of(s, &i, &c);
  return p ? p->steps[i].type : "";
}

const char *SR(step_name)(const instance *s, size_t i) {
  crew *c;
  const part *p = part_of(s, &i, &c);
  return p ? p->steps[i].name : "";
}

/* Of the worker that took longest. */
int64_t SR(step_ticks)(const instance *s, size_t i) {
  crew *c;
  const part *p = part_of(s, &i, &c);
  int64_t most = 0;
  for (int64_t w = 0; p && w < c->workers; w++) {
    int64_t found = c->ticks[w * p->step_count + (int64_t)i];
    if (found > most) most = found;
  }
  return most;
}

/* Of whole calls. */
int64_t SR(run_ticks)(const instance *s) {
  int64_t found = 0;
  for (int64_t n = 0; s && n < s->code->part_count; n++) {
    const part *p = s->code->parts + n;
    if (p->step_count) found += s->crews[n].ticks[s->crews[n].workers * p->step_count];
  }
  return found;
}

void SR(clear_ticks)(instance *s) {
  for (int64_t n = 0; s && n < s->code->part_count; n++) {
    const part *p = s->code->parts + n;
    memset(s->crews[n].ticks, 0, (size_t)ticks_of(p, s->crews[n].workers) * sizeof(int64_t));
  }
}
