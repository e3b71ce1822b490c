/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DEEPPCR_KERNELS_C_API_DEEPPCR_H_
#define DEEPPCR_KERNELS_C_API_DEEPPCR_H_

/* libdeeppcr: the engine of DeepPCR Serve in the caller's own process, behind a C ABI.
 *
 *   deeppcr_engine* engine = NULL;
 *   deeppcr_model* model = NULL;
 *   if (deeppcr_engine_create(NULL, &engine) != DEEPPCR_OK ||
 *       deeppcr_model_load(engine, "models/digits-resnet/1", NULL, &model) != DEEPPCR_OK)
 *     die(deeppcr_last_error());
 *   deeppcr_inputs inputs = DEEPPCR_INPUTS_INIT;
 *   inputs.num_samples = 1;
 *   inputs.inputs = x;                                      // [1, input_dim]
 *   deeppcr_outputs outputs = DEEPPCR_OUTPUTS_INIT;
 *   outputs.outputs = y;                                    // [1, output_dim]
 *   if (deeppcr_run(model, NULL, &inputs, &outputs) != DEEPPCR_OK) die(deeppcr_last_error());
 *
 * Arrays are row-major float32 in the caller's memory, n = num_samples rows. Letters: D is the
 * width of a state, L the number of steps (layers, or inference steps of a diffusion model).
 *
 * Errors. A call that does not return DEEPPCR_OK has changed nothing but what it says; the text of
 * the calling thread's last error is deeppcr_last_error(). A null pointer where one is needed is
 * DEEPPCR_INVALID_ARGUMENT.
 *
 * Threads. An engine and its models may be used from many threads at a time; creation and
 * destruction of one object may not overlap its use. deeppcr_run computes on the calling thread
 * and, for batches and for wide denoisers, on those of the engine's threads that are free, which
 * then wait for each other at full speed: num_threads = 1 keeps everything on the calling thread,
 * as threads of real-time priority need it. The calling thread's arithmetic modes do not matter.
 *
 * fork. The threads of an engine do not exist in a child: there its calls return
 * DEEPPCR_FAILED_PRECONDITION, destruction frees nothing, and a new engine has to be created.
 *
 * Unloading. dlclose is safe once every engine and model is destroyed.
 *
 * Versions. A structure begins with its size, which its initialiser fills in: new members are added
 * at the end, and a library accepts the structures of older headers. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are those of gRPC. */
typedef enum deeppcr_status {
  DEEPPCR_OK = 0,
  DEEPPCR_CANCELLED = 1,
  DEEPPCR_UNKNOWN = 2,
  DEEPPCR_INVALID_ARGUMENT = 3,
  DEEPPCR_DEADLINE_EXCEEDED = 4,
  DEEPPCR_NOT_FOUND = 5,
  DEEPPCR_PERMISSION_DENIED = 7,   /* a file of the model cannot be read */
  DEEPPCR_RESOURCE_EXHAUSTED = 8,  /* a model or its memory exceeds a limit */
  DEEPPCR_FAILED_PRECONDITION = 9, /* a plan is required and missing; or in a child after fork */
  DEEPPCR_ABORTED = 10,            /* no convergence, and the options ask for an error */
  DEEPPCR_UNIMPLEMENTED = 12,      /* no backend can run the model */
  DEEPPCR_INTERNAL = 13,
  DEEPPCR_UNAVAILABLE = 14 /* the backend cannot run here, or its device has failed */
} deeppcr_status;

/* Text of the calling thread's last error, cut at 1023 bytes; empty if there was none. Valid until
 * the thread's next call. */
const char* deeppcr_last_error(void);

/* "major.minor.patch" of this library. */
const char* deeppcr_version(void);

/* ---- Engine */
typedef struct deeppcr_engine deeppcr_engine;

typedef enum deeppcr_plan_mode {
  DEEPPCR_PLAN_PREFER = 0,  /* measure a plan only where no plan.json fits */
  DEEPPCR_PLAN_MEASURE = 1, /* measure at every load */
  DEEPPCR_PLAN_REQUIRE = 2  /* take the plan of plan.json, or fail */
} deeppcr_plan_mode;

