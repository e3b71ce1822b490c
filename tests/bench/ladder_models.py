# SPDX-License-Identifier: Apache-2.0
"""Writes models that only the benchmarks need."""

import json

WIDE_MODEL = 'adaln-3x1024'  # W5


def write_wide_model(folder, seed=5):
    """DDIM-100, D = 16, an adaLN denoiser of 3 blocks 1024 wide: random, but tame and not linear.

    Its input layer embeds a state isometrically, its blocks add to that what random layers make of
    it, and its output layer projects back: what it takes for noise is about z, scaled to the length
    that noise has. So the states shrink as those of a trained model do.
    """
    # Tables of results name this model, and are made where there is no NumPy.
    import numpy as np  # pylint: disable=import-outside-toplevel
    import safetensors_file  # pylint: disable=import-outside-toplevel

    dim, hidden, embedding, blocks = 16, 1024, 128, 3
    generator = np.random.default_rng(seed)
    tensors = {}

    def add(name, value):
        tensors[name] = np.ascontiguousarray(value, dtype=np.float32)

    def linear(name, rows, cols, scale=1.0):
        bound = scale / np.sqrt(cols)  # the range of an untrained nn.Linear
        add(f'{name}.weight', generator.uniform(-bound, bound, (rows, cols)))
        add(f'{name}.bias', generator.uniform(-bound, bound, rows))

    frame = np.linalg.qr(generator.standard_normal((hidden, dim)))[0]
    add('input_proj.weight', np.sqrt(hidden / dim) * frame)
    add('input_proj.bias', np.zeros(hidden))
    linear('time_embed.mlp.0', hidden, embedding, 2.0)
    linear('time_embed.mlp.2', hidden, hidden, 2.0)
    for i in range(blocks):
        add(f'res_blocks.{i}.in_ln.weight', 1 + 0.1 * generator.standard_normal(hidden))
        add(f'res_blocks.{i}.in_ln.bias', 0.1 * generator.standard_normal(hidden))
        linear(f'res_blocks.{i}.mlp.0', hidden, hidden, 2.0)
        linear(f'res_blocks.{i}.mlp.2', hidden, hidden, 2.0)
        linear(f'res_blocks.{i}.adaLN_modulation.1', 3 * hidden, hidden, 2.0)
    linear('final_layer.adaLN_modulation.1', 2 * hidden, hidden, 2.0)
    add('final_layer.linear.weight', np.sqrt(dim / hidden) * frame.T)
    add('final_layer.linear.bias', np.zeros(dim))

    version = folder / WIDE_MODEL / '1'
    version.mkdir(parents=True)
    safetensors_file.write(version / 'model.safetensors', tensors)
    config = {'model_type': 'diffusion', 'state_dim': dim, 'output_dim': dim,
              'denoiser': 'adaln_mlp', 'hidden_dim': hidden, 'num_blocks': blocks,
              'activation': 'silu', 'time_embedding_dim': embedding,
              'num_inference_steps': [100], 'max_batch_size': 64}
    scheduler = {'_class_name': 'DDIMScheduler', 'num_train_timesteps': 1000,
                 'beta_start': 1e-4, 'beta_end': 0.02, 'beta_schedule': 'linear',
                 'clip_sample': False, 'set_alpha_to_one': True, 'prediction_type': 'epsilon',
                 'timestep_spacing': 'leading', 'steps_offset': 0}
    for name, value in (('config', config), ('scheduler_config', scheduler)):
        (version / f'{name}.json').write_text(json.dumps(value, indent=2) + '\n', encoding='utf-8')
    return version.parent
