//! Scores of thresholds, walks down trees.

use candle_core::CudaStorage;

use super::{words, Arg, Cuda, WORK};
use crate::plan::{is_small, parts, Split, Walks, GROUP};
use crate::runtime::{Forest, SplitInputs};
use crate::{BatchPredictParams, FindSplitParams, Result};

pub(super) fn find_split(
    gpu: &Cuda,
    params: FindSplitParams,
    inputs: &SplitInputs<'_, CudaStorage>,
    output: &mut CudaStorage,
) -> Result<()> {
    let count = u64::from(params.n_samples);
    if is_small(params, WORK) {
        let status = &mut *gpu.status.lock();
        status.used = true;
        let args = [
            Arg::Buffer(words(inputs.data)?),
            Arg::Buffer(words(inputs.labels)?),
            Arg::Buffer(words(inputs.indices)?),
            Arg::Buffer(words(inputs.thresholds)?),
            Arg::Buffer(words(output)?),
            Arg::Buffer(&status.words),
            Arg::Word(params.n_samples),
            Arg::Word(inputs.rows),
            Arg::Word(params.n_features),
            Arg::Word(params.feature_idx),
            Arg::Word(params.n_thresholds),
        ];
        return gpu.launch(&gpu.kernels.split_small, params.n_thresholds.into(), &args);
    }
    let (keys, values) = (gpu.scratch(count)?, gpu.scratch(count)?);
    let mean = gpu.scratch(1)?;
    if count > 0 {
        let blocks = count.div_ceil(GROUP);
        let sums = gpu.scratch(blocks)?;
        let status = &mut *gpu.status.lock();
        status.used = true;
        let args = [
            Arg::Buffer(words(inputs.data)?),
            Arg::Buffer(words(inputs.labels)?),
            Arg::Buffer(words(inputs.indices)?),
            Arg::Buffer(&keys),
            Arg::Buffer(&values),
            Arg::Buffer(&sums),
            Arg::Buffer(&status.words),
            Arg::Word(params.n_samples),
            Arg::Word(inputs.rows),
            Arg::Word(params.n_features),
            Arg::Word(params.feature_idx),
        ];
        gpu.launch(&gpu.kernels.split_rows, count, &args)?;
        let args = [
            Arg::Buffer(&sums),
            Arg::Buffer(&mean),
            Arg::Word(blocks as u32),
            Arg::Word(params.n_samples),
        ];
        gpu.launch(&gpu.kernels.split_mean, 1, &args)?;
    }
    let split = Split::new(count, WORK);
    for (first, columns) in parts(params.n_thresholds.into(), split.columns) {
        let sums = gpu.scratch((columns + 1) * split.slices * 3)?;
        if split.slices > 0 {
            let blocks = (columns + 1).div_ceil(GROUP);
            let args = [
                Arg::Buffer(&keys),
                Arg::Buffer(&values),
                Arg::Buffer(&mean),
                Arg::Buffer(words(inputs.thresholds)?),
                Arg::Buffer(&sums),
                Arg::Word(params.n_samples),
                Arg::Word(first as u32),
                Arg::Word(columns as u32),
                Arg::Word(split.tiles as u32),
                Arg::Word(blocks as u32),
            ];
            gpu.launch(
                &gpu.kernels.split_sums,
                blocks * split.slices * GROUP,
                &args,
            )?;
        }
        let args = [
            Arg::Buffer(&sums),
            Arg::Buffer(words(output)?),
            Arg::Word(first as u32),
            Arg::Word(columns as u32),
            Arg::Word(split.slices as u32),
        ];
        gpu.launch(&gpu.kernels.split_scores, columns, &args)?;
    }
    Ok(())
}

pub(super) fn batch_predict(
    gpu: &Cuda,
    params: BatchPredictParams,
    forest: &Forest<'_, CudaStorage>,
    output: &mut CudaStorage,
) -> Result<()> {
    let (samples, trees) = (u64::from(params.batch_size), u64::from(params.n_trees));
    // The last step looks whether the walk has ended.
    let steps = u64::from(forest.depth) + 1;
    let plan = Walks::new(samples, trees, steps, WORK / 16);
    let status = &mut *gpu.status.lock();
    status.used = true;
    for (first_sample, count) in parts(samples, plan.samples) {
        for (first_tree, part) in parts(trees, plan.trees) {
            let blocks = part.div_ceil(plan.block);
            let threads = count * blocks;
            let state = gpu.scratch(2 * threads)?;
            for (done, turns) in parts(steps, plan.turns) {
                let numbers = [
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
                    threads,
                ];
                let mut args = vec![
                    Arg::Buffer(words(forest.samples)?),
                    Arg::Buffer(words(forest.nodes)?),
                    Arg::Buffer(words(forest.offsets)?),
                    Arg::Buffer(&state),
                    Arg::Buffer(&status.words),
                ];
                args.extend(numbers.map(|value| Arg::Word(value as u32)));
                gpu.launch(&gpu.kernels.predict, threads, &args)?;
            }
            let is_last = first_tree + part == trees;
            let args = [
                Arg::Buffer(&state),
                Arg::Buffer(words(output)?),
                Arg::Word(first_sample as u32),
                Arg::Word(count as u32),
                Arg::Word(blocks as u32),
                Arg::Word(u32::from(first_tree == 0)),
                Arg::Word(if is_last { params.n_trees } else { 0 }),
            ];
            gpu.launch(&gpu.kernels.predict_mean, count, &args)?;
        }
    }
    Ok(())
}
