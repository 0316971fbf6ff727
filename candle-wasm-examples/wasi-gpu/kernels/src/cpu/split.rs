//! Scores of thresholds: rows sorted by the feature, and running sums over them.

use rayon::prelude::*;

use crate::fault::Fault;
use crate::order::{key, threshold_key};
use crate::runtime::SplitInputs;
use crate::{FindSplitParams, Result};

/// Sums over the first rows in the feature's order.
#[derive(Clone, Copy, Default)]
struct Sums {
    values: f64,
    squares: f64,
}

impl Sums {
    /// The sum of the squared differences of `count` values from their mean.
    fn squared_error(self, count: usize) -> f64 {
        let error = self.squares - self.values * self.values / count as f64;
        // Not f64::max, which would make 0 of NaN.
        if error < 0. {
            0.
        } else {
            error
        }
    }
}

pub(super) fn find_split(
    params: FindSplitParams,
    inputs: SplitInputs<'_, Vec<u32>>,
    output: &mut [u32],
) -> Result<()> {
    let SplitInputs {
        data,
        labels,
        indices,
        thresholds,
        rows,
    } = inputs;
    let count = params.n_samples as usize;
    let (features, feature) = (params.n_features as usize, params.feature_idx as usize);
    let labels: &[f32] = bytemuck::cast_slice(labels);
    let indices = &indices[..count];
    let wrong = indices.iter().position(|index| *index >= rows);
    if let Some(position) = wrong {
        return Err(Fault::Index {
            position: position as u32,
            index: indices[position],
            rows,
        }
        .into());
    }
    let mut node: Vec<(u32, f64)> = indices
        .iter()
        .map(|index| {
            let index = *index as usize;
            let feature = data[index * features + feature];
            (key(feature), f64::from(labels[index]))
        })
        .collect();
    // About the mean, so that squares do not drown what differs.
    let mean = node.iter().map(|row| row.1).sum::<f64>() / count.max(1) as f64;
    node.par_sort_by_key(|row| row.0);
    let mut running = Vec::with_capacity(count + 1);
    let mut sums = Sums::default();
    running.push(sums);
    for (_, y) in &node {
        let y = y - mean;
        sums.values += y;
        sums.squares += y * y;
        running.push(sums);
    }
    let all = sums;
    let scores = output.par_iter_mut().zip(thresholds);
    scores
        .take(params.n_thresholds as usize)
        .for_each(|(score, threshold)| {
            let threshold = threshold_key(*threshold);
            let left = node.partition_point(|row| row.0 <= threshold);
            if left == 0 || left == count {
                *score = f32::INFINITY.to_bits();
                return;
            }
            let on_left = running[left];
            let on_right = Sums {
                values: all.values - on_left.values,
                squares: all.squares - on_left.squares,
            };
            let error = on_left.squared_error(left) + on_right.squared_error(count - left);
            *score = (error as f32).to_bits();
        });
    Ok(())
}