typedef struct deeppcr_engine_options {
  size_t struct_size;
  const char* backend;         /* "auto", "cpu", "cuda", "reference"; NULL: auto */
  int32_t num_threads;         /* threads that share a run, up to 1024; 0: one per core */
  int32_t max_concurrent_runs; /* threads in deeppcr_run at a time, others wait; 0: num_threads */
  const char* plan_cache_dir;  /* keeps measured plans; NULL: they are not kept */
  int32_t plan_mode;           /* a deeppcr_plan_mode */
  int64_t max_model_bytes;     /* limit on a weights file */
  int64_t max_workspace_bytes; /* per thread */
  int64_t max_unplanned_bytes; /* per model, for numbers of inference steps without a plan;
                                  -1: five times the weights, at least 512 MiB */
  /* Receives the steps of a load in words, on the thread that loads; may be NULL, may not throw.
   * `is_problem` is 1 for a problem that the load goes on without solving. */
  void (*progress)(void* user, int is_problem, const char* text);
  void* progress_user;
  int32_t gradients; /* not 0: load backward passes too, for deeppcr_go_back */
} deeppcr_engine_options;
#define DEEPPCR_ENGINE_OPTIONS_INIT                                                          \
  {                                                                                          \
    sizeof(deeppcr_engine_options), NULL, 0, 0, NULL, DEEPPCR_PLAN_PREFER, INT64_C(1) << 30, \
        INT64_C(1) << 28, -1, NULL, NULL, 0                                                  \
  }

/* `options` may be NULL. Errors: INVALID_ARGUMENT naming the option; UNAVAILABLE if the backend
 * cannot run here. */
deeppcr_status deeppcr_engine_create(const deeppcr_engine_options* options,
                                     deeppcr_engine** engine);
/* Models may outlive their engine. NULL does nothing. */
void deeppcr_engine_destroy(deeppcr_engine* engine);
/* The device that models are tried on first, e.g. "cpu-avx2". Valid while the engine lives. */
const char* deeppcr_engine_device(const deeppcr_engine* engine);

/* ---- Cancellation */
typedef struct deeppcr_token deeppcr_token;
deeppcr_status deeppcr_token_create(deeppcr_token** token);
/* Stops what was given this token, soon; from any thread, for good. */
void deeppcr_token_cancel(deeppcr_token* token);
/* Goes after the calls that were given the token. NULL does nothing. */
void deeppcr_token_destroy(deeppcr_token* token);

/* ---- Models */
typedef struct deeppcr_model deeppcr_model;

/* Loads the folder of one version of a model: config.json, model.safetensors, for diffusion
 * scheduler_config.json or step_table.safetensors, and, if there, plan.json and
 * calibration.safetensors. Measures a plan where none fits, which takes seconds. `token` may be
 * NULL. Errors: NOT_FOUND, INVALID_ARGUMENT naming the file and the key or tensor,
 * RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNIMPLEMENTED, CANCELLED. */
deeppcr_status deeppcr_model_load(deeppcr_engine* engine, const char* directory,
                                  const deeppcr_token* token, deeppcr_model** model);
void deeppcr_model_destroy(deeppcr_model* model);

