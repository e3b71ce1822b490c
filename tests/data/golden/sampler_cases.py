# SPDX-License-Identifier: Apache-2.0
"""The runs of make_sampler_golden.py: names, numbers of steps and configs of schedulers."""

import itertools

MOST_STEPS = 1000
SPACINGS = ("leading", "linspace", "trailing")
STABLE = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}


def schedules_with_betas(sampler, base):
    for schedule in ("linear", "scaled_linear", "squaredcos_cap_v2"):
        # From the largest sigma of the cosine diffusers' float32 comes to few digits by Heun.
        cosine = sampler == "heun" and schedule == "squaredcos_cap_v2"
        spacing = {"timestep_spacing": "leading"} if cosine else {}
        yield f"{sampler}_{schedule}", 6, {
            **base, **spacing, "beta_schedule": schedule, "beta_end": 0.012}
    yield f"{sampler}_trained_betas", 4, {
        **base, "num_train_timesteps": 6, "trained_betas": [0.02, 0.05, 0.125, 0.3, 0.25, 0.5]}
    if sampler != "heun":
        yield f"{sampler}_zero_snr", 5, {
            **base, **STABLE, "rescale_betas_zero_snr": True, "prediction_type": "v_prediction",
            "timestep_spacing": "trailing"}
    yield f"{sampler}_steps_offset", 5, {
        **base, "timestep_spacing": "leading", "steps_offset": 1}


def lengths(sampler, base, most=MOST_STEPS):
    for steps in (1, 2, 31, 100, most):
        yield f"{sampler}_{steps}_steps", steps, base


def euler_cases():
    for sampler, predictions in (("euler", ("epsilon", "sample", "v_prediction")),
                                 ("ancestral", ("epsilon", "v_prediction"))):
        for prediction, spacing in itertools.product(predictions, SPACINGS):
            yield f"{sampler}_{prediction}_{spacing}", 7, {
                "prediction_type": prediction, "timestep_spacing": spacing}
        yield from schedules_with_betas(sampler, {})
        yield from lengths(sampler, {})
    for prediction, kind, final in itertools.product(
            ("epsilon", "v_prediction"), ("karras", "exponential", "beta"), ("zero", "sigma_min")):
        yield f"euler_{kind}_{prediction}_{final}", 8, {
            **STABLE, "prediction_type": prediction, f"use_{kind}_sigmas": True,
            "final_sigmas_type": final, "timestep_spacing": "leading"}
    for kind in ("karras", "exponential", "beta"):
        yield f"euler_{kind}_bounds", 6, {
            f"use_{kind}_sigmas": True, "sigma_min": 0.03, "sigma_max": 12.0}
        yield f"euler_{kind}_one_step", 1, {f"use_{kind}_sigmas": True}
        yield f"euler_log_linear_{kind}", 5, {
            "interpolation_type": "log_linear", f"use_{kind}_sigmas": True}
    yield "euler_log_linear", 6, {"interpolation_type": "log_linear"}
    yield "euler_log_linear_sigma_min", 6, {
        "interpolation_type": "log_linear", "final_sigmas_type": "sigma_min"}
    yield "euler_final_sigma_min", 6, {"final_sigmas_type": "sigma_min"}
    for kind in ({}, {"use_karras_sigmas": True}):
        yield f"euler_continuous{'_karras' if kind else ''}", 6, {
            "timestep_type": "continuous", "prediction_type": "v_prediction",
            "sigma_min": 0.002, "sigma_max": 500.0, **kind}
    yield "euler_continuous_epsilon", 6, {"timestep_type": "continuous"}


