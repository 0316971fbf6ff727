//! From rows to outputs, in two ways that have to agree.

use crate::gpu::ml_kernels::{self, AverageParams, BatchPredictParams};
use crate::gpu::{named, Buffer};
use crate::{rows, Error, Model, Result, LEAF};

/// `(rows, outputs)`: the mean of the trees' leaves, by `kernel-batch-predict`. Waits for the device once.
///
/// # Errors
///
/// If `data` is not whole rows of finite values, or the host refuses.
pub fn predict(model: &Model, data: &[f32]) -> Result<Vec<f32>> {
    let (batch, rows) = batch(model, data)?;
    let samples = Buffer::of(data)?;
    let offsets = Buffer::of(&model.offsets)?;
    let nodes = Buffer::new(model.nodes.len() as u64 * 4)?;
    let column = Buffer::new(rows)?;
    let columns = Buffer::new(rows * u64::from(model.outputs))?;
    let params = BatchPredictParams {
        batch_size: batch,
        n_features: model.features,
        n_trees: model.offsets.len() as u32,
        max_depth: model.depth.max(1),
    };
    for output in 0..model.outputs {
        nodes.write(&model.words(output))?;
        named(
            "kernel-batch-predict",
            ml_kernels::kernel_batch_predict(
                params,
                samples.id(),
                nodes.id(),
                offsets.id(),
                column.id(),
            ),
        )?;
        columns.copy(u64::from(output) * rows, &column, 0, rows)?;
    }
    let columns = columns.read::<f32>(rows * u64::from(model.outputs))?;
    Ok(transposed(&columns, rows as usize))
}

/// As [`predict`], with the trees walked here and their mean taken by `kernel-average`.
///
/// # Errors
///
/// If `data` is not whole rows of finite values, or the host refuses.
pub fn predict_by_average(model: &Model, data: &[f32]) -> Result<Vec<f32>> {
    let (batch, rows) = batch(model, data)?;
    let trees = model.offsets.len();
    let leaves = data
        .chunks_exact(model.features as usize)
        .flat_map(|row| model.offsets.iter().map(|&root| leaf(model, root, row)))
        .collect::<Vec<_>>();
    let predictions = Buffer::new(rows * trees as u64)?;
    let column = Buffer::new(rows)?;
    let columns = Buffer::new(rows * u64::from(model.outputs))?;
    let params = AverageParams {
        n_trees: trees as u32,
        n_samples: batch,
    };
    for output in 0..model.outputs {
        let values = leaves
            .iter()
            .map(|leaf| model.values[(leaf * model.outputs + output) as usize])
            .collect::<Vec<_>>();
        predictions.write(&values)?;
        named(
            "kernel-average",
            ml_kernels::kernel_average(params, predictions.id(), column.id()),
        )?;
        columns.copy(u64::from(output) * rows, &column, 0, rows)?;
    }
    let columns = columns.read::<f32>(rows * u64::from(model.outputs))?;
    Ok(transposed(&columns, rows as usize))
}

/// The number of rows, as the interface has it and as a length.
fn batch(model: &Model, data: &[f32]) -> Result<(u32, u64)> {
    let rows = rows(data, model.features)?;
    match u32::try_from(rows) {
        Ok(batch) if batch > 0 => Ok((batch, rows as u64)),
        _ => Err(Error::Input(format!("{rows} rows cannot be predicted"))),
    }
}

/// The number of the leaf that `row` reaches. Children come after their parents, so it ends.
fn leaf(model: &Model, root: u32, row: &[f32]) -> u32 {
    let mut node = model.nodes[root as usize];
    while node.feature != LEAF {
        let left = row[node.feature as usize] <= node.threshold;
        let child = if left { node.left } else { node.right };
        node = model.nodes[(root + child) as usize];
    }
    node.left
}

/// From `(outputs, rows)` to `(rows, outputs)`.
fn transposed(columns: &[f32], rows: usize) -> Vec<f32> {
    (0..rows)
        .flat_map(|row| columns.iter().skip(row).step_by(rows))
        .copied()
        .collect()
}
