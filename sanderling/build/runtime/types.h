/* What the libraries of all models share. Several of their headers may be included together. */
#ifndef SANDERLING_TYPES
#define SANDERLING_TYPES 1

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum sanderling_status {
  SANDERLING_OK = 0,
  SANDERLING_BAD_ARGUMENT = 1,  /* NULL, a wrong count, a wrong size, buffers that overlap */
  SANDERLING_OUT_OF_MEMORY = 2, /* the system has no memory, or the caller gave too little */
  SANDERLING_UNSUPPORTED = 3,   /* this CPU runs no version of the code, or not the one asked for */
  SANDERLING_NO_THREAD = 4,     /* the system starts no more threads */
  SANDERLING_BUSY = 5,          /* another thread runs this instance */
  SANDERLING_BAD_INDEX = 6,     /* the values of an input lead outside of a tensor */
  SANDERLING_FAILED = 7         /* a custom operator returned something other than 0 */
} sanderling_status;

typedef enum sanderling_type {
  SANDERLING_FLOAT32 = 0,
  SANDERLING_FLOAT16 = 1,
  SANDERLING_INT32 = 2,
  SANDERLING_UINT8 = 3,
  SANDERLING_INT64 = 4,
  SANDERLING_BOOL = 6,
  SANDERLING_INT16 = 7,
  SANDERLING_COMPLEX64 = 8,
  SANDERLING_INT8 = 9,
  SANDERLING_FLOAT64 = 10,
  SANDERLING_COMPLEX128 = 11,
  SANDERLING_UINT64 = 12,
  SANDERLING_UINT32 = 15,
  SANDERLING_UINT16 = 16,
  SANDERLING_BFLOAT16 = 18
} sanderling_type;

/* value = scale * (code - zero_point). One pair for the whole tensor, or one for each index along
   an axis; none (scale_count 0) where the elements are the values themselves. */
typedef struct sanderling_tensor {
  const char *name;
  int32_t type; /* a sanderling_type */
  int32_t rank;
  const int64_t *shape;
  size_t bytes;
  size_t element_bytes;
  size_t scale_count;
  const float *scales;
  const int64_t *zero_points;
  int64_t axis;
} sanderling_tensor;

/* Memory of the caller. Outputs are written; inputs are only read. */
typedef struct sanderling_buffer {
  void *data;
  size_t bytes;
} sanderling_buffer;

/* All zero, or NULL in place of the whole, is: the threads that the library was built with, own
   memory, the best version. */
typedef struct sanderling_options {
  int32_t threads;     /* that take part in a run, the caller's among them */
  int32_t count_steps; /* for tools: note the ticks of every step, if the code was built for it */
  void *memory;        /* of the caller, for all that the instance holds; NULL: calloc */
  size_t memory_bytes;
  const char *version; /* of the code, by its name; NULL: the best that this CPU runs */
  char *message;       /* of the caller, for the text of what went wrong in create; may be NULL */
  size_t message_bytes;
} sanderling_options;

/* A custom operator in C. An operand that is left out has no data and no tensor. Returns 0, or
   anything else where it failed. It may be called by several threads, for one instance each. */
typedef struct sanderling_operand {
  void *data;
  const sanderling_tensor *tensor;
} sanderling_operand;
typedef int (*sanderling_operator)(const sanderling_operand *inputs, size_t input_count,
                                   const sanderling_operand *outputs, size_t output_count,
                                   const unsigned char *options, size_t option_bytes);

#ifdef __cplusplus
}
#endif
#endif
