/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a model in this process, again and again as a control loop would, and prints what a call
 * takes beside what the engine itself takes.
 *
 * usage: control_loop MODEL_FOLDER [CALLS] */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <deeppcr.h>

static void check(deeppcr_status status, const char* what) {
  if (status == DEEPPCR_OK) return;
  fprintf(stderr, "%s: %s (status %d)\n", what, deeppcr_last_error(), (int)status);
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double quantile(double* seconds, int calls, double q) {
  qsort(seconds, (size_t)calls, sizeof(*seconds), ascending);
  return seconds[(int)(q * (calls - 1))];
}

int main(int argc, char** argv) {
  const int calls = argc > 2 ? atoi(argv[2]) : 2000;
  deeppcr_engine_options options = DEEPPCR_ENGINE_OPTIONS_INIT;
  deeppcr_engine* engine = NULL;
  deeppcr_model* model = NULL;
  deeppcr_model_info info = DEEPPCR_MODEL_INFO_INIT;
  deeppcr_inputs inputs = DEEPPCR_INPUTS_INIT;
  deeppcr_outputs outputs = DEEPPCR_OUTPUTS_INIT;
  deeppcr_report report;
  float *x, *y;
  double *call, *solve;
  int i;

  if (argc < 2 || calls < 1) {
    fprintf(stderr, "usage: %s MODEL_FOLDER [CALLS]\n", argv[0]);
    return 2;
  }
  options.num_threads = 1; /* a single sample is computed by the thread that asks */
  check(deeppcr_engine_create(&options, &engine), "engine");
  check(deeppcr_model_load(engine, argv[1], NULL, &model), argv[1]);
  check(deeppcr_model_describe(model, &info), "describe");
  printf("libdeeppcr %s, %s: %s with %lld steps of width %lld\n", deeppcr_version(),
         deeppcr_engine_device(engine), info.model_type, (long long)info.num_steps,
         (long long)info.state_dim);

  x = calloc((size_t)info.input_dim + 1, sizeof(*x));
  y = calloc((size_t)info.output_dim, sizeof(*y));
  call = calloc((size_t)calls, sizeof(*call));
  solve = calloc((size_t)calls, sizeof(*solve));
  if (x == NULL || y == NULL || call == NULL || solve == NULL) return 1;
  inputs.num_samples = 1;
  inputs.inputs = x;
  outputs.outputs = y;
  outputs.reports = &report;
  for (i = 0; i < calls; ++i) {
    double start;
    int64_t k;
    for (k = 0; k < info.input_dim; ++k) x[k] = (float)((i + k) % 17) / 17.0F;
    start = now();
    check(deeppcr_run(model, NULL, &inputs, &outputs), "run");
    call[i] = now() - start;
    solve[i] = outputs.seconds;
  }
  printf("answered by %s, %s; first output %g\n", report.solver, report.termination, (double)y[0]);
  printf("%d calls: median %.2f us, of which the engine %.2f us; p99 %.2f us\n", calls,
         1e6 * quantile(call, calls, 0.5), 1e6 * quantile(solve, calls, 0.5),
         1e6 * quantile(call, calls, 0.99));

  free(x);
  free(y);
  free(call);
  free(solve);
  deeppcr_model_destroy(model);
  deeppcr_engine_destroy(engine);
  return 0;
}