def dpm_cases():
    order = {"solver_order": 1}
    for algorithm, prediction, spacing in itertools.product(
            ("dpmsolver++", "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver"),
            ("epsilon", "sample", "v_prediction"), SPACINGS):
        final = "zero" if algorithm.endswith("++") else "sigma_min"
        name = algorithm.replace("-", "_").replace("++", "pp")
        yield f"dpm_{name}_{prediction}_{spacing}", 6, {
            **order, "algorithm_type": algorithm, "prediction_type": prediction,
            "timestep_spacing": spacing, "final_sigmas_type": final}
    yield from schedules_with_betas("dpm", order)
    yield from lengths("dpm", order)
    yield from lengths("dpm_sde", {**order, "algorithm_type": "sde-dpmsolver++"}, 200)
    for kind in ("use_karras_sigmas", "use_lu_lambdas"):
        for final in ("zero", "sigma_min"):
            yield f"dpm_{kind}_{final}", 9, {
                **order, **STABLE, kind: True, "final_sigmas_type": final}
    for prediction, algorithm in itertools.product(
            ("flow_prediction", "epsilon", "v_prediction"), ("dpmsolver++", "sde-dpmsolver++")):
        yield f"dpm_flow_{prediction}_{algorithm[:3]}", 8, {
            **order, "use_flow_sigmas": True, "flow_shift": 3.0, "prediction_type": prediction,
            "algorithm_type": algorithm}
    for final in ("zero", "sigma_min"):
        yield f"dpm_karras_bounds_{final}", 6, {
            **order, **STABLE, "use_karras_sigmas": True, "final_sigmas_type": final,
            "sigma_min": 0.1, "sigma_max": 5.0}
    # The last sigma, of the first timestep, is above the last of the flow.
    for algorithm, kind in itertools.product(("dpmsolver++", "dpmsolver"), (1, 2)):
        yield f"dpm_flow_ascends_{'pp' if '+' in algorithm else 'eps'}_{kind}", 20, {
            "solver_order": kind, "use_flow_sigmas": True, "flow_shift": 0.5, "beta_start": 0.02,
            "beta_end": 0.03, "num_train_timesteps": 50, "final_sigmas_type": "sigma_min",
            "algorithm_type": algorithm, "lower_order_final": False}
    # The last sigma is that of the first timestep, but for rounding.
    for algorithm in ("sde-dpmsolver++", "sde-dpmsolver"):
        yield f"dpm_karras_{algorithm.replace('-', '_').replace('++', 'pp')}", 8, {
            **order, **STABLE, "use_karras_sigmas": True, "final_sigmas_type": "sigma_min",
            "algorithm_type": algorithm}
    yield "dpm_final_sigma_min", 6, {**order, "final_sigmas_type": "sigma_min"}
    for spacing in SPACINGS:
        yield f"dpm_lambda_min_{spacing}", 6 if spacing != "trailing" else 10, {
            **order, "beta_schedule": "squaredcos_cap_v2", "lambda_min_clipped": -5.1,
            "timestep_spacing": spacing}


def multistep_cases():
    spacings = itertools.cycle(SPACINGS)
    for algorithm, prediction, solver in itertools.product(
            ("dpmsolver++", "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver"),
            ("epsilon", "sample", "v_prediction"), ("midpoint", "heun")):
        final = "zero" if algorithm.endswith("++") else "sigma_min"
        name = algorithm.replace("-", "_").replace("++", "pp")
        yield f"multistep_{name}_{prediction}_{solver}", 7, {
            "algorithm_type": algorithm, "prediction_type": prediction, "solver_type": solver,
            "timestep_spacing": next(spacings), "final_sigmas_type": final}
    for steps, lower, euler, final in itertools.product(
            (14, 15), (False, True), (False, True), ("zero", "sigma_min")):
        name = f"{'lower' if lower else 'same'}{'_euler' if euler else ''}_{final}"
        yield f"multistep_last_of_{steps}_{name}", steps, {
            "lower_order_final": lower, "euler_at_final": euler, "final_sigmas_type": final}
    yield from schedules_with_betas("multistep", {})
    # Of 1000 steps linspace has the same timestep twice, which diffusers makes NaN of.
    trailing = {"timestep_spacing": "trailing"}
    yield from lengths("multistep", trailing)
    yield from lengths("multistep_heun", {**trailing, "solver_type": "heun"})
    yield from lengths("multistep_sde", {"algorithm_type": "sde-dpmsolver++"}, 200)
    for kind, final in itertools.product(("use_karras_sigmas", "use_lu_lambdas"),
                                         ("zero", "sigma_min")):
        yield f"multistep_{kind}_{final}", 9, {**STABLE, kind: True, "final_sigmas_type": final}
    for prediction, algorithm in itertools.product(
            ("flow_prediction", "epsilon", "v_prediction"), ("dpmsolver++", "sde-dpmsolver++")):
        yield f"multistep_flow_{prediction}_{algorithm[:3]}", 8, {
            "use_flow_sigmas": True, "flow_shift": 3.0, "prediction_type": prediction,
            "algorithm_type": algorithm}
    for spacing in SPACINGS:
        yield f"multistep_lambda_min_{spacing}", 6 if spacing != "trailing" else 10, {
            "beta_schedule": "squaredcos_cap_v2", "lambda_min_clipped": -5.1,
            "timestep_spacing": spacing}