/* Texts are valid while the model lives. */
typedef struct deeppcr_model_info {
  size_t struct_size;
  const char* model_type;     /* "mlp", "resnet", "stack", "diffusion" */
  const char* backend;        /* that runs it, e.g. "cpu" */
  const char* config_json;    /* as it was read */
  const char* weights_sha256; /* of model.safetensors, in hexadecimal */
  int64_t input_dim;          /* of a diffusion model: of its conditioning vector, 0 for none */
  int64_t output_dim;
  int64_t state_dim;           /* D */
  int64_t num_steps;           /* L; of a diffusion model: its default number of inference steps */
  int64_t max_inference_steps; /* largest L that a run may ask for; 0: only planned ones */
  int64_t num_classes;         /* 0: no class labels */
  int32_t max_batch_size;      /* largest num_samples */
  int32_t generates;           /* 1 for a diffusion model, which draws noise */
  int64_t memory_dim; /* last elements of the state that are a sampler's memory, as of HeunDiscrete;
                         sample_dim below is state_dim - memory_dim */
} deeppcr_model_info;
#define DEEPPCR_MODEL_INFO_INIT \
  { sizeof(deeppcr_model_info), NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
deeppcr_status deeppcr_model_describe(const deeppcr_model* model, deeppcr_model_info* info);

/* Name of the i-th solver that the model accepts, "auto" included; NULL behind the last one. */
const char* deeppcr_model_solver(const deeppcr_model* model, int32_t i);

/* ---- Runs */
typedef enum deeppcr_guess {
  DEEPPCR_GUESS_PLAN = 0,
  DEEPPCR_GUESS_CONSTANT = 1,   /* z_0 everywhere */
  DEEPPCR_GUESS_COARSE = 2,     /* diffusion only */
  DEEPPCR_GUESS_CALIBRATED = 3, /* the map fitted at load */
  DEEPPCR_GUESS_PREVIOUS = 4    /* inputs.initial_states */
} deeppcr_guess;

typedef enum deeppcr_refresh {
  DEEPPCR_REFRESH_PLAN = 0,
  DEEPPCR_REFRESH_EVERY_ITERATION = 1,
  DEEPPCR_REFRESH_WHILE_CONTRACTING = 2 /* reuse transition matrices while updates shrink fast */
} deeppcr_refresh;

typedef enum deeppcr_no_convergence {
  DEEPPCR_NO_CONVERGENCE_FALLBACK = 0, /* the sequential solver answers */
  DEEPPCR_NO_CONVERGENCE_RETURN = 1,   /* the last iterate, with report.converged 0 */
  DEEPPCR_NO_CONVERGENCE_ERROR = 2     /* DEEPPCR_ABORTED */
} deeppcr_no_convergence;

typedef struct deeppcr_run_options {
  size_t struct_size;
  const char* solver;        /* NULL: "auto", the fastest of the plan */
  double rtol;               /* of the states, [1e-7, 0.1] */
  double atol;               /* [0, 1] */
  int32_t max_iterations;    /* [0, 10000]; 0: the default */
  int32_t shooting_interval; /* C in [0, L]; 0: the plan's */
  int32_t warm_sweeps;       /* [-1, 64]; -1: the plan's */
  int32_t initial_guess;     /* a deeppcr_guess */
  int32_t jacobian_refresh;  /* a deeppcr_refresh */
  int32_t on_no_convergence; /* a deeppcr_no_convergence */
  int64_t
      num_inference_steps;    /* diffusion only; 0: the default. A new number takes up to seconds */
  double timeout_seconds;     /* 0: none */
  const deeppcr_token* token; /* may be NULL */
} deeppcr_run_options;
#define DEEPPCR_RUN_OPTIONS_INIT \
  { sizeof(deeppcr_run_options), NULL, 1e-4, 1e-6, 0, 0, -1, 0, 0, 0, 0, 0, NULL }

typedef struct deeppcr_inputs {
  size_t struct_size;
  int64_t num_samples;         /* n in [1, max_batch_size] */
  const float* inputs;         /* [n, input_dim]; not read if input_dim is 0 */
  const float* initial_states; /* [n, L + 1, D] for DEEPPCR_GUESS_PREVIOUS: the last trajectory */
  /* Diffusion models: sample i draws the noise of (seed, first_sample + i), unless it is given.
   * Others do not read it. */
  uint64_t seed;
  uint64_t first_sample;
  const int32_t* class_labels; /* [n] in [0, num_classes); NULL if there are none */
  const float* initial_noise;  /* [n, sample_dim], or NULL */
  const float* step_noise;     /* [n, L, sample_dim], or NULL */
} deeppcr_inputs;
#define DEEPPCR_INPUTS_INIT \
  { sizeof(deeppcr_inputs), 0, NULL, NULL, 0, 0, NULL, NULL, NULL }

/* How an answer was found. A figure that was not found is a NaN. Texts are valid for ever. */
typedef struct deeppcr_report {
  const char* solver;        /* that answered */
  const char* termination;   /* "direct", "converged", "max_iterations", ... */
  int32_t converged;         /* 1: right to the tolerance, or the sequential answer */
  int32_t fallback;          /* 1: the sequential solver answered in place of another */
  int32_t iterations;        /* updates with newly evaluated transition matrices */
  int32_t chord_corrections; /* updates with reused ones */
  int32_t confirmations;     /* passes that certify */
  int32_t warm_sweeps;
  int64_t dependent_stages;     /* one after another; L for the sequential solver */
  int64_t column_passes;        /* vectors pushed through all L steps */
  double error_estimate;        /* of the states, relative to |z| + atol / rtol */
  double output_error_estimate; /* relative to the outputs */
  double rounding_estimate;     /* the part of error_estimate that is rounding */
  double last_update;           /* relative as error_estimate */
  /* The attempt before a fallback; NULL if there was none. */
  const char* attempt_solver;
  const char* attempt_termination;
} deeppcr_report;

typedef struct deeppcr_outputs {
  size_t struct_size;
  float* outputs;          /* [n, output_dim] */
  float* final_states;     /* z_L [n, D], or NULL */
  float* trajectory;       /* z_0..z_L [n, L + 1, D], or NULL */
  deeppcr_report* reports; /* [n], or NULL */
  size_t report_size;      /* sizeof(deeppcr_report) of the caller's header */
  double seconds;          /* receives what the engine took */
} deeppcr_outputs;
#define DEEPPCR_OUTPUTS_INIT \
  { sizeof(deeppcr_outputs), NULL, NULL, NULL, NULL, sizeof(deeppcr_report), 0 }

/* Solves n samples; bits of a sample depend on no other. A NaN or infinity among the inputs is no
 * error: the sample's report says that it did not converge. `options` may be NULL. Reports are
 * written whenever something was computed, outputs are of no use unless the call returns
 * DEEPPCR_OK. Errors: INVALID_ARGUMENT naming the option or input; ABORTED, DEADLINE_EXCEEDED,
 * CANCELLED; RESOURCE_EXHAUSTED if a number of inference steps exceeds the limits; UNAVAILABLE. */
deeppcr_status deeppcr_run(const deeppcr_model* model, const deeppcr_run_options* options,
                           const deeppcr_inputs* inputs, deeppcr_outputs* outputs);

/* ---- Gradients */
typedef enum deeppcr_way {
  DEEPPCR_WAY_SEQUENTIAL = 0, /* step by step */
  DEEPPCR_WAY_PARALLEL = 1    /* the transposed reverse scan over shooting intervals */
} deeppcr_way;

typedef struct deeppcr_backward_options {
  size_t struct_size;
  int32_t way;                 /* a deeppcr_way */
  int32_t shooting_interval;   /* C in [0, L] of the parallel way; 0: the root of L */
  int64_t num_inference_steps; /* diffusion only, as in the run; 0: the default */
  double timeout_seconds;      /* 0: none */
  const deeppcr_token* token;  /* may be NULL */
} deeppcr_backward_options;
#define DEEPPCR_BACKWARD_OPTIONS_INIT \
  { sizeof(deeppcr_backward_options), DEEPPCR_WAY_SEQUENTIAL, 0, 0, 0, NULL }

/* What goes back: m cotangents of each of the n samples. */
typedef struct deeppcr_cotangents {
  size_t struct_size;
  const float* states;          /* [n, L + 1, D]: the trajectory of the run, finite */
  int64_t columns;              /* m in [1, 4096] */
  const float* of_outputs;      /* [n, m, output_dim], or NULL for zero */
  const float* of_final_states; /* [n, m, D], of z_L, beside those of the outputs; or NULL */
  /* For gradients.error_estimates: error_estimate of the run's reports [n], NaN where there is
   * none, and atol / rtol of its options. */
  const double* state_errors;
  double state_floor;
} deeppcr_cotangents;
#define DEEPPCR_COTANGENTS_INIT \
  { sizeof(deeppcr_cotangents), NULL, 1, NULL, NULL, NULL, 1e-2 }

/* What the cotangents become; NULL: not wanted. */
typedef struct deeppcr_gradients {
  size_t struct_size;
  float* inputs;            /* [n, m, input_dim]: by the inputs, or the conditioning vector */
  float* initial_states;    /* [n, m, sample_dim]: by z_0, of diffusion by its noise */
  float* step_noise;        /* [n, m, L, sample_dim]: by the noise of the steps; diffusion only */
  double seconds;           /* receives what the engine took */
  int64_t dependent_stages; /* receives the number of steps that had to wait for one another */
  /* [n], or NULL: about how far the gradients of a sample are from those along the exact states,
   * the largest relative difference of any, an estimate and no bound. Takes
   * cotangents.state_errors and eight more ways back. NaN where the run has no estimate, and where
   * no digit is sure. */
  double* error_estimates;
} deeppcr_gradients;
#define DEEPPCR_GRADIENTS_INIT \
  { sizeof(deeppcr_gradients), NULL, NULL, NULL, 0, 0, NULL }

/* Takes cotangents back through the steps of a run: the derivative of the states that it found, by
 * whatever solver, at the same inputs (of their noise what a learned variance scales is
 * read, and nothing else). Right to float32's
 * rounding; what an error of the states themselves changes is in error_estimates alone. The bits of
 * a sample depend on no other. A result that overflows is infinite or a NaN, which is no error.
 * Errors: INVALID_ARGUMENT naming the option, input or array; UNIMPLEMENTED unless the engine's
 * options ask for gradients and the model's backend has them; DEADLINE_EXCEEDED, CANCELLED;
 * RESOURCE_EXHAUSTED; UNAVAILABLE. */
deeppcr_status deeppcr_go_back(const deeppcr_model* model, const deeppcr_backward_options* options,
                               const deeppcr_inputs* inputs, const deeppcr_cotangents* cotangents,
                               deeppcr_gradients* gradients);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* DEEPPCR_KERNELS_C_API_DEEPPCR_H_ */
