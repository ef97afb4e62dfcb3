/* A delegate library as a vendor ships one, small enough to be read: it takes CONV_2D and ADD of
 * float32 and computes them itself. The tests compile it and load it through LiteRT.
 *
 * The declarations are the part of TensorFlow Lite's C interface that it uses, in LiteRT 2.3's
 * layout: fields that are never read here only hold their place.
 *
 * Options:
 *   ops    names of the operators to take, with "," between them; default: CONV_2D,ADD
 *   log    a file that gets a line for each event: create, destroy, and each op that is computed
 *   fail   create, prepare, init or invoke: report an error there
 *   crash  create, prepare or invoke: write to address 0 there
 *   hang   prepare or invoke: never return from there
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* -- TensorFlow Lite's interface ------------------------------------------------------------- */

enum { kOk = 0, kError = 1 };
enum { kFloat32 = 1 };
enum { kMemoryMapped = 1 };
enum { kAdd = 0, kConv2d = 3 };
enum { kSame = 1 };
enum { kNone = 0, kRelu = 1, kReluN1To1 = 2, kRelu6 = 3 };

typedef struct Context Context;
typedef struct Delegate Delegate;

typedef struct {
  int size;
  int data[];
} IntArray;

typedef struct {
  int type;
  void *data;
  IntArray *dims;
  struct {
    float scale;
    int32_t zero_point;
  } params;
  int allocation_type;
  size_t bytes;
  const void *allocation;
  const char *name;
  Delegate *delegate;
  int buffer_handle;
  bool data_is_stale, is_variable;
  struct {
    int type;
    void *params;
  } quantization;
  void *sparsity;
  const IntArray *dims_signature;
} Tensor;

typedef struct {
  IntArray *inputs, *outputs, *intermediates, *temporaries;
  void *user_data, *builtin_data;
  const void *custom_initial_data;
  int custom_initial_data_size;
  Delegate *delegate;
  bool might_have_side_effect;
} Node;

typedef struct {
  void *(*init)(Context *, const char *, size_t);
  void (*free)(Context *, void *);
  int (*prepare)(Context *, Node *);
  int (*invoke)(Context *, Node *);
  const char *(*profiling_string)(const Context *, const Node *);
  int32_t builtin_code;
  const char *custom_name;
  int version;
  void *registration_external;
  void *(*async_kernel)(Context *, Node *);
  uint64_t inplace_operator;
} Registration;

struct Context {
  size_t tensors_size;
  int (*GetExecutionPlan)(Context *, IntArray **);
  Tensor *tensors;
  void *impl;
  void *ResizeTensor;
  void (*ReportError)(Context *, const char *, ...);
  void *AddTensors;
  int (*GetNodeAndRegistration)(Context *, int, Node **, Registration **);
  int (*ReplaceNodeSubsetsWithDelegateKernels)(Context *, Registration, const IntArray *,
                                               Delegate *);
  /* more that is not used */
};

struct Delegate {
  void *data;
  int (*Prepare)(Context *, Delegate *);
  void *CopyFromBufferHandle, *CopyToBufferHandle, *FreeBufferHandle;
  int64_t flags;
  void *opaque_delegate_builder;
};

typedef struct {
  Delegate *delegate;
  IntArray *nodes_to_replace, *input_tensors, *output_tensors;
} DelegateParams;

typedef struct {
  int padding, stride_width, stride_height, activation, dilation_width, dilation_height;
} ConvParams;

typedef struct {
  int activation;
} AddParams;

/* -- options and what they do ---------------------------------------------------------------- */

typedef struct {
  Delegate delegate; /* first: the address of one is the address of the other */
  char *ops, *log, *fail, *crash, *hang;
} Library;