def heun_cases():
    for prediction, spacing, clip in itertools.product(
            ("epsilon", "sample", "v_prediction"), SPACINGS, (False, True)):
        yield f"heun_{prediction}_{spacing}{'_clip' if clip else ''}", 6, {
            "prediction_type": prediction, "timestep_spacing": spacing, "clip_sample": clip,
            "clip_sample_range": 0.7}
    for prediction, kind in itertools.product(("epsilon", "v_prediction"),
                                              ("karras", "exponential", "beta")):
        yield f"heun_{kind}_{prediction}", 8, {
            **STABLE, "prediction_type": prediction, f"use_{kind}_sigmas": True,
            "timestep_spacing": "leading"}
        yield f"heun_{kind}_{prediction}_one_step", 1, {f"use_{kind}_sigmas": True}
    for kind in ("karras", "exponential", "beta"):
        yield f"heun_{kind}_bounds", 6, {
            f"use_{kind}_sigmas": True, "sigma_min": 0.1, "sigma_max": 5.0}
    yield from schedules_with_betas("heun", {})
    yield "heun_exp", 6, {"beta_schedule": "exp"}
    yield from lengths("heun", {})
    yield from lengths("heun_clip", {"clip_sample": True}, 200)


def begun_later_cases():
    for algorithm, solver, first in itertools.product(
            ("dpmsolver++", "sde-dpmsolver++", "dpmsolver", "sde-dpmsolver"),
            ("midpoint", "heun"), (1, 5, 8)):
        final = "zero" if algorithm.endswith("++") else "sigma_min"
        name = algorithm.replace("-", "_").replace("++", "pp")
        yield f"multistep_{name}_{solver}_from_{first}", 9, {
            "algorithm_type": algorithm, "solver_type": solver, "final_sigmas_type": final}, first
    yield "multistep_order_1_from_4", 9, {"solver_order": 1}, 4
    yield "multistep_same_from_7", 20, {
        "lower_order_final": False, "final_sigmas_type": "sigma_min"}, 7
    for first, prediction in itertools.product((2, 6, 10), ("epsilon", "v_prediction")):
        yield f"heun_{prediction}_from_{first}", 6, {
            "prediction_type": prediction, "clip_sample": first == 6,
            "clip_sample_range": 0.7}, first


def ddpm_cases():
    spacings = itertools.cycle(SPACINGS)
    for variance, prediction, clip in itertools.product(
            ("learned", "learned_range"), ("epsilon", "sample", "v_prediction"), (False, True)):
        yield f"ddpm_{variance}_{prediction}{'_clip' if clip else ''}", 7, {
            "variance_type": variance, "prediction_type": prediction, "clip_sample": clip,
            "clip_sample_range": 0.7, "timestep_spacing": next(spacings)}
    for variance in ("learned", "learned_range"):
        yield from lengths(f"ddpm_{variance}", {"variance_type": variance})
    yield "ddpm_learned_range_steps_offset", 5, {
        "variance_type": "learned_range", "steps_offset": 1}


def lcm_cases():
    for prediction, clip in itertools.product(("epsilon", "sample", "v_prediction"),
                                              (False, True)):
        yield f"lcm_{prediction}{'_clip' if clip else ''}", 4, {
            "prediction_type": prediction, "clip_sample": clip, "clip_sample_range": 0.7}
    yield from (case for case in schedules_with_betas("lcm", {})
                if not case[0].endswith("trained_betas"))
    yield "lcm_trained_betas", 3, {
        "num_train_timesteps": 6, "trained_betas": [0.02, 0.05, 0.125, 0.3, 0.25, 0.5],
        "original_inference_steps": 3}
    yield "lcm_scaling", 5, {"timestep_scaling": 0.001, "original_inference_steps": 100}
    for steps in (1, 2, 7, 50):
        yield f"lcm_{steps}_steps", steps, {}
    yield "lcm_1000_steps", 1000, {"original_inference_steps": 1000}


