#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes copies of the CUDA kernels in which faults can be switched on, one at a time, for tests.

Usage: plant_faults.py SOURCE_DIR OUTPUT_DIR

A fault is a piece of a kernel's text, an expression or a statement, which has to occur once (with what
stands before a "|", if it has one), and what a wrong kernel has in its place. OUTPUT_DIR receives the files with faults under their own paths, to be found before the right
ones by a compiler, and `switch/planted_faults.h`, with the switch. The kernels themselves know nothing of
it. A piece that is not found, or found twice, is an error: whoever changes a kernel moves its fault.
"""
import pathlib
import shutil
import sys

FAULTS = {
    "loop/newton_kernel.h": {
        # The states of the block before, and all norms, are read before they are there.
        "MissingBarrierAfterUpdate": ("context_.SyncCluster(kAfterUpdate);", "context_.SyncWarp(kAfterUpdate);"),
        # A last interval that is shorter than the others loses its last step.
        "ShortLastInterval": (
            "return end < args_.stack.num_steps ? end : args_.stack.num_steps;",
            "return end <= args_.stack.num_steps ? end : args_.stack.num_steps - 1;",
        ),
        "NormsWithoutLastWarp": (
            "if (|context_.lane() < warps_",
            "context_.lane() + 1 < warps_",
        ),
        "ConfirmationsWithoutHalo": ("kind.confirms() ? kUpdateColumn : 0", "kind.confirms() ? kNumColumns : 0"),
        "HaloOfWrongInterval": ("memory_.State(tree_.per_block)", "memory_.State(tree_.per_block - 1)"),
    },
    "loop/interval_scan.h": {
        "ChainWithoutLastNode": ("for (int32_t j = 1; |j < last", "j + 1 < last"),
        "EnteringOfNextNode": ("of_chain ? |memory_.ChainResidual(j - 1)", "memory_.ChainResidual(j)"),
    },
    "loop/interval_norms.h": {
        "ProbesWithoutNorm": ("norms_.probe = fmaxf(norms_.probe, rho_);", "norms_.probe = 0.0F;"),
    },
    "loop/pass_kernel.h": {
        # Products of the tree lose half of every row.
        "HalfOfRows": ("sums[v] + context.ShuffleXor(sums[v], 2)", "sums[v]"),
        # Norms of an interval lose its last rows.
        "NormsWithoutLastRows": (
            "for (int32_t i = 1; i < units; ++i) Merge(of_rows[i], &all);",
            "for (int32_t i = 1; i + 1 < units; ++i) Merge(of_rows[i], &all);",
        ),
    },
    "math/panel_layer.h": {
        # The rows of a layer's last panel but one are those of their neighbours.
        "PanelOneRowOff": (
            "(layer.cols / kPanelCols) * kWarpSize + |context.lane()",
            "(context.lane() + (panel == layer.rows / kPanelRows - 2 ? kSegments : 0)) % kWarpSize",
        ),
    },
    "math/dense_chain_kernel.h": {
        "AmplificationOfLastColumns": ("fresh ? 0.0F : row_sums_[i]", "0.0F"),
        "OutputsWithoutBarrier": ("context_.SyncBlock(kAfterLayer);", "context_.SyncWarp(kAfterLayer);"),
    },
    "math/activation.h": {
        "SiluOfNegatives": (
            "return a == -INFINITY ? 0.0F : a * Sigmoid(a);",
            "return a == -INFINITY ? 0.0F : a * Sigmoid(fabsf(a));",
        ),
        # States are right, Jacobians are not.
        "TanhSlopeOfNegatives": (
            "return 4.0F * SigmoidSlope(2.0F * a);",
            "return a < 0.0F ? 0.0F : 4.0F * SigmoidSlope(2.0F * a);",
        ),
    },
    "stack/warp_step.h": {
        "ForgottenScale": (
            "return fmaf(scale, activated, beside);",
            "return activated + beside;",
        ),
    },
    "stack/sequential_kernel.h": {
        # The steps behind the last whole chunk have the layer before their own.
        "LayersBehindLastChunk": (
            "Take(LoadLayer<W>(context_, args_.stack, l));",
            "Take(LoadLayer<W>(context_, args_.stack, l - 1));",
        ),
        "StateOfAnotherSample": (
            "args.states[sample * W + context.lane() % W]",
            "args.states[(sample - sample % 2) * W + context.lane() % W]",
        ),
    },
    "stack/backward_step.h": {
        "LostIdentityPart": (
            "return args_.stack.residual ? product + g : product;",
            "return product;",
        ),
        "DeltasOfAnotherSample": (
            "args_.deltas[(|sample_ * args_.stack.num_steps + l",
            "sample_ / 2 * args_.stack.num_steps + l",
        ),
    },
    "stack/backward_scan_kernel.h": {
        "ChainOfFirstColumn": (
            "g = |SweepOf(column).FinalGradient()",
            "SweepOf(0).FinalGradient()",
        ),
        "RightNodesLikeLeftOnes": ("if (|j % 2 == 0", "level < chain_level_ - 1 || j % 2 == 0"),
        "SlopesOfShortInterval": (
            "return |AtMost(static_cast<int32_t>(args_.stack.num_steps), BeginOf(i) + interval_)",
            "AtMost(static_cast<int32_t>(args_.stack.num_steps), BeginOf(i) + interval_ - (i == 0 ? 1 : 0))",
        ),
    },
    "stack/backward_kernel.h": {
        "SumWithoutLastSample": ("for (; |s < args.num_samples", "s + 1 < args.num_samples"),
    },
    "math/dense_back_kernel.h": {
        "OutputCotangentsOfFirstColumn": (
            "slope * |args.of_outputs[(first + c) * args.of_outputs_stride + row]",
            "args.of_outputs[first * args.of_outputs_stride + row]",
        ),
    },
    "diffusion/kernel.h": {
        "NoiseTwice": ("c.sigma == 0.0F ? nullptr : Noise(step)", "c.sigma == 0.0F ? nullptr : Noise(step - step % 2)"),
        "ModulationOfNextStep": (
            "table_ + step * view_.denoiser.modulation_floats()",
            "table_ + (step + 1 < view_.num_steps ? step + 1 : step) * view_.denoiser.modulation_floats()",
        ),
        "RowsOfFirstSample": (
            "return SampleSteps(view, first + r).At(step);",
            "return SampleSteps(view, first).At(step);",
        ),
    },
    "diffusion/noise_kernel.h": {
        # Samples behind the first have the noise that the last solve has left.
        "StaleNoiseOfSecondSample": ("if (|source.given_step_noise", "source.given_step_noise || sample > 0"),
        "ConditionOfFirstSample": ("args.conditions[sample * hidden + i]", "args.conditions[i]"),
    },
    "diffusion/reverse_step.h": {
        "MissingBarrierAfterStep": ("CompleteState(kAfterReverseStep);", "context_.SyncWarp(kAfterReverseStep);"),
        # Lanes beyond the hidden dimension count in the norm.
        "NormOfTailLanes": (
            "sole_.ForLanes(context_.lane(), |d_.hidden_dim",
            "d_.hidden_width",
        ),
    },
    "math/own_panels.h": {
        # The second warp of a block takes the panels of the first.
        "GridPanelsOfFirstWarp": ("int own = |context.warp()", "0"),
    },
    "diffusion/grid_steps.h": {
        "GridOutputOfFirstBlocks": ("CopyOwnPanels(|team.FromLast(d.state_cols / kPanelRows)", "team"),
    },
    "math/grid_team.h": {
        "GridElementOfNeighbour": ("to[1] = |pair[1]", "pair[0]"),
    },
    "loop/grid_scan.h": {
        "GridScanOfGroupBefore": ("const float own = context.lane() < W ? |vector[kNumColumns * W + row]", "vector[row]"),
        "GridScanWithoutIntervals": ("? before_[v] + |Multiply<W>(context_, prefix_, d)", "d"),
    },
    "loop/helped_scan.h": {
        "HelpedVectorsOfGroupAlone": ("Multiply<N>(QuarterOf(MatrixBefore()), |Entry(0)", "Entry(0) + ShapeOf<N>().quarter()"),
        "HelpedTotalsOfFirstGroup": ("own = QuarterOf(Total(|g + 1 < last ? g + 1 : g", "1"),
        "HelpedColumnsOfFirstShare": ("const int column = ColumnAt(at) - |share * kShare", "0"),
    },
    "loop/grid_solve.h": {
        "GridStateOfFirstBlock": ("places_.Outcome(pass, |block_ - 1", "0"),
    },
    "stack/resident_stack.h": {
        "ResidentStackSlopesOfFirstLayer": ("const float* const slopes = |slopes_ + l * W", "slopes_"),
        "ResidentStackLayerTwice": ("weights = RowOf(|l + 1 < steps ? l + 1 : l", "l"),
    },
    "diffusion/resident_block.h": {
        "ResidentTapeOfFirstInterval": (
            "args.tape.From(process.denoiser, |sample * view.tree.num_intervals + first + r",
            "sample * view.tree.num_intervals + first",
        ),
    },
    "diffusion/resident_columns.h": {
        "ResidentSlopesOfNegatives": ("slopes_[element(k)] = element(k) < d_.hidden_dim ? |slopes[k]", "fmaxf(slopes[k], 0.5F)"),
    },
    "diffusion/resident_probes.h": {
        "ResidentProbesStayZero": ("propagated[place] = residual[place] = |i < d_.state_dim", "false"),
    },
    "math/tangent_tiles.h": {
        "TileOfOtherRows": ("context.LoadFour(weights + |place(2 * p)", "place(p / 2 * 4)"),
    },
    "program/element_step.h": {
        "ProgramSlopesOfSecondOperand": ("program::MovedBy(|slopes.first", "slopes.second"),
    },
    "program/line_step.h": {
        "ProgramNormWithoutItsOwnSlope": ("t(i) - mean - |y(i) * along", "0.0F"),
    },
    "program/back_step.h": {
        "ProgramBackLayerOfFirstStep": ("|static_cast<int>(way.step.step) * instruction.layer_stride", "0"),
        "ProgramBackForgetsSums": ("to = |adds_ ? to + g : g", "g"),
        "ProgramBackMissingBarrier": ("if (|back.waits", "false"),
    },
    "program/backward_kernel.h": {
        "ProgramMatricesOfFirstSample": (
            "matrices + (|sample * tree.places() + tree.place(level, j)",
            "tree.place(level, j)",
        ),
        "ProgramConditionOfFirstInterval": ("for (int32_t p = 0; |p < args.num_intervals", "p < 1"),
    },
    "program/step.h": {
        "ProgramLayerOfFirstStep": ("|static_cast<int>(step) * instruction.layer_stride", "0"),
        "ProgramMissingBarrier": ("if (|wait == ProgramWait::kBlock", "false"),
    },
    "program/grid_steps.h": {
        "ProgramGridPanelsOfFirstLayer": ("place < 0 ? layer : WithOwnPanels(|panels_ + place", "panels_"),
        "ProgramGridLayersFromFirstBlock": ("return From(team, |places_[at].first", "0"),
    },
    "program/kernel.h": {
        "ProgramConditionOfFirstSample": (
            "place(args.condition, |args.inputs + sample * args.input_stride",
            "args.inputs",
        ),
    },
    "diffusion/tangent_kernel.h": {
        "TangentsOfWrongNorm": (
            "context_, d_.hidden_dim, d_.hidden_width, norm, |Modulation(3 * block)",
            "Modulation(3 * block + 1)",
        ),
    },
}


def planted(name, right, wrong):
    """The text that behaves as `right` unless the fault is switched on."""
    switch = f"::deeppcr::testing::planted == ::deeppcr::testing::Planted::k{name}"
    if right.endswith(";"):
        return f"if ({switch}) {{ {wrong} }} else {{ {right} }}"
    return f"({switch} ? ({wrong}) : ({right}))"


def plant(source, output):
    shutil.rmtree(output / "kernels", ignore_errors=True)  # of files that have no faults any more
    for file, faults in FAULTS.items():
        path = f"kernels/cuda/{file}"
        text = (source / path).read_text()
        for name, (where, wrong) in faults.items():
            before, _, right = where.rpartition("|")
            if text.count(before + right) != 1:
                sys.exit(f"{path}: fault {name}: not found once: {before + right}")
            text = text.replace(before + right, before + planted(name, right, wrong))
        to = output / path
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text)
    names = [name for faults in FAULTS.values() for name in faults]
    switch = output / "switch"
    switch.mkdir(exist_ok=True)
    (switch / "planted_faults.h").write_text(
        "#pragma once\nnamespace deeppcr::testing {\n"
        + f"enum class Planted {{ kNone, {', '.join('k' + name for name in names)} }};\n"
        + f"inline constexpr int kNumPlanted = {len(names)};\n"
        + "inline Planted planted = Planted::kNone;  // the fault that is switched on\n}\n"
    )


if __name__ == "__main__":
    plant(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