static void note(const Library *library, const char *event) {
  FILE *file = library->log ? fopen(library->log, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s\n", event);
  fclose(file);
}

static bool is(const char *option, const char *stage) { return option && !strcmp(option, stage); }

/* What the options say of a stage. True: it is to fail. */
static bool fails(const Library *library, const char *stage) {
  if (is(library->crash, stage)) *(volatile int *)0 = 1;
  while (is(library->hang, stage)) sleep(1);
  return is(library->fail, stage);
}

static bool wants(const Library *library, const char *name) {
  const char *found = library->ops ? strstr(library->ops, name) : name;
  return found != NULL;
}

/* -- which nodes it takes -------------------------------------------------------------------- */

static Tensor *tensor_of(Context *context, const IntArray *places, int which) {
  bool is_there = which < places->size && places->data[which] >= 0;
  return is_there ? &context->tensors[places->data[which]] : NULL;
}

static bool is_constant(const Tensor *tensor) {
  return tensor->allocation_type == kMemoryMapped;
}

static bool is_float(const Tensor *tensor, int rank) {
  return tensor && tensor->type == kFloat32 && (rank < 0 || tensor->dims->size == rank);
}

static bool is_known(int activation) { return activation >= kNone && activation <= kRelu6; }

static bool takes_conv(Context *context, const Node *node) {
  const ConvParams *params = node->builtin_data;
  Tensor *x = tensor_of(context, node->inputs, 0), *weights = tensor_of(context, node->inputs, 1);
  Tensor *bias = tensor_of(context, node->inputs, 2), *y = tensor_of(context, node->outputs, 0);
  if (!is_float(x, 4) || !is_float(weights, 4) || !is_float(bias, 1) || !is_float(y, 4))
    return false;
  return is_constant(weights) && is_constant(bias) && is_known(params->activation) &&
         weights->dims->data[3] == x->dims->data[3];
}

static bool takes_add(Context *context, const Node *node) {
  const AddParams *params = node->builtin_data;
  Tensor *a = tensor_of(context, node->inputs, 0), *b = tensor_of(context, node->inputs, 1);
  if (!is_float(a, -1) || !is_float(b, -1) || a->dims->size != b->dims->size) return false;
  size_t size = a->dims->size * sizeof(int);
  return is_known(params->activation) && !memcmp(a->dims->data, b->dims->data, size);
}

static bool takes(const Library *library, Context *context, int index) {
  Node *node;
  Registration *registration;
  if (context->GetNodeAndRegistration(context, index, &node, &registration)) return false;
  if (registration->builtin_code == kConv2d)
    return wants(library, "CONV_2D") && takes_conv(context, node);
  if (registration->builtin_code == kAdd)
    return wants(library, "ADD") && takes_add(context, node);
  return false;
}

/* -- the kernel: some nodes together --------------------------------------------------------- */

typedef struct {
  int code;
  int inputs[3]; /* -1: none */
  int output;
  union {
    ConvParams conv;
    AddParams add;
  } params;
} Step;

typedef struct {
  const Library *library;
  int count;
  Step *steps;
  float **own; /* for each tensor: memory of ours; NULL where the runtime has some */
  size_t tensors;
} Kernel;

static bool contains(const IntArray *places, int place) {
  for (int i = 0; i < places->size; ++i)
    if (places->data[i] == place) return true;
  return false;
}

static Step step_of(Context *context, int index) {
  Node *node;
  Registration *registration;
  context->GetNodeAndRegistration(context, index, &node, &registration);
  Step step = {registration->builtin_code, {-1, -1, -1}, node->outputs->data[0], {{0}}};
  for (int i = 0; i < node->inputs->size && i < 3; ++i) step.inputs[i] = node->inputs->data[i];
  if (step.code == kConv2d)
    step.params.conv = *(ConvParams *)node->builtin_data;
  else
    step.params.add = *(AddParams *)node->builtin_data;
  return step;
}

static void *kernel_init(Context *context, const char *buffer, size_t length) {
  (void)length;
  const DelegateParams *params = (const DelegateParams *)buffer;
  const Library *library = (const Library *)params->delegate;
  if (fails(library, "init")) {
    context->ReportError(context, "the device is out of memory");
    return NULL;
  }
  Kernel *kernel = calloc(1, sizeof *kernel);
  kernel->library = library;
  kernel->count = params->nodes_to_replace->size;
  kernel->steps = calloc(kernel->count, sizeof(Step));
  kernel->tensors = context->tensors_size;
  kernel->own = calloc(kernel->tensors, sizeof(float *));
  for (int i = 0; i < kernel->count; ++i) {
    Step step = kernel->steps[i] = step_of(context, params->nodes_to_replace->data[i]);
    if (!contains(params->output_tensors, step.output))
      kernel->own[step.output] = malloc(context->tensors[step.output].bytes);
  }
  return kernel;
}

static void kernel_free(Context *context, void *data) {
  (void)context;
  Kernel *kernel = data;
  if (!kernel) return;
  for (size_t i = 0; i < kernel->tensors; ++i) free(kernel->own[i]);
  free(kernel->own);
  free(kernel->steps);
  free(kernel);
}

static int kernel_prepare(Context *context, Node *node) {
  (void)context;
  return node->user_data ? kOk : kError;
}

static float activated(float x, int activation) {
  float low = activation == kReluN1To1 ? -1 : 0;
  float high = activation == kReluN1To1 ? 1 : 6;
  if (activation == kNone) return x;
  if (x < low) return low;
  return activation != kRelu && x > high ? high : x;
}

static float *values(const Kernel *kernel, Context *context, int place) {
  return kernel->own[place] ? kernel->own[place] : context->tensors[place].data;
}

static void add(const Kernel *kernel, Context *context, const Step *step) {
  const float *a = values(kernel, context, step->inputs[0]);
  const float *b = values(kernel, context, step->inputs[1]);
  float *y = values(kernel, context, step->output);
  size_t count = context->tensors[step->output].bytes / sizeof(float);
  for (size_t i = 0; i < count; ++i) y[i] = activated(a[i] + b[i], step->params.add.activation);
}

/* Rows of padding before the first one, as the interface defines SAME. */
static int padding_before(const ConvParams *p, int size, int kernel, int out, int stride, int step) {
  int missing = (out - 1) * stride + (kernel - 1) * step + 1 - size;
  return p->padding == kSame && missing > 0 ? missing / 2 : 0;
}

static void conv(const Kernel *kernel, Context *context, const Step *step) {
  const ConvParams *p = &step->params.conv;
  const int *in = context->tensors[step->inputs[0]].dims->data;
  const int *w = context->tensors[step->inputs[1]].dims->data;
  const int *out = context->tensors[step->output].dims->data;
  const float *x = values(kernel, context, step->inputs[0]);
  const float *weights = values(kernel, context, step->inputs[1]);
  const float *bias = values(kernel, context, step->inputs[2]);
  float *y = values(kernel, context, step->output);
  int top = padding_before(p, in[1], w[1], out[1], p->stride_height, p->dilation_height);
  int left = padding_before(p, in[2], w[2], out[2], p->stride_width, p->dilation_width);
  for (int n = 0; n < out[0]; ++n)
    for (int row = 0; row < out[1]; ++row)
      for (int column = 0; column < out[2]; ++column)
        for (int channel = 0; channel < out[3]; ++channel) {
          float sum = bias[channel];
          for (int i = 0; i < w[1]; ++i)
            for (int j = 0; j < w[2]; ++j) {
              int r = row * p->stride_height - top + i * p->dilation_height;
              int c = column * p->stride_width - left + j * p->dilation_width;
              if (r < 0 || r >= in[1] || c < 0 || c >= in[2]) continue;
              const float *from = x + ((n * in[1] + r) * in[2] + c) * in[3];
              const float *with = weights + ((channel * w[1] + i) * w[2] + j) * w[3];
              for (int k = 0; k < in[3]; ++k) sum += from[k] * with[k];
            }
          *y++ = activated(sum, p->activation);
        }
}

static int kernel_invoke(Context *context, Node *node) {
  const Kernel *kernel = node->user_data;
  if (fails(kernel->library, "invoke")) {
    context->ReportError(context, "the device does not answer");
    return kError;
  }
  for (int i = 0; i < kernel->count; ++i) {
    const Step *step = &kernel->steps[i];
    bool is_conv = step->code == kConv2d;
    (is_conv ? conv : add)(kernel, context, step);
    note(kernel->library, is_conv ? "CONV_2D" : "ADD");
  }
  return kOk;
}

/* -- the delegate ---------------------------------------------------------------------------- */

static int prepare(Context *context, Delegate *delegate) {
  const Library *library = (const Library *)delegate;
  if (fails(library, "prepare")) {
    context->ReportError(context, "the firmware is too old");
    return kError;
  }
  IntArray *plan;
  if (context->GetExecutionPlan(context, &plan)) return kError;
  IntArray *taken = calloc(1, sizeof(IntArray) + plan->size * sizeof(int));
  for (int i = 0; i < plan->size; ++i)
    if (takes(library, context, plan->data[i])) taken->data[taken->size++] = plan->data[i];
  Registration registration = {0};
  registration.init = kernel_init;
  registration.free = kernel_free;
  registration.prepare = kernel_prepare;
  registration.invoke = kernel_invoke;
  registration.custom_name = "ExampleDelegate";
  registration.version = 1;
  int status =
      context->ReplaceNodeSubsetsWithDelegateKernels(context, registration, taken, delegate);
  free(taken);
  return status;
}

typedef void (*ReportError)(const char *);

static bool set(Library *library, const char *key, const char *value) {
  struct {
    const char *name;
    char **place;
  } rows[] = {{"ops", &library->ops},
              {"log", &library->log},
              {"fail", &library->fail},
              {"crash", &library->crash},
              {"hang", &library->hang}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i)
    if (!strcmp(rows[i].name, key)) {
      *rows[i].place = strdup(value);
      return true;
    }
  return false;
}

static void release(Library *library) {
  free(library->ops);
  free(library->log);
  free(library->fail);
  free(library->crash);
  free(library->hang);
  free(library);
}

Delegate *tflite_plugin_create_delegate(char **keys, char **texts, int count,
                                        ReportError report) {
  Library *library = calloc(1, sizeof *library);
  char message[200];
  for (int i = 0; i < count; ++i)
    if (!set(library, keys[i], texts[i])) {
      snprintf(message, sizeof message, "unknown option '%s'", keys[i]);
      report(message);
      release(library);
      return NULL;
    }
  if (fails(library, "create")) {
    report("there is no device");
    release(library);
    return NULL;
  }
  library->delegate.Prepare = prepare;
  note(library, "create");
  return &library->delegate;
}

void tflite_plugin_destroy_delegate(Delegate *delegate) {
  if (!delegate) return;
  note((Library *)delegate, "destroy");
  release((Library *)delegate);
}