def flow_cases():
    kinds = ({}, {"use_karras_sigmas": True}, {"use_exponential_sigmas": True},
             {"use_beta_sigmas": True})
    for shift, kind, stochastic in itertools.product((1.0, 3.0), kinds, (False, True)):
        name = next(iter(kind), "use_plain").split("_")[1]
        yield f"flow_{name}_shift_{shift:.0f}{'_stochastic' if stochastic else ''}", 7, {
            "shift": shift, "stochastic_sampling": stochastic, **kind}
    for stochastic in (False, True):
        yield f"flow_inverted{'_stochastic' if stochastic else ''}", 6, {
            "invert_sigmas": True, "shift": 2.0, "stochastic_sampling": stochastic}
    for kind in kinds[1:]:
        yield f"flow_{next(iter(kind)).split('_')[1]}_bounds", 6, {
            **kind, "sigma_min": 0.1, "sigma_max": 0.9}
    yield "flow_terminal", 6, {"shift_terminal": 0.1, "shift": 2.5}
    yield "flow_terminal_karras", 6, {"shift_terminal": 0.1, "use_karras_sigmas": True}
    yield "flow_few_timesteps", 5, {"num_train_timesteps": 13}
    yield from lengths("flow", {"shift": 3.0})


def dynamic_shifting_cases():
    """Shifts by the mu of set_timesteps: a flow of diffusers' FluxPipeline has 0.5 to 1.15."""
    for kind, shift, mu in itertools.product(
            ("plain", "beta", "karras"), ("exponential", "linear"), (0.5, 1.15, 3.0)):
        spaced = {} if kind == "plain" else {f"use_{kind}_sigmas": True}
        yield f"flow_dynamic_{kind}_{shift}_{mu:.0f}", 7, {
            "use_dynamic_shifting": True, "time_shift_type": shift, "shift": 2.0, **spaced}, 0, mu
    yield "flow_dynamic_negative", 7, {"use_dynamic_shifting": True}, 0, -0.7
    yield "flow_dynamic_terminal", 9, {
        "use_dynamic_shifting": True, "shift_terminal": 0.1, "stochastic_sampling": True}, 0, 0.9
    for steps in (1, 2, 31, 100, MOST_STEPS):
        yield f"flow_dynamic_{steps}_steps", steps, {"use_dynamic_shifting": True}, 0, 1.15
    for mu, order in itertools.product((0.5, 1.15), (1, 2)):
        yield f"dpm_dynamic_{mu:.0f}_order_{order}", 8, {
            "solver_order": order, "use_flow_sigmas": True, "use_dynamic_shifting": True,
            "prediction_type": "flow_prediction"}, 0, mu
    yield "dpm_dynamic_without_mu", 8, {
        "use_flow_sigmas": True, "use_dynamic_shifting": True, "flow_shift": 2.0,
        "prediction_type": "flow_prediction"}
    yield "dpm_time_shift_type", 6, {"time_shift_type": "linear"}


def edm_cases():
    for prediction, schedule, final in itertools.product(
            ("epsilon", "v_prediction"), ("karras", "exponential"), ("zero", "sigma_min")):
        yield f"edm_{prediction}_{schedule}_{final}", 7, {
            "prediction_type": prediction, "sigma_schedule": schedule, "final_sigmas_type": final}
    yield "edm_options", 6, {"sigma_min": 0.01, "sigma_max": 20.0, "sigma_data": 1.5, "rho": 3.0}
    yield "edm_exponential_one_step", 1, {"sigma_schedule": "exponential"}
    yield from lengths("edm", {})


def all_cases():
    return itertools.chain(euler_cases(), dpm_cases(), lcm_cases(), flow_cases(), edm_cases(),
                           dynamic_shifting_cases(), multistep_cases(), heun_cases(), ddpm_cases(), begun_later_cases())
