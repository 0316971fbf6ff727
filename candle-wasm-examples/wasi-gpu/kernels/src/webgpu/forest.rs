//! Drawing samples, scores of thresholds, walks down trees.

use candle_core::WebGpuStorage;

use super::{grid, kernel, Source, WebGpu};
use crate::plan::{is_small, parts, Split, Walks, GROUP, SLICE_FOLD};
use crate::runtime::{Forest, SplitInputs};
use crate::{BatchPredictParams, BootstrapParams, FindSplitParams, Result};

const BOOTSTRAP: Source = kernel!("bootstrap");
const SMALL: Source = kernel!("split_small", "status", "tree", "split_error");
const ROWS: Source = kernel!("split_rows", "status", "tree");
const MEAN: Source = kernel!("split_mean", "tree");
const SUMS: Source = kernel!("split_sums");
const SCORES: Source = kernel!("split_scores", "split_error");
const PREDICT: Source = kernel!("predict", "status");
const PREDICT_MEAN: Source = kernel!("predict_mean");

pub(super) fn bootstrap_sample(
    gpu: &WebGpu,
    params: BootstrapParams,
    output: &mut WebGpuStorage,
) -> Result<()> {
    let count = params.n_samples;
    let params = [count, params.seed, params.max_index];
    gpu.run(&BOOTSTRAP, &params, grid(count.into()), &[], &mut [output])
}

pub(super) fn find_split(
    gpu: &WebGpu,
    params: FindSplitParams,
    inputs: &SplitInputs<'_, WebGpuStorage>,
    output: &mut WebGpuStorage,
) -> Result<()> {
    let count = u64::from(params.n_samples);
    let thresholds = u64::from(params.n_thresholds);
    if is_small(params, gpu.work_per_dispatch()) {
        gpu.pace(thresholds * count)?;
        let numbers = [
            params.n_samples,
            inputs.rows,
            params.n_features,
            params.feature_idx,
            params.n_thresholds,
        ];
        return gpu.run_reporting(
            &SMALL,
            &numbers,
            grid(thresholds),
            &[
                inputs.data,
                inputs.labels,
                inputs.indices,
                inputs.thresholds,
            ],
            vec![output],
        );
    }
    let groups = count.div_ceil(GROUP);
    // Without rows, there are no sums: all sides are empty.
    let (mut keys, mut values) = (gpu.scratch(count.max(1))?, gpu.scratch(count.max(1))?);
    let mut mean = gpu.scratch(1)?;
    if count > 0 {
        let mut sums = gpu.scratch(groups)?;
        gpu.run_reporting(
            &ROWS,
            &[
                params.n_samples,
                inputs.rows,
                params.n_features,
                params.feature_idx,
            ],
            grid(count),
            &[inputs.data, inputs.labels, inputs.indices],
            vec![&mut keys, &mut values, &mut sums],
        )?;
        let params = [groups as u32, params.n_samples];
        gpu.run(&MEAN, &params, [1; 3], &[&sums], &mut [&mut mean])?;
    }
    let Split {
        tiles,
        slices,
        columns: most,
    } = Split::new(count, gpu.work_per_dispatch());
    for (first, columns) in parts(thresholds, most) {
        gpu.pace(columns * count)?;
        let mut sums = gpu.scratch((columns + 1) * slices.max(1) * 3)?;
        if slices > 0 {
            let blocks = (columns + 1).div_ceil(GROUP);
            let fold = slices.div_ceil(SLICE_FOLD);
            let workgroups = [blocks, slices.min(SLICE_FOLD), fold].map(|size| size as u32);
            let params = [count, first, columns, tiles].map(|value| value as u32);
            let inputs = [&keys, &values, &mean, inputs.thresholds];
            gpu.run(&SUMS, &params, workgroups, &inputs, &mut [&mut sums])?;
        }
        let params = [first, columns, slices].map(|value| value as u32);
        gpu.run(&SCORES, &params, grid(columns), &[&sums], &mut [output])?;
    }
    Ok(())
}

pub(super) fn batch_predict(
    gpu: &WebGpu,
    params: BatchPredictParams,
    forest: &Forest<'_, WebGpuStorage>,
    output: &mut WebGpuStorage,
) -> Result<()> {
    let (samples, trees) = (u64::from(params.batch_size), u64::from(params.n_trees));
    // The last step looks whether the walk has ended.
    let steps = u64::from(forest.depth) + 1;
    // A step loads a node from anywhere, which takes longer than a comparison.
    let plan = Walks::new(samples, trees, steps, gpu.work_per_dispatch() / 16);
    for (first_sample, count) in parts(samples, plan.samples) {
        for (first_tree, part) in parts(trees, plan.trees) {
            let blocks = part.div_ceil(plan.block);
            let invocations = count * blocks;
            let mut state = gpu.scratch(2 * invocations)?;
            for (done, turns) in parts(steps, plan.turns) {
                // As much per step as the plan assumes.
                gpu.pace(16 * part * count * turns)?;
                let params = [
                    first_sample,
                    count,
                    params.n_features.into(),
                    first_tree,
                    part,
                    plan.block,
                    forest.node_count.into(),
                    forest.depth.into(),
                    done,
                    turns,
                    invocations,
                ]
                .map(|value| value as u32);
                let inputs = [forest.samples, forest.nodes, forest.offsets];
                let workgroups = grid(invocations);
                gpu.run_reporting(&PREDICT, &params, workgroups, &inputs, vec![&mut state])?;
            }
            let is_last = first_tree + part == trees;
            let divisor = if is_last { trees } else { 0 };
            let is_first = u64::from(first_tree == 0);
            let params = [first_sample, count, blocks, is_first, divisor].map(|value| value as u32);
            gpu.run(
                &PREDICT_MEAN,
                &params,
                grid(count),
                &[&state],
                &mut [output],
            )?;
        }
    }
    Ok(())
}
